"""Produce, as a node carries it out. Rules of batches and acks: tests/scenarios/produce/test_produce_rules."""

import gc
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tailrace.protocol.records.compression import Codec
from tailrace.replication.admission import MOST_NAMED, Admission
from tailrace.server.produce import produce
from tailrace.server.produce.answers import MOST_NAMED_TOGETHER, OWN_FLUSH_MS
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.clocks import BusyClock
from testkit.nodes.data_path import DataPath, Exchange, batch_of, topic_id_of, verified_by
from testkit.nodes.ports import DeferredDisk, LedElsewhere, RecordingConnection, ScriptedVerifier
from unit.server.produce.produce_requests import codes_of, flush, request_of, to_topic, transactional_batch


@pytest.fixture
def quick() -> DataPath:
    """A node whose flushes are done at once."""
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    return node


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce_is_answered_in_its_own_form(quick: DataPath, version: int) -> None:
    answer = quick.produce("orders", b"a", acks=1, version=version).produced
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 0, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)


def test_each_partition_of_a_produce_succeeds_or_fails_alone_in_the_order_of_the_request(quick: DataPath) -> None:
    quick.create("orders", partition=1)
    good, damaged = batch_of(b"a", now=quick.clock.now_ms), bytearray(batch_of(b"b"))
    damaged[-1] ^= 1
    topics = (to_topic("nowhere", (0, good)), to_topic("orders", (1, good), (0, damaged), (7, good)))
    response: ProduceResponse = quick.send(request_of(*topics, acks=1), 9).response
    assert [
        (topic.name, [(answer.index, answer.error_code) for answer in topic.partition_responses])
        for topic in response.responses
    ] == [
        ("nowhere", [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
        ("orders", [(1, 0), (0, ErrorCode.CORRUPT_MESSAGE), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
    ]


@pytest.mark.parametrize("version", range(3, 13))
def test_a_produces_refusal_of_the_longest_name_is_answered_beside_a_batch_that_is_written(version: int) -> None:
    """The answer leaves when the turn's batches are written: an error there ends the node."""
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    batch = batch_of(b"a", now=node.clock.now_ms)
    topics = (to_topic(name, (0, batch)) for name in ("orders", "x" * 32_767))
    response = node.send(request_of(*topics, acks=1), version).response
    codes = [topic.partition_responses[0].error_code for topic in response.responses]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_large_produce_is_written_in_several_turns_and_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "SLICE_BYTES", 1_000)
    node = DataPath("/logs", files=SimulatedDisk(), disk=(disk := DeferredDisk()))
    logs = [node.create(partition=n).log for n in range(4)]
    large, small = batch_of(b"a" * 1_000, now=node.clock.now_ms), batch_of(b"a", now=node.clock.now_ms)
    request = request_of(to_topic("orders", *enumerate((large, small) * 2)), to_topic("nowhere", (0, small)))
    ends: list[list[int]] = []
    monkeypatch.setattr(node.clock, "call_soon", (later := deque[Callable[[], None]]()).append)
    exchange = node.send(request, 9)
    while later:
        assert node.connection.is_suspended
        ends.append([log.log_end_offset for log in logs])
        flush(node, disk)
        node.clock.advance(2000)
        assert not exchange.is_answered, "its time begins when all is written"
        later.popleft()()
        node.end_turn()
    assert ends == [[1, 0, 0, 0], [1, 1, 1, 0]]
    assert not node.connection.is_suspended
    flush(node, disk)
    answer: ProduceResponse = exchange.response
    codes = {topic.name: [part.error_code for part in topic.partition_responses] for topic in answer.responses}
    assert codes == {"orders": [0, 0, 0, 0], "nowhere": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}
    assert len(node.deadlines) == 0


def test_a_produce_of_very_many_batches_is_staged_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    monkeypatch.setattr(node.clock, "call_soon", (later := deque[Callable[[], None]]()).append)
    exchange = node.send(request_of(to_topic("nowhere", *((index, None) for index in range(600)))), 9)
    turns = 1
    while later and not exchange.is_answered:
        assert node.connection.is_suspended
        later.popleft()()
        node.end_turn()
        turns += 1
    assert turns == 3
    assert not node.connection.is_suspended
    (answered,) = exchange.response.responses
    assert [part.index for part in answered.partition_responses] == list(range(600))


def test_a_produces_batches_that_take_long_to_unfold_are_staged_in_slices_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """256 batches of 4 KiB that unfold to 4 MiB each would take 7 s of one turn."""
    node = DataPath("/logs", files=SimulatedDisk(), clock=(clock := BusyClock()))
    log = node.create().log
    admit = Admission.admit

    def admit_slowly(*arguments: Any) -> Any:
        clock.spend(3)
        return admit(*arguments)

    monkeypatch.setattr(Admission, "admit", admit_slowly)
    monkeypatch.setattr(node.clock, "call_soon", (later := deque[Callable[[], None]]()).append)
    batch = batch_of(b"a", codec=Codec.ZSTD, now=node.clock.now_ms)
    exchange = node.send(request_of(to_topic("orders", *[(0, batch)] * 5), acks=0), 9)
    ends = [log.log_end_offset]
    while later:
        assert node.connection.is_suspended
        later.popleft()()
        node.end_turn()
        ends.append(log.log_end_offset)
    assert ends == [2, 4, 5]
    assert exchange.is_answered
    assert not node.connection.is_suspended


def test_an_answer_to_produce_names_so_many_records_at_fault_of_all_its_partitions(quick: DataPath) -> None:
    late = quick.clock.now_ms() + 2 * 3_600_000
    batch = batch_of(*[b"a"] * MOST_NAMED, now=lambda: late)
    count = MOST_NAMED_TOGETHER // MOST_NAMED + 2
    request = request_of(to_topic("orders", *[(0, batch)] * count), acks=1)
    (answer,) = quick.send(request, 9).response.responses
    assert {part.error_code for part in answer.partition_responses} == {ErrorCode.INVALID_TIMESTAMP}
    named = [len(part.record_errors) for part in answer.partition_responses]
    assert named == [MOST_NAMED] * (count - 2) + [0, 0]


@pytest.mark.parametrize("is_full", [False, True], ids=["the batch is written", "the disk is full"])
def test_a_grant_that_comes_after_a_produces_timeout_is_no_second_answer(disk: DeferredDisk, is_full: bool) -> None:
    """A partition is safe and the other waits for the coordinator when the producer's time is over."""
    files, coordinator = SimulatedDisk(), ScriptedVerifier(is_slow=True)
    node = DataPath("/logs", files=files, disk=disk, own_handlers=verified_by(coordinator))

    def in_transaction(*sequences: int) -> ProduceRequest:
        batches = (transactional_batch(sequence) for sequence in sequences)
        return request_of(to_topic("orders", *enumerate(batches)), transactional_id="pay")

    safe, held = node.create(partition=0), node.create(partition=1)
    first = node.send(in_transaction(0), 11)
    coordinator.answer()
    flush(node, disk)
    flush(node, disk)
    assert first.produced.error_code == 0

    late = node.send(in_transaction(1, 0), 11)
    flush(node, disk)
    assert (safe.high_watermark, held.log.log_end_offset, late.is_answered) == (2, 0, False)
    node.clock.advance(1000)
    assert codes_of(late) == [0, ErrorCode.REQUEST_TIMED_OUT]
    files.free_space = 0 if is_full else files.free_space
    coordinator.answer()
    node.end_turn()
    flush(node, disk)
    assert held.high_watermark == (0 if is_full else 1)
    assert len(node.deadlines) == 0


def test_a_batch_that_is_not_verified_in_time_is_not_reported_as_written(disk: DeferredDisk) -> None:
    """Neither in the log nor short of replicas: its transaction coordinator has not answered."""
    coordinator = ScriptedVerifier(is_slow=True)
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk, own_handlers=verified_by(coordinator))
    node.create(partition=0)
    held = node.create(partition=1, replicas=(1, 2), config=TopicConfig(min_insync_replicas=2))
    parts = ((0, batch_of(b"a")), (1, transactional_batch(0)))
    request = request_of(to_topic("orders", *parts), transactional_id="pay")
    exchange = node.send(request, 11)
    node.clock.advance(1000)
    assert not exchange.is_answered, "the first partition's flush may still come"
    node.clock.advance(OWN_FLUSH_MS - 1000)
    in_log, unverified = exchange.response.responses[0].partition_responses
    assert (in_log.error_code, unverified.error_code) == (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT)
    assert in_log.error_message == "in the leader's log, but not on its disk after 5000 ms"
    assert "not in the log after 1000 ms (its transaction is not verified" in unverified.error_message
    assert held.log.log_end_offset == 0


def test_a_transactional_batch_needs_a_request_with_a_transactional_id(disk: DeferredDisk) -> None:
    """Even if the producer's transaction is open there: the request does not show that the batch belongs to it."""
    coordinator = ScriptedVerifier(is_slow=True)
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk, own_handlers=verified_by(coordinator))
    partition = node.create()

    def send(sequence: int, transactional_id: str | None) -> Exchange:
        batch = transactional_batch(sequence)
        return node.produce("orders", records=batch, acks=1, transactional_id=transactional_id)

    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert send(0, None).produced.error_code == refused
    first = send(0, "pay")
    coordinator.answer()
    node.end_turn()
    flush(node, disk)
    assert first.produced.error_code == 0
    for sequence in (0, 1):  # stored already, and the next one
        assert send(sequence, None).produced.error_code == refused
    second = send(1, "pay")
    flush(node, disk)
    assert second.produced.error_code == 0
    assert partition.log.log_end_offset == 2


def test_a_produce_without_partitions_is_answered(node: DataPath) -> None:
    assert node.send(request_of(), 9).response.responses == ()


def test_version_13_of_produce_names_topics_by_id(quick: DataPath) -> None:
    data = (PartitionProduceData(index=0, records=batch_of(b"a", now=quick.clock.now_ms)),)
    ids = (topic_id_of("orders"), bytes(16))
    request = request_of(*(TopicProduceData(topic_id=topic_id, partition_data=data) for topic_id in ids), acks=1)
    known, unknown = quick.send(request, 13).response.responses
    assert (known.topic_id, known.partition_responses[0].error_code) == (topic_id_of("orders"), 0)
    assert unknown.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("version", "hint"), [(9, (-1, -1)), (10, (2, 5))])
