"""Metadata (3), in every version."""

from collections.abc import Mapping

import pytest

from tailrace.metadata.broker_commands import BrokerHeartbeat, FenceBroker, RegisterBroker, UnfenceBroker
from tailrace.metadata.commands import TopicReference, TopicRefused, TopicsCreated, TopicSpec
from tailrace.metadata.image import Endpoint
from tailrace.metadata.views import Views
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.steps import result_of
from tailrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.metadata.metadata import (
    MAX_NAMES,
    MAX_TOPICS_ASKED_FOR,
    MAX_WAITING,
    MetadataHandler,
    TopicCreations,
)
from tailrace.server.response_errors import ResponseErrors
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import CLUSTER_ID
from testkit.nodes.ports import DeferredController, DeferredDisk, RecordingConnection
from testkit.quorum.controller_commands import create_topics, delete_topics

VERSIONS = range(14)
NO_OPERATIONS = -(2**31)


@pytest.fixture
def node() -> AdminPath:
    node = AdminPath("/data", files=SimulatedDisk(), settings={"broker.rack": "rack-a", "num.partitions": "2"})
    node.create_topics("orders", partitions=2)
    return node


def ask(node: AdminPath, version: int, *names: str, allow: bool = False, **options: bool) -> MetadataResponse:
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    return send(node, version, MetadataRequest(topics=topics, allow_auto_topic_creation=allow, **options))


def send(node: AdminPath, version: int, request: MetadataRequest) -> MetadataResponse:
    response = node.send(request, version).response
    assert isinstance(response, MetadataResponse)
    return response


def ask_by_id(node: AdminPath, version: int, topic_id: TopicId) -> MetadataResponse:
    request = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=topic_id, name=None),), allow_auto_topic_creation=False
    )
    return send(node, version, request)


def only(response: MetadataResponse) -> MetadataResponseTopic:
    (topic,) = response.topics
    return topic


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_shows_its_partitions_and_leaders(node: AdminPath, version: int) -> None:
    response = ask(node, version, "orders")
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", 9092)
    assert broker.rack == ("rack-a" if version >= 1 else None)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert response.cluster_id == (CLUSTER_ID if version >= 2 else None)
    topic = only(response)
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "orders", False)
    assert topic.topic_id == (node.topic_id("orders") if version >= 10 else bytes(16))
    assert [p.partition_index for p in topic.partitions] == [0, 1]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (0, 1)
        assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ((1,), (1,), ())


def test_an_empty_list_means_all_topics_in_version_0_and_none_later(node: AdminPath) -> None:
    assert [topic.name for topic in ask(node, 0).topics] == ["orders"]
    for version in VERSIONS[1:]:
        assert ask(node, version).topics == ()


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_null_means_all_topics(node: AdminPath, version: int) -> None:
    response = send(node, version, MetadataRequest(topics=None))
    assert [topic.name for topic in response.topics] == ["orders"]


@pytest.mark.parametrize("version", VERSIONS[4:])
def test_a_topic_that_is_not_there_is_unknown_when_the_client_declines_to_create_it(
    node: AdminPath, version: int
) -> None:
    topic = only(ask(node, version, "new"))
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "new" not in node.controller.image.topics


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_is_created_when_it_is_asked_for_is_unknown_first_and_then_there(
    node: AdminPath, version: int
) -> None:
    first = only(ask(node, version, "new", allow=True))
    assert (first.error_code, first.name, first.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "new", ())
    topic = only(ask(node, version, "new", allow=True))
    assert topic.error_code == 0
    assert [partition.leader_id for partition in topic.partitions] == [1, 1]
    assert node.table.get("new", 1).is_leader


def test_a_metadata_request_creates_no_topic_when_the_cluster_does_not_want_that() -> None:
    node = AdminPath("/data", files=SimulatedDisk(), settings={"auto.create.topics.enable": "false"})
    assert only(ask(node, 12, "new", allow=True)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_could_not_be_created_has_the_reason() -> None:
    node = AdminPath("/data", files=SimulatedDisk(), settings={"default.replication.factor": "3"})
    response = ask(node, 12, "new", "or ders", allow=True)
    assert [topic.error_code for topic in response.topics] == [
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__cluster_metadata"])
def test_internal_topics_are_left_to_their_coordinators(node: AdminPath, name: str) -> None:
    topic = only(ask(node, 12, name, allow=True))
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert name not in node.controller.image.topics


def test_an_internal_topic_is_marked(node: AdminPath) -> None:
    node.create_topics("__consumer_offsets")
    assert only(ask(node, 1, "__consumer_offsets")).is_internal
    assert not only(ask(node, 0, "__consumer_offsets")).is_internal  # no such field


@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 250])
def test_an_illegal_name_has_another_code_than_an_unknown_one(node: AdminPath, name: str) -> None:
    assert only(ask(node, 9, name, allow=True)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_is_found_by_its_id(node: AdminPath, version: int) -> None:
    topic = only(ask_by_id(node, version, node.topic_id("orders")))
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "orders", 2)


