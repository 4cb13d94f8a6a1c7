"""Access to records: Produce and Fetch of a client, element by element, and after a change of the rules."""

from typing import Any

import pytest

from tailrace.model.access import CLUSTER, Operation, SecuredType
from tailrace.model.acls.bindings import PatternType
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.transactions import InitProducerIdRequest
from testkit.coordinators.secured_path import SecuredPath
from testkit.nodes.data_path import Exchange, batch_of
from testkit.nodes.ports import RecordingConnection

ALICE, BOB = "User:alice", "User:bob"
TOPIC, TRANSACTIONAL_ID = SecuredType.TOPIC, SecuredType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
BY_NAME, BY_ID = 12, 17


@pytest.fixture
def node() -> SecuredPath:
    node = SecuredPath()
    node.create_topics("orders", "secret", partitions=2)
    for topic in ("orders", "secret"):
        assert node.produce(topic, b"one").produced.error_code == 0
    return node


def produce_request(
    node: SecuredPath, *topics: str, version: int, transactional_id: str | None = None, **options: Any
) -> ProduceRequest:
    batch = batch_of(b"value", now=node.clock.now_ms, **options)
    known = node.controller.image.topics
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1_000,
        topic_data=tuple(
            TopicProduceData(
                name=topic if version < 13 else "",
                topic_id=node.topic_id(topic) if topic in known else bytes([9] * 16),
                partition_data=(PartitionProduceData(index=0, records=batch),),
            )
            for topic in topics
        ),
    )


def codes(response: Any) -> list[int]:
    return [part.error_code for topic in response.responses for part in topic.partition_responses]


def end(node: SecuredPath, topic: str) -> int:
    return node.table.get(topic, 0).log.log_end_offset


@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_produce_writes_to_the_permitted_topic_of_two(node: SecuredPath, version: int) -> None:
    node.allow(ALICE, WRITE, TOPIC, "orders")
    for _ in range(2):  # the second request has a known form, and is not decoded
        answer = node.ask(ALICE, produce_request(node, "secret", "orders", "missing", version=version), version)
        assert codes(answer) == [REFUSED, 0, REFUSED]
    assert (end(node, "orders"), end(node, "secret")) == (3, 1)


def test_a_produce_by_id_tells_a_forbidden_topic_from_a_missing_topic_to_no_stranger(node: SecuredPath) -> None:
    request = produce_request(node, "secret", "missing", version=13)
    assert codes(node.ask(ALICE, request, 13)) == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
    node.allow(ALICE, DESCRIBE, TOPIC, "secret")
    assert codes(node.ask(ALICE, request, 13)) == [REFUSED, ErrorCode.UNKNOWN_TOPIC_ID]


@pytest.mark.parametrize("version", [9, 12])
def test_a_known_form_of_a_produce_is_refused_after_the_rule_is_gone(node: SecuredPath, version: int) -> None:
    rule = node.allow(ALICE, WRITE, TOPIC, "orders")
    request = produce_request(node, "orders", version=version)
    assert [codes(node.ask(ALICE, request, version)) for _ in range(3)] == [[0]] * 3
    node.revoke(rule)
    assert codes(node.ask(ALICE, request, version)) == [REFUSED]
    node.allow(ALICE, WRITE, TOPIC, "ord", pattern=PatternType.PREFIXED)
    assert codes(node.ask(ALICE, request, version)) == [0]
    node.deny("User:*", WRITE, TOPIC, "*")
    assert codes(node.ask(ALICE, request, version)) == [REFUSED]
    assert end(node, "orders") == 5


def test_a_transactional_produce_needs_the_transactional_id(node: SecuredPath) -> None:
    node.allow(ALICE, WRITE, TOPIC, "orders")
    options: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    request = produce_request(node, "orders", version=12, transactional_id="t", **options)
    assert codes(node.ask(ALICE, request, 12)) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    unnamed = produce_request(node, "orders", version=12, **options)  # CVE-2018-17196
    assert codes(node.ask(ALICE, unnamed, 12)) != [0]
    assert end(node, "orders") == 1


def test_an_idempotent_producer_needs_write_on_any_topic_or_on_the_cluster(node: SecuredPath) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
    assert node.ask(ALICE, request, 4).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    rule = node.allow(ALICE, WRITE, TOPIC, "anything", pattern=PatternType.PREFIXED)
    assert node.ask(ALICE, request, 4).error_code == 0
    node.revoke(rule)
    assert node.ask(ALICE, request, 4).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    node.allow(ALICE, Operation.IDEMPOTENT_WRITE, SecuredType.CLUSTER, CLUSTER.name)
    assert node.ask(ALICE, request, 4).error_code == 0


def test_a_transactional_producer_needs_write_on_its_transactional_id(node: SecuredPath) -> None:
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1_000)
    node.allow(ALICE, WRITE, TRANSACTIONAL_ID, "other")
    assert node.ask(ALICE, request, 4).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    node.allow(ALICE, WRITE, TRANSACTIONAL_ID, "t")
    assert node.ask(ALICE, request, 4).error_code != ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# Fetch


def fetch(
    node: SecuredPath,
    offsets: dict[str, int],
    *,
    version: int,
    session: tuple[int, int] = (0, -1),
    max_wait_ms: int = 0,
    connection: RecordingConnection | None = None,
    replica_id: int = -1,
) -> Exchange:
    topics = tuple(
        FetchTopic(
            topic=name if version < 13 else "",
            topic_id=node.topic_id(name),
            partitions=(FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000),),
        )
        for name, offset in offsets.items()
    )
    request = FetchRequest(
        replica_id=replica_id if version < 15 else -1,
        replica_state=ReplicaState(replica_id=replica_id) if version >= 15 else ReplicaState(),
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=10_000,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
    )
    return node.send(request, version, connection=connection or node.connection_of(ALICE))