def test_from_version_10_on_produce_names_the_new_leader(node: DataPath, version: int, hint: tuple[int, int]) -> None:
    node.table.leaders = LedElsewhere()
    answer = node.produce("far", b"a", acks=1, version=version).produced
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == hint


def test_a_produce_with_null_records_is_refused(node: DataPath) -> None:
    answer = node.send(request_of(to_topic("orders", (0, None)), acks=1), 9).produced
    assert answer.error_code == ErrorCode.INVALID_RECORD


def test_a_full_disk_is_a_storage_error_of_produce_and_the_connection_lives() -> None:
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    node.create()
    files.free_space = 0
    assert node.produce("orders", b"a").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    files.free_space = 1 << 30
    assert node.produce("orders", b"b").produced.base_offset == 0
    assert node.connection.is_open


def test_produce_requests_like_the_last_of_their_connection_are_carried_out_without_decoding(quick: DataPath) -> None:
    for number in range(50):
        answer = quick.produce("orders", str(number).encode() * (1 + 100 * (number % 3)), acks=1).produced
        assert (answer.error_code, answer.base_offset) == (0, number)
    refused = quick.produce("orders", b"x", acks=1, partition=5).produced
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_produce_requests_like_a_former_request_of_their_connection_reach_their_own_topic(quick: DataPath) -> None:
    names = [f"{'x' * (number % 12)}{number}" for number in range(70)]
    for name in names:
        quick.create(name)
    for number in range(3):
        for name in names:
            answer = quick.produce(name, name.encode(), acks=1).produced
            assert (answer.error_code, answer.base_offset) == (0, number)
    for name in names:
        assert quick.values(name) == [name.encode()] * 3