@pytest.mark.parametrize("version", [12, 13])
def test_an_unknown_id_is_answered_with_the_id_and_no_name(node: AdminPath, version: int) -> None:
    topic = only(ask_by_id(node, version, TopicId(b"q" * 16)))
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, b"q" * 16)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_requests_are_refused_before_version_12(node: AdminPath, version: int) -> None:
    topic = only(ask_by_id(node, version, node.topic_id("orders")))
    assert topic.error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_asked_for_twice_is_answered_once(node: AdminPath) -> None:
    assert [topic.name for topic in ask(node, 12, "orders", "orders").topics] == ["orders"]


def test_operations_are_in_the_answer_on_request(node: AdminPath) -> None:
    found = ask(node, 9, "orders", include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
    assert only(found).topic_authorized_operations == 3576
    assert found.cluster_authorized_operations == 8096
    silent = ask(node, 9, "orders")
    assert only(silent).topic_authorized_operations == NO_OPERATIONS
    assert silent.cluster_authorized_operations == NO_OPERATIONS


@pytest.mark.parametrize("name", ["missing", "or ders"])
@pytest.mark.parametrize("version", [8, 12, 13])
def test_operations_are_given_for_missing_topics_too(node: AdminPath, name: str, version: int) -> None:
    """A client asks whether it may create the topic."""
    for is_wanted, operations in ((True, 3576), (False, NO_OPERATIONS)):
        topic = only(ask(node, version, name, include_topic_authorized_operations=is_wanted))
        assert topic.error_code != 0
        assert topic.topic_authorized_operations == operations


def with_second_broker(node: AdminPath, *listeners: str) -> None:
    """Another broker, alive, that listens under these names; `shared` has a replica on each, led by 1."""
    endpoints = tuple(Endpoint(listener_name=name, host="10.0.0.2", port=9092) for name in listeners)
    node.submit(RegisterBroker(broker_id=BrokerId(2), incarnation_id=b"2" * 16, endpoints=endpoints))
    node.end_turn()
    epoch = node.controller.image.brokers[BrokerId(2)].broker_epoch
    node.submit(UnfenceBroker(broker_id=BrokerId(2), broker_epoch=epoch))
    node.end_turn()
    node.submit(create_topics(TopicSpec(name="shared", num_partitions=2, replication_factor=2)))
    node.end_turn()


def fence_second_broker(node: AdminPath) -> None:
    epoch = node.controller.image.brokers[BrokerId(2)].broker_epoch
    node.submit(FenceBroker(broker_id=BrokerId(2), broker_epoch=epoch))
    node.end_turn()


def test_a_fenced_broker_is_not_shown_and_its_replicas_are_offline(node: AdminPath) -> None:
    with_second_broker(node, "PLAINTEXT")
    assert [broker.node_id for broker in ask(node, 12, "shared").brokers] == [1, 2]
    fence_second_broker(node)
    response = ask(node, 12, "shared")
    assert [broker.node_id for broker in response.brokers] == [1]
    for partition in only(response).partitions:
        assert (partition.error_code, partition.leader_id, partition.isr_nodes) == (0, 1, (1,))
        assert set(partition.replica_nodes) == {1, 2}
        assert partition.offline_replicas == (2,)


def test_metadata_lists_all_brokers_while_all_are_fenced(node: AdminPath) -> None:
    """librdkafka would drop all of its brokers at an empty list, and ask none any more."""
    with_second_broker(node, "PLAINTEXT")
    fence_second_broker(node)
    epoch = node.controller.image.brokers[BrokerId(1)].broker_epoch
    node.submit(FenceBroker(broker_id=BrokerId(1), broker_epoch=epoch))
    node.end_turn()
    for version in (0, 12):
        response = ask(node, version, "shared")
        assert [broker.node_id for broker in response.brokers] == [1, 2]
        for partition in only(response).partitions:
            assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def test_a_broker_that_is_about_to_stop_is_shown_until_it_has_stopped(node: AdminPath) -> None:
    with_second_broker(node, "PLAINTEXT")
    epoch = node.controller.image.brokers[BrokerId(2)].broker_epoch
    offset = node.log.end_offset - 1
    node.submit(BrokerHeartbeat(broker_id=BrokerId(2), broker_epoch=epoch, metadata_offset=offset, wants_shutdown=True))
    node.end_turn()
    assert node.controller.image.brokers[BrokerId(2)].in_controlled_shutdown
    for version in (0, 12):
        response = ask(node, version, "shared")
        assert [broker.node_id for broker in response.brokers] == [1, 2]
        for partition in only(response).partitions:
            assert (partition.error_code, partition.offline_replicas) == (0, ())


def test_metadata_spares_the_oldest_clients_brokers_that_they_cannot_look_up(node: AdminPath) -> None:
    with_second_broker(node, "PLAINTEXT")
    fence_second_broker(node)
    partitions = only(ask(node, 0, "shared")).partitions
    assert partitions
    for partition in partitions:
        assert partition.replica_nodes == (1,)
        assert partition.error_code == ErrorCode.REPLICA_NOT_AVAILABLE


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)])
def test_a_leader_on_another_listener_is_not_named(node: AdminPath, version: int, code: ErrorCode) -> None:
    with_second_broker(node, "REPLICATION")
    led_elsewhere = [p for p in only(ask(node, version, "shared")).partitions if p.leader_id != 1]
    assert [(partition.leader_id, partition.error_code) for partition in led_elsewhere] == [(-1, code)]