def outcomes(response: FetchResponse) -> list[tuple[int, bool]]:
    """The error of each partition in the answer, and whether the partition has records."""
    parts = [part for topic in response.responses for part in topic.partitions]
    return [(part.error_code, bool(part.records)) for part in parts]


def refusal(version: int) -> int:
    """The error of a topic that the client may neither read nor describe."""
    return REFUSED if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [4, BY_NAME, BY_ID])
def test_a_fetch_reads_the_permitted_topic_of_two(node: SecuredPath, version: int) -> None:
    node.allow(ALICE, READ, TOPIC, "orders")
    answer = fetch(node, {"secret": 0, "orders": 0}, version=version).response
    assert outcomes(answer) == [(refusal(version), False), (0, True)]


def test_a_fetch_of_a_topic_that_may_be_described_alone_is_refused_openly(node: SecuredPath) -> None:
    node.allow(ALICE, DESCRIBE, TOPIC, "secret")
    assert outcomes(fetch(node, {"secret": 0}, version=BY_ID).response) == [(REFUSED, False)]


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_remembered_partition_is_refused_after_its_rule_is_gone_and_read_when_it_is_back(
    node: SecuredPath, version: int
) -> None:
    rules = [node.allow(ALICE, READ, TOPIC, topic) for topic in ("orders", "secret")]
    opened = fetch(node, {"orders": 1, "secret": 1}, version=version, session=(0, 0)).response
    session_id = opened.session_id
    assert session_id
    assert outcomes(fetch(node, {}, version=version, session=(session_id, 1)).response) == []

    node.revoke(rules[1])
    for topic in ("orders", "secret"):
        node.produce(topic, b"two")
    answer = fetch(node, {}, version=version, session=(session_id, 2)).response
    assert sorted(outcomes(answer)) == sorted([(refusal(version), False), (0, True)])

    node.allow(ALICE, READ, TOPIC, "secret")
    answer = fetch(node, {"orders": 2}, version=version, session=(session_id, 3)).response
    assert outcomes(answer) == [(0, True)]


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_partition_that_a_session_may_not_read_at_first_is_read_when_the_rule_comes(
    node: SecuredPath, version: int
) -> None:
    opened = fetch(node, {"secret": 0}, version=version, session=(0, 0)).response
    assert outcomes(opened) == [(refusal(version), False)]
    node.allow(ALICE, READ, TOPIC, "secret")
    assert outcomes(fetch(node, {}, version=version, session=(opened.session_id, 1)).response) == [(0, True)]


def test_a_session_of_a_permitted_host_is_refused_from_another_host(node: SecuredPath) -> None:
    node.allow(ALICE, READ, TOPIC, "orders", host="127.0.0.1")
    opened = fetch(node, {"orders": 1}, version=BY_NAME, session=(0, 0)).response
    assert outcomes(fetch(node, {}, version=BY_NAME, session=(opened.session_id, 1)).response) == []
    elsewhere = RecordingConnection(principal=ALICE)
    elsewhere.identity = elsewhere.identity._replace(address="10.0.0.9")
    answer = fetch(node, {}, version=BY_NAME, session=(opened.session_id, 2), connection=elsewhere).response
    assert outcomes(answer) == [(REFUSED, False)]


@pytest.mark.parametrize("has_session", [False, True])
def test_a_waiting_fetch_shows_nothing_after_its_rule_is_gone(node: SecuredPath, has_session: bool) -> None:
    rule = node.allow(ALICE, READ, TOPIC, "secret")
    session, named = (0, -1), {"secret": 1}
    if has_session:
        opened = fetch(node, {"secret": 1}, version=BY_NAME, session=(0, 0)).response
        session, named = (opened.session_id, 1), {}
    waiting = fetch(node, named, version=BY_NAME, session=session, max_wait_ms=5_000)
    assert not waiting.is_answered
    node.revoke(rule)
    node.produce("secret", b"two")
    node.clock.advance(5_000)
    assert waiting.is_answered
    assert not any(has_records for _, has_records in outcomes(waiting.response))
    if has_session:
        again = fetch(node, {}, version=BY_NAME, session=(session[0], 2)).response
        assert outcomes(again) == [(REFUSED, False)]


@pytest.mark.parametrize("version", [4, BY_NAME, BY_ID])
def test_a_client_cannot_fetch_as_a_replica(node: SecuredPath, version: int) -> None:
    """CVE-2018-1288: neither the in-sync replicas nor the high watermark change."""
    node.allow(ALICE, READ, TOPIC, "orders")
    before = node.controller.image, node.table.get("orders", 0).high_watermark
    answer = fetch(node, {"orders": 1}, version=version, replica_id=1).response
    if version < 7:
        assert outcomes(answer) == [(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, False)]
    else:
        assert (answer.error_code, answer.responses) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ())
    assert (node.controller.image, node.table.get("orders", 0).high_watermark) == before


def test_bob_can_neither_use_nor_end_the_session_of_alice(node: SecuredPath) -> None:
    node.allow("User:*", READ, TOPIC, "orders")
    session_id = fetch(node, {"orders": 1}, version=BY_NAME, session=(0, 0)).response.session_id
    for epoch in (1, -1):
        stolen = fetch(
            node, {}, version=BY_NAME, session=(session_id, epoch), connection=node.connection_of(BOB)
        ).response
        assert stolen.error_code == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND if epoch > 0 else 0)
    assert fetch(node, {}, version=BY_NAME, session=(session_id, 1)).response.session_id == session_id