def test_produce_requests_of_a_connection_that_are_never_alike_are_carried_out_too(quick: DataPath) -> None:
    quick.create("invoices")
    for number in range(50):
        for topic in ("orders", "invoices"):
            answer = quick.produce(topic, b"v", acks=1, timeout_ms=number).produced
            assert (answer.error_code, answer.base_offset) == (0, number)


def test_a_produce_leaves_no_cycle_for_the_garbage_collector(node: DataPath, disk: DeferredDisk) -> None:
    node.create("orders", partition=1)

    def produce() -> None:
        batch = batch_of(b"a", now=node.clock.now_ms)
        node.send(request_of(to_topic("orders", (0, batch), (1, batch), (9, batch))), 9)
        for acks in (-1, 1):
            node.produce("orders", b"a", acks=acks)
        flush(node, disk)

    def garbage() -> int:
        produce()
        return gc.collect()

    garbage()  # codecs are compiled, lanes are made
    # Threads of others and finalizers make cycles too, now and then; a request that makes one makes it every time.
    assert 0 in (garbage() for _ in range(5))


def test_nothing_is_kept_of_a_producer_after_its_timeout(node: DataPath) -> None:
    """A high watermark may stand still for hours: while replicas are away, or the controller is."""
    request = request_of(to_topic("orders", (0, batch_of(b"a", now=node.clock.now_ms))), timeout_ms=100)
    connection = RecordingConnection()
    waiting = node.send(request, 9, connection=connection)
    node.clock.advance(OWN_FLUSH_MS)
    assert waiting.produced.error_code == ErrorCode.REQUEST_TIMED_OUT
    connection.hang_up()
    gone = weakref.ref(connection)
    del connection, waiting
    gc.collect()
    assert gone() is None