def test_a_client_sees_the_addresses_of_its_own_listener(node: AdminPath) -> None:
    with_second_broker(node, "PLAINTEXT", "REPLICATION")
    connection = RecordingConnection(listener="REPLICATION")
    response = node.send(MetadataRequest(topics=()), 12, connection=connection).response
    assert [(broker.node_id, broker.host) for broker in response.brokers] == [(2, "10.0.0.2")]


def test_a_deleted_topic_is_unknown_at_once(node: AdminPath) -> None:
    topic_id = node.topic_id("orders")
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    assert only(ask(node, 12, "orders")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert only(ask_by_id(node, 12, topic_id)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_two_clients_that_ask_for_the_same_new_topic_both_find_it_next() -> None:
    disk = DeferredDisk()
    node = AdminPath("/data", files=SimulatedDisk(), disk=disk)
    while not node.is_ready:
        disk.run()
    request = MetadataRequest(topics=(MetadataRequestTopic(name="new"),))
    first, second = node.send(request, 12), node.send(request, 12)
    assert not first.is_answered
    disk.run()
    for exchange in (first, second):
        assert only(exchange.response).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert only(ask(node, 12, "new")).error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_whose_log_cannot_be_opened_has_no_leader_and_an_offline_replica(version: int) -> None:
    node = restarted_with_a_damaged_log("orders-1")
    whole, damaged = only(ask(node, version, "orders")).partitions
    assert (whole.error_code, whole.leader_id, tuple(whole.offline_replicas)) == (0, 1, ())
    assert (damaged.error_code, damaged.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert tuple(damaged.replica_nodes) == (1,)
    assert tuple(damaged.offline_replicas) == ((1,) if version >= 5 else ())


def restarted_with_a_damaged_log(name: str) -> AdminPath:
    """A node with two partitions of `orders` that was killed, and a log damaged below its flushed end."""
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders", partitions=2)
    for partition in (0, 1):
        node.produce("orders", b"a", partition=partition)
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    files.flip_bit(f"/data/{name}/00000000000000000000.log", 65)
    return AdminPath("/data", files=files, start=2)


Refusals = Mapping[str, KafkaError]


class Clients:
    """Clients that ask for topics, and their answers."""

    def __init__(self) -> None:
        self.controller = DeferredController()
        self.creations = TopicCreations(self.controller)

    @property
    def wanted(self) -> list[list[str]]:
        """The topics of each command."""
        return [[topic.name for topic in command.topics] for command in self.controller.commands]

    def decide(self, index: int, *, refused: str = "") -> None:
        command, on_done = self.controller.waiting[index]
        results = tuple(
            TopicRefused(name=topic.name, error=KafkaError(ErrorCode.INVALID_PARTITIONS))
            for topic in command.topics
            if topic.name == refused
        )
        on_done(TopicsCreated(results=results))

    def ask(self, *names: str, asked_for: int | None = None) -> list[Refusals]:
        answers: list[Refusals] = []
        self.creations.create(names, answers.append, asked_for=len(names) if asked_for is None else asked_for)
        return answers


@pytest.fixture
def clients() -> Clients:
    return Clients()


def codes(answers: list[Refusals]) -> dict[str, ErrorCode]:
    (refusals,) = answers
    return {name: refusal.code for name, refusal in refusals.items()}


def test_a_topic_in_many_requests_is_created_once_and_all_are_answered(clients: Clients) -> None:
    first, second = clients.ask("orders"), clients.ask("orders")
    assert clients.wanted == [["orders"]]
    assert (first, second) == ([], [])
    clients.decide(0)
    assert (codes(first), codes(second)) == ({}, {})
    clients.ask("orders")
    assert clients.wanted == [["orders"], ["orders"]]


def test_a_metadata_request_for_several_new_topics_is_answered_at_once(clients: Clients) -> None:
    clients.ask("a", "b")
    answers = clients.ask("b", "c")
    assert clients.wanted == [["a", "b"], ["c"]]
    clients.decide(1)
    assert answers == []
    clients.decide(0, refused="b")
    assert codes(answers) == {"b": ErrorCode.INVALID_PARTITIONS}


def test_each_topic_of_metadata_has_the_reason_why_the_controller_was_not_reached(clients: Clients) -> None:
    answers = clients.ask("a", "b")
    clients.controller.waiting[0][1](KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    assert codes(answers) == dict.fromkeys("ab", ErrorCode.REQUEST_TIMED_OUT)


def test_the_number_of_waiting_metadata_requests_is_limited(clients: Clients) -> None:
    waiting = [clients.ask("orders") for _ in range(MAX_WAITING)]
    assert codes(clients.ask("orders")) == {"orders": ErrorCode.REQUEST_TIMED_OUT}
    assert codes(clients.ask("other")) == {"other": ErrorCode.REQUEST_TIMED_OUT}
    clients.decide(0)
    assert [codes(answers) for answers in waiting] == [{}] * MAX_WAITING
    assert clients.ask("other") == []


def test_the_topics_in_waiting_metadata_requests_are_limited(clients: Clients) -> None:
    clients.ask("orders", asked_for=MAX_TOPICS_ASKED_FOR)
    assert codes(clients.ask("other")) == {"other": ErrorCode.REQUEST_TIMED_OUT}
    clients.decide(0)
    assert clients.ask("other") == []


def test_topics_beyond_the_limit_of_creations_are_refused_at_once(clients: Clients) -> None:
    names = [f"topic-{number}" for number in range(MAX_NAMES + 1)]
    answers = clients.ask(*names)
    assert clients.wanted == [names[:-1]]
    assert codes(clients.ask("other")) == {"other": ErrorCode.REQUEST_TIMED_OUT}
    assert clients.ask(names[0]) == []
    clients.decide(0)
    assert codes(answers) == {names[-1]: ErrorCode.REQUEST_TIMED_OUT}
    assert clients.ask("other") == []


def test_a_client_may_ask_for_more_topics_than_are_created_at_once() -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    controller = DeferredController(node.controller.image)
    handler = MetadataHandler(
        controller=controller,
        broker_id=node.controller.image.alive_brokers()[0].broker_id,
        cluster_id="mine",
        auto_create=True,
        offline_replica=lambda *_: None,
        views=Views(),
    )
    names = tuple(MetadataRequestTopic(name=f"topic-{number}") for number in range(MAX_NAMES + 5))
    for _ in range(2):
        connection = RecordingConnection()
        context = RequestContext(
            connection=connection, slot=connection.next_slot(), api_key=3, api_version=12, correlation_id=1,
            client_id=None, services=RequestServices(ResponseErrors()),
        )  # fmt: skip
        assert result_of(handler.handle(MetadataRequest(topics=names), context)) is None
    assert [len(command.topics) for command in controller.commands] == [MAX_NAMES]
