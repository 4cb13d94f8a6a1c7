"""Quotas of clients on a node (KIP-13, KIP-55, KIP-124, KIP-219): answered at once, then nothing is read."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    QuotaEntity,
    QuotaOperation,
)
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tailrace.protocol.messages.metadata import MetadataRequest
from tailrace.server.quotas.meter import QuotaMeter
from tailrace.server.quotas.rates import QuotaConfig
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import Exchange
from testkit.nodes.ports import RecordingConnection

LIMIT = 1_000
"""Bytes a second; the window is 11 samples of a second."""


@pytest.fixture
def node() -> AdminPath:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders")
    return node


def set_quota(node: AdminPath, entity: dict[str, str | None], key: str, value: float | None) -> None:
    entry = AlteredQuotas(
        entity=tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()),
        ops=(QuotaOperation(key=key, value=value or 0.0, remove=value is None),),
    )
    answer = node.send(AlterClientQuotasRequest(entries=(entry,), validate_only=False), 1, client_id="admin")
    assert [result.error_code for result in answer.response.entries] == [ErrorCode.NONE]


def produce(node: AdminPath, size: int = 100, **options: Any) -> Exchange:
    return node.produce("orders", bytes(size), client_id="app", **options)


def fetch(
    node: AdminPath,
    *,
    offset: int = 0,
    session: tuple[int, int] = (0, -1),
    names: bool = True,
    connection: RecordingConnection | None = None,
    client_id: str = "app",
    replica_id: int = -1,
    max_bytes: int = 1 << 20,
) -> Any:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=(FetchTopic(topic_id=node.topic_id("orders"), partitions=(wanted,)),) if names else (),
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=-1),
    )
    return node.send(request, 17, client_id=client_id, connection=connection).response


def sizes(response: Any) -> list[int]:
    return [len(part.records or b"") for topic in response.responses for part in topic.partitions]


def test_without_quotas_requests_have_no_meter(node: AdminPath) -> None:
    assert node.broker.dispatcher.meter is None
    set_quota(node, {"client-id": "app"}, "producer_byte_rate", LIMIT)
    assert node.broker.dispatcher.meter is not None
    set_quota(node, {"client-id": "app"}, "producer_byte_rate", None)
    assert node.broker.dispatcher.meter is None


@pytest.mark.parametrize("version", [3, 8, 12])
def test_kip219_a_producer_above_its_quota_is_answered_at_once_and_then_muted(node: AdminPath, version: int) -> None:
    set_quota(node, {"client-id": "app"}, "producer_byte_rate", LIMIT)
    first = produce(node, 5_000, version=version)
    assert (first.produced.error_code, first.response.throttle_time_ms) == (ErrorCode.NONE, 0)
    second = produce(node, 10_000, version=version)
    assert second.produced.error_code == ErrorCode.NONE
    throttle_ms = second.response.throttle_time_ms
    assert 5_000 < throttle_ms < 6_000
    assert node.connection.throttle_times_ms == [throttle_ms]
    assert node.table.get("orders", 0).log.log_end_offset == 2
    node.clock.advance(11_000)  # the samples have left the window
    assert produce(node, 10, version=version).response.throttle_time_ms == 0


def test_a_producer_without_answers_is_muted_too(node: AdminPath) -> None:
    set_quota(node, {"client-id": "app"}, "producer_byte_rate", LIMIT)
    produce(node, 15_000, acks=0)
    (throttle_ms,) = node.connection.throttle_times_ms
    assert 5_000 < throttle_ms < 6_000


def test_kip55_other_clients_are_not_held_back(node: AdminPath) -> None:
    set_quota(node, {"user": "ANONYMOUS", "client-id": "app"}, "producer_byte_rate", LIMIT)
    set_quota(node, {"user": "ANONYMOUS", "client-id": "free"}, "producer_byte_rate", 1_000_000)
    assert produce(node, 20_000).response.throttle_time_ms > 0
    assert node.produce("orders", bytes(20_000), client_id="free").response.throttle_time_ms == 0
    alice = RecordingConnection(principal="User:alice")
    request = MetadataRequest(topics=None)
    assert node.send(request, 9, client_id="app", connection=alice).response.throttle_time_ms == 0


def test_kip13_a_consumer_above_its_quota_gets_its_records_and_is_muted(node: AdminPath) -> None:
    produce(node, 30_000)
    set_quota(node, {"client-id": "app"}, "consumer_byte_rate", LIMIT)
    answer = fetch(node)
    assert sizes(answer)[0] > 30_000
    assert 20_000 < answer.throttle_time_ms < 21_000
    assert node.connection.throttle_times_ms == [answer.throttle_time_ms]


def test_a_consumer_gets_no_more_bytes_at_once_than_a_window_has(node: AdminPath) -> None:
    for _ in range(5):
        produce(node, 4_000)
    set_quota(node, {"client-id": "app"}, "consumer_byte_rate", LIMIT)
    assert 8_000 < sizes(fetch(node))[0] <= 10 * LIMIT


def test_a_second_connection_of_a_consumer_above_its_quota_gets_no_records(node: AdminPath) -> None:
    produce(node, 30_000)
    set_quota(node, {"client-id": "app"}, "consumer_byte_rate", LIMIT)
    throttle_ms = fetch(node).throttle_time_ms
    other = RecordingConnection()
    answer = fetch(node, connection=other)
    assert (answer.error_code, answer.responses, answer.session_id) == (ErrorCode.NONE, (), 0)
    assert other.throttle_times_ms == [answer.throttle_time_ms] == [throttle_ms]
    node.clock.advance(11_000)
    assert sizes(fetch(node, connection=other))[0] > 30_000


def test_kip227_the_session_of_a_throttled_consumer_keeps_its_state(node: AdminPath) -> None:
    produce(node, 100)
    set_quota(node, {"client-id": "app"}, "consumer_byte_rate", LIMIT)
    opened = fetch(node, session=(0, 0))
    assert opened.session_id > 0
    produce(node, 30_000)
    other = RecordingConnection()
    assert fetch(node, offset=1, connection=other).throttle_time_ms > 0  # the quota is used up
    throttled = fetch(node, offset=1, session=(opened.session_id, 1))
    assert (throttled.error_code, throttled.session_id, throttled.responses) == (0, opened.session_id, ())
    assert throttled.throttle_time_ms > 0
    node.clock.advance(11_000)
    assert sizes(fetch(node, session=(opened.session_id, 2), names=False))[0] > 30_000


def test_a_throttled_fetch_with_a_wrong_epoch_gets_the_error_of_the_epoch(node: AdminPath) -> None:
    produce(node, 30_000)
    set_quota(node, {"client-id": "app"}, "consumer_byte_rate", LIMIT)
    fetch(node)
    answer = fetch(node, session=(77, 5))
    assert (answer.error_code, answer.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())


def test_requests_of_followers_and_brokers_are_not_throttled(node: AdminPath) -> None:
    produce(node, 30_000)
    set_quota(node, {"client-id": None}, "consumer_byte_rate", LIMIT)
    set_quota(node, {"user": None}, "request_percentage", 0.001)
    for _ in range(2):
        assert sizes(fetch(node, client_id="broker-1"))[0] > 30_000
        fetch(node, client_id="replica", replica_id=2)
    assert node.connection.throttle_times_ms == []
    fetch(node, client_id="broker-7")  # there is no such broker
    assert len(node.connection.throttle_times_ms) == 1


class ProcessorSteps:
    """A clock of the processor: each look at the clock takes the same time."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns
        self._now_ns = 0

    def __call__(self) -> int:
        self._now_ns += self._step_ns
        return self._now_ns


def test_kip124_the_time_of_requests_has_a_quota(node: AdminPath) -> None:
    set_quota(node, {"user": "ANONYMOUS"}, "request_percentage", 50)
    meter = QuotaMeter(QuotaConfig(), clock=node.clock, process_ns=ProcessorSteps(1_000_000_000))
    meter.take(node.controller.image)
    node.broker.dispatcher.meter = meter
    throttle_times = []
    for _ in range(8):
        response = node.send(MetadataRequest(topics=None), 9).response
        throttle_times.append(response.throttle_time_ms)
    # A second of work of each request is 100 % in a window of 10 s: after 5 requests half of the window is used up.
    assert throttle_times[:5] == [0, 0, 0, 0, 0]
    assert throttle_times[5:] == [1_000, 1_000, 1_000]  # at most a sample
    assert node.connection.throttle_times_ms == [1_000, 1_000, 1_000]


def test_an_error_states_the_throttle_time_too(node: AdminPath) -> None:
    set_quota(node, {"client-id": "app"}, "producer_byte_rate", LIMIT)
    refused = node.produce("nowhere", bytes(15_000), client_id="app")
    assert refused.produced.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused.response.throttle_time_ms > 5_000
