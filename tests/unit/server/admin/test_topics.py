"""CreateTopics (19), DeleteTopics (20) and CreatePartitions (37)."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import BROKER
from testkit.nodes.ports import DeferredDisk


@pytest.fixture
def node() -> AdminPath:
    return AdminPath("/data", files=SimulatedDisk())


def topic(
    name: str,
    *,
    partitions: int = 1,
    factor: int = 1,
    configs: dict[str, str | None] | None = None,
    assignments: tuple[CreatableReplicaAssignment, ...] = (),
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=assignments,
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
    )


def create(node: AdminPath, version: int, *topics: CreatableTopic, validate: bool = False) -> CreateTopicsResponse:
    response = node.send(CreateTopicsRequest(topics=topics, validate_only=validate), version).response
    assert isinstance(response, CreateTopicsResponse)
    return response


def only(response: CreateTopicsResponse) -> CreatableTopicResult:
    (result,) = response.topics
    return result


def delete(
    node: AdminPath, version: int, *names: str, states: tuple[DeleteTopicState, ...] = ()
) -> DeleteTopicsResponse:
    if version >= 6:
        states += tuple(DeleteTopicState(name=name) for name in names)
        request = DeleteTopicsRequest(topics=states, timeout_ms=1000)
    else:
        request = DeleteTopicsRequest(topic_names=names, timeout_ms=1000)
    response = node.send(request, version).response
    assert isinstance(response, DeleteTopicsResponse)
    return response


@pytest.mark.parametrize("version", range(2, 8))
def test_a_created_topic_can_be_produced_to_at_once(node: AdminPath, version: int) -> None:
    result = only(create(node, version, topic("orders", partitions=2)))
    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    assert node.produce("orders", b"first", partition=1).produced.error_code == 0
    assert result.num_partitions == (2 if version >= 5 else -1)
    assert result.replication_factor == (1 if version >= 5 else -1)
    assert result.topic_id == (node.topic_id("orders") if version >= 7 else ZERO_TOPIC_ID)
    assert result.topic_config_error_code == 0


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_that_exists_is_refused_with_a_message(node: AdminPath, version: int) -> None:
    node.create_topics("orders")
    result = only(create(node, version, topic("orders")))
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "'orders' already exists" in (result.error_message or "")


def test_the_answer_to_a_creation_of_topics_tells_the_settings_and_their_sources() -> None:
    node = AdminPath("/data", files=SimulatedDisk(), settings={"log.segment.bytes": "1000000"})
    result = only(create(node, 7, topic("orders", configs={"retention.ms": "5"})))
    assert result.configs is not None
    configs = {config.name: (config.value, config.config_source) for config in result.configs}
    assert configs["retention.ms"] == ("5", 1)
    assert configs["segment.bytes"] == ("1000000", 4)
    assert configs["cleanup.policy"] == ("delete", 5)
    assert only(create(node, 4, topic("returns"))).configs == ()


def test_the_settings_of_a_topic_are_those_of_its_log(node: AdminPath) -> None:
    create(node, 7, topic("orders", configs={"segment.bytes": "12345"}))
    assert node.table.get("orders", 0).config.segment_bytes == 12345


def test_topics_of_one_request_fail_one_by_one(node: AdminPath) -> None:
    response = create(
        node, 7, topic("good"), topic("twice"), topic("twice"), topic("or ders"), topic("x", configs={"nonsense": "1"})
    )
    codes = {result.name: result.error_code for result in response.topics}
    assert codes == {
        "good": 0,
        "twice": ErrorCode.INVALID_REQUEST,
        "or ders": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "x": ErrorCode.INVALID_CONFIG,
    }
    assert len(response.topics) == 4
    assert list(node.controller.image.topics) == ["good"]


@pytest.mark.parametrize("validate", [False, True])
def test_an_unknown_setting_is_refused_in_kafkas_words(node: AdminPath, validate: bool) -> None:
    """Programs match the text. The nearest name follows."""
    asked = [topic("x", configs={name: "1"}) for name in ("nonsense", "retention.sm")]
    answers = [only(create(node, 7, each, validate=validate)) for each in asked]
    assert [answer.error_message for answer in answers] == [
        "Unknown topic config name: nonsense",
        "Unknown topic config name: retention.sm; did you mean retention.ms?",
    ]


def test_a_manual_assignment_is_kept(node: AdminPath) -> None:
    assignments = tuple(CreatableReplicaAssignment(partition_index=n, broker_ids=(1,)) for n in (1, 0))
    result = only(create(node, 7, topic("orders", partitions=-1, factor=-1, assignments=assignments)))
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_validation_tells_and_does_nothing(node: AdminPath) -> None:
    result = only(create(node, 7, topic("orders", partitions=3), validate=True))
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert node.controller.image.topics == {}


def test_a_refusal_of_the_whole_request_is_given_at_each_topic(node: AdminPath) -> None:
    response = create(node, 7, topic("a", partitions=9000), topic("b", partitions=9000))
    assert [result.error_code for result in response.topics] == [ErrorCode.POLICY_VIOLATION] * 2
    assert all(result.error_message for result in response.topics)


def test_limits_on_partitions_come_from_the_configuration() -> None:
    settings = {"max.partitions.per.topic": "3", "max.partitions.per.node": "4"}
    node = AdminPath("/data", files=SimulatedDisk(), settings=settings)
    assert only(create(node, 7, topic("a", partitions=4))).error_code == ErrorCode.INVALID_PARTITIONS
    response = create(node, 7, topic("b", partitions=3), topic("c", partitions=2), topic("d"))
    assert [result.error_code for result in response.topics] == [0, ErrorCode.POLICY_VIOLATION, 0]


def test_the_answer_to_a_creation_of_topics_waits_for_the_disk() -> None:
    disk = DeferredDisk()
    node = AdminPath("/data", files=SimulatedDisk(), disk=disk)
    while not node.is_ready:
        disk.run()
    exchange = node.send(CreateTopicsRequest(topics=(topic("orders"),)), 7)
    assert not exchange.is_answered
    disk.run()
    assert only(exchange.response).error_code == 0


def test_a_topic_is_created_also_if_its_client_has_disconnected() -> None:
    disk = DeferredDisk()
    node = AdminPath("/data", files=SimulatedDisk(), disk=disk)
    while not node.is_ready:
        disk.run()
    exchange = node.send(CreateTopicsRequest(topics=(topic("orders"),)), 7)
    node.connection.hang_up()
    disk.run()
    assert not exchange.is_answered
    assert node.table.find("orders", 0) is not None


@pytest.mark.parametrize("version", range(1, 7))
def test_a_deleted_topic_is_gone_with_its_partitions(node: AdminPath, version: int) -> None:
    node.create_topics("orders", partitions=2)
    topic_id = node.topic_id("orders")
    (result,) = delete(node, version, "orders").responses
    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    assert result.topic_id == (topic_id if version >= 6 else ZERO_TOPIC_ID)
    assert node.controller.image.topics == {}
    assert node.table.find("orders", 1) is None


def test_a_topic_is_deleted_by_its_id(node: AdminPath) -> None:
    node.create_topics("orders")
    state = DeleteTopicState(name=None, topic_id=node.topic_id("orders"))
    (result,) = delete(node, 6, states=(state,)).responses
    assert (result.name, result.error_code) == ("orders", 0)


def test_unknown_topics_are_refused_by_what_they_were_named_with(node: AdminPath) -> None:
    state = DeleteTopicState(name=None, topic_id=b"q" * 16)
    by_id, by_name = delete(node, 6, "orders", states=(state,)).responses
    assert (by_id.name, by_id.topic_id, by_id.error_code) == (None, b"q" * 16, ErrorCode.UNKNOWN_TOPIC_ID)
    assert (by_name.name, by_name.error_code) == ("orders", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert by_name.error_message


def test_a_topic_created_again_under_its_name_is_empty(node: AdminPath) -> None:
    create(node, 7, topic("orders"))
    node.produce("orders", b"old")
    delete(node, 6, "orders")
    create(node, 7, topic("orders"))
    assert node.records_of("orders") == []
    node.produce("orders", b"new")
    assert node.records_of("orders") == [b"new"]


@pytest.mark.parametrize(
    ("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED), (6, 73)]
)
def test_deletion_may_be_disabled(version: int, code: int) -> None:
    node = AdminPath("/data", files=SimulatedDisk(), settings={"delete.topic.enable": "false"})
    node.create_topics("orders")
    (result,) = delete(node, version, "orders").responses
    assert result.error_code == code
    assert "orders" in node.controller.image.topics


def test_a_negative_count_makes_no_room_for_more_partitions_than_a_request_may_create(node: AdminPath) -> None:
    """Placing 2^31 partitions, only to refuse them, would take all of the node's memory."""
    response = create(node, 7, topic("less", partitions=-20_000), topic("more", partitions=25_000))
    assert [result.error_code for result in response.topics] == [ErrorCode.POLICY_VIOLATION] * 2


@pytest.mark.parametrize("version", range(2, 8))
def test_the_error_for_the_longest_topic_name_fits_into_the_answer(node: AdminPath, version: int) -> None:
    name = "x" * 32_767
    (result,) = create(node, version, topic(name), topic(name)).topics
    assert (result.name, result.error_code) == (name, ErrorCode.INVALID_REQUEST)
    assert result.error_message is not None
    assert "named twice" not in result.error_message
    assert len(result.error_message) < 2_000


def add_partitions(
    node: AdminPath, version: int, *topics: CreatePartitionsTopic, validate_only: bool = False
) -> list[int]:
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1_000, validate_only=validate_only)
    results = node.send(request, version).response.results
    assert all(bool(result.error_message) == bool(result.error_code) for result in results)
    return [result.error_code for result in results]


@pytest.mark.parametrize("version", range(4))
def test_new_partitions_can_be_produced_to_at_once(node: AdminPath, version: int) -> None:
    node.create_topics("orders")
    assert add_partitions(node, version, CreatePartitionsTopic(name="orders", count=3, assignments=None)) == [0]
    assert node.produce("orders", b"new", partition=2).produced.error_code == 0
    assert len(node.controller.image.topics["orders"].partitions) == 3


@pytest.mark.parametrize("version", range(4))
def test_validate_only_adds_no_partitions(node: AdminPath, version: int) -> None:
    node.create_topics("orders")
    wanted = CreatePartitionsTopic(name="orders", count=3, assignments=None)
    assert add_partitions(node, version, wanted, validate_only=True) == [0]
    assert node.table.find("orders", 1) is None


def test_each_topic_of_create_partitions_gets_its_partitions_or_its_error(node: AdminPath) -> None:
    node.create_topics("orders", "others")
    assignment = CreatePartitionsAssignment(broker_ids=(BROKER,))
    topics = (
        CreatePartitionsTopic(name="orders", count=1, assignments=None),
        CreatePartitionsTopic(name="missing", count=2, assignments=None),
        CreatePartitionsTopic(name="others", count=2, assignments=(assignment,)),
    )
    assert add_partitions(node, 3, *topics) == [
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    assert node.table.find("others", 1) is not None


def test_partitions_are_there_after_a_restart() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders")
    add_partitions(node, 3, CreatePartitionsTopic(name="orders", count=2, assignments=None))
    node.produce("orders", b"kept", partition=1)
    node.stop()
    node = AdminPath("/data", files=files, start=2)
    assert node.values("orders", partition=1) == [b"kept"]
