"""Batches per partition: what is sent when, in which order, under which numbers."""

from concurrent.futures import Future

import pytest

from tailrace.client.accumulator import (
    MAX_IN_FLIGHT,
    Accumulator,
    Identity,
    OutgoingBatch,
    PartitionQueue,
    RecordMetadata,
    StickyPartitioner,
    Verdict,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import crc_is_valid, read_header
from tailrace.protocol.records.record import Record, build_batch, read_records

PARTITION = TopicPartition("orders", 0)
IDENTITY = Identity(7, 0)


def _accumulator(**options: int) -> Accumulator:
    return Accumulator(**{"batch_size": 200, "linger_ms": 5, **options})  # type: ignore[arg-type]


def _add(accumulator: Accumulator, value: bytes, now_ms: int = 0) -> "Future[RecordMetadata]":
    completion: Future[RecordMetadata] = Future()
    accumulator.append(PARTITION, 1_000, None, value, (), len(value) + 24, completion, now_ms)
    return completion


def _ready(accumulator: Accumulator, now_ms: int) -> list[PartitionQueue]:
    return list(accumulator.ready(now_ms))


def _take(accumulator: Accumulator, now_ms: int = 100) -> OutgoingBatch:
    (queue,) = _ready(accumulator, now_ms)
    return queue.take(IDENTITY)


def _fill(accumulator: Accumulator, batches: int) -> None:
    for number in range(batches):
        _add(accumulator, b"%d" % number * 120)
        accumulator.queue(PARTITION).seal_open()


def test_an_open_batch_waits_for_linger_ms_and_a_full_one_does_not() -> None:
    accumulator = _accumulator()
    _add(accumulator, b"a", now_ms=10)
    assert not _ready(accumulator, 14)
    assert accumulator.next_deadline_ms(14) == 15
    assert _ready(accumulator, 15)
    for _ in range(5):
        _add(accumulator, b"b" * 60, now_ms=10)
    assert _ready(accumulator, 10)


def test_a_flush_does_not_wait_for_linger_ms() -> None:
    accumulator = _accumulator(linger_ms=1_000_000)
    _add(accumulator, b"a")
    assert not _ready(accumulator, 0)
    accumulator.begin_flush()
    assert _ready(accumulator, 0)


def test_records_of_a_batch_get_consecutive_offsets_and_the_brokers_time() -> None:
    accumulator = _accumulator()
    first, second = _add(accumulator, b"a"), _add(accumulator, b"b")
    batch = _take(accumulator)
    batch.succeed(40, -1)
    assert first.result() == RecordMetadata("orders", 0, 40, 1_000)
    assert second.result() == RecordMetadata("orders", 0, 41, 1_000)
    assert [record.value for record in read_records(batch.payload)] == [b"a", b"b"]


def test_sequence_numbers_follow_on_from_batch_to_batch() -> None:
    accumulator = _accumulator()
    _fill(accumulator, 3)
    sequences = [read_header(_take(accumulator).payload).base_sequence for _ in range(3)]
    assert sequences == [0, 1, 2]


def test_sequence_numbers_wrap_to_zero() -> None:
    accumulator = _accumulator()
    _fill(accumulator, 2)
    _take(accumulator)
    accumulator.queue(PARTITION).next_sequence = 0x7FFFFFFF
    assert _take(accumulator).base_sequence == 0x7FFFFFFF
    assert accumulator.queue(PARTITION).next_sequence == 0


def test_at_most_five_batches_of_a_partition_are_in_flight() -> None:
    accumulator = _accumulator()
    _fill(accumulator, MAX_IN_FLIGHT + 1)
    for _ in range(MAX_IN_FLIGHT):
        _take(accumulator)
    assert not _ready(accumulator, 100)


def test_an_open_batch_outgrows_batch_size_while_nothing_more_may_be_sent() -> None:
    accumulator = _accumulator()
    _fill(accumulator, MAX_IN_FLIGHT)
    for _ in range(MAX_IN_FLIGHT):
        _take(accumulator)
    for _ in range(20):
        _add(accumulator, b"x" * 100)
    queue = accumulator.queue(PARTITION)
    assert not queue.waiting
    assert queue.open is not None
    assert queue.open.count == 20


def test_a_retry_keeps_its_numbers_and_goes_alone_before_all_others() -> None:
    accumulator = _accumulator()
    _fill(accumulator, 4)
    first, second = _take(accumulator), _take(accumulator)
    queue = accumulator.queue(PARTITION)
    queue.settle(first, Verdict.RETRY, not_before_ms=150)
    assert not _ready(accumulator, 200), "the second is still in flight"
    queue.settle(second, Verdict.RETRY, not_before_ms=150)
    assert not _ready(accumulator, 149)
    again = _take(accumulator, 150)
    assert (again, again.base_sequence) == (first, 0)
    assert not _ready(accumulator, 200), "a retry is alone on its way"
    queue.settle(again, Verdict.DONE)
    assert _take(accumulator, 200) is second


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NONE, Verdict.DONE),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, Verdict.DONE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Verdict.RETRY),
        (ErrorCode.REQUEST_TIMED_OUT, Verdict.RETRY),
        (ErrorCode.UNKNOWN_PRODUCER_ID, Verdict.RENEW),
        (ErrorCode.INVALID_PRODUCER_EPOCH, Verdict.RENEW),
        (ErrorCode.MESSAGE_TOO_LARGE, Verdict.FAIL),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Verdict.FAIL),
    ],
)
def test_what_an_error_means_for_the_first_batch_in_flight(code: ErrorCode, verdict: Verdict) -> None:
    accumulator = _accumulator()
    _fill(accumulator, 1)
    assert accumulator.queue(PARTITION).verdict(_take(accumulator), code) is verdict


def test_a_batch_behind_one_that_failed_is_out_of_order_only_for_now() -> None:
    accumulator = _accumulator()
    _fill(accumulator, 2)
    first, second = _take(accumulator), _take(accumulator)
    queue = accumulator.queue(PARTITION)
    queue.settle(first, Verdict.RETRY)
    assert queue.verdict(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) is Verdict.RETRY


def test_after_a_batch_given_up_the_partition_starts_again_at_zero_in_the_next_epoch() -> None:
    accumulator = _accumulator()
    _fill(accumulator, 3)
    first, second = _take(accumulator), _take(accumulator)
    queue = accumulator.queue(PARTITION)
    queue.settle(first, Verdict.FAIL)
    assert not _ready(accumulator, 200), "the numbers change only when nothing is on its way"
    queue.settle(second, queue_verdict(queue, second))
    again = _take(accumulator, 200)
    header = read_header(again.payload)
    assert again is second
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 0)
    assert crc_is_valid(again.payload, 0, header)
    queue.settle(again, Verdict.DONE)
    assert _take(accumulator, 200).base_sequence == 1


def queue_verdict(queue: PartitionQueue, batch: OutgoingBatch) -> Verdict:
    return queue.verdict(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_an_id_the_broker_refuses_is_replaced_and_the_batch_is_sent_under_the_new_one() -> None:
    accumulator = _accumulator()
    _fill(accumulator, 1)
    batch = _take(accumulator)
    queue = accumulator.queue(PARTITION)
    queue.settle(batch, Verdict.RENEW)
    again = queue.take(Identity(8, 0))
    assert (again.identity, again.base_sequence) == (Identity(8, 0), 0)


def test_what_waits_for_delivery_timeout_ms_expires() -> None:
    accumulator = _accumulator(delivery_timeout_ms=1_000)
    _fill(accumulator, 1)
    _add(accumulator, b"late", now_ms=500)
    assert len(accumulator.expire(999)) == 0
    assert len(accumulator.expire(1_000)) == 1
    assert len(accumulator.expire(1_500)) == 1
    assert accumulator.is_empty


def test_a_record_above_max_request_size_is_refused() -> None:
    accumulator = _accumulator(max_request_size=1_000)
    with pytest.raises(KafkaError, match=r"max\.request\.size is 1000") as caught:
        _add(accumulator, b"x" * 1_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_prebuilt_batch_keeps_its_place_among_records() -> None:
    accumulator = _accumulator()
    _add(accumulator, b"before")
    payload = build_batch([Record(0, 5, None, b"one"), Record(1, 6, None, b"two")])
    completion: Future[RecordMetadata] = Future()
    accumulator.append_prebuilt(PARTITION, payload, completion, 0)
    _add(accumulator, b"after")
    values = [[record.value for record in read_records(_take(accumulator).payload)] for _ in range(3)]
    assert values == [[b"before"], [b"one", b"two"], [b"after"]]


def test_bytes_that_are_not_one_batch_are_refused() -> None:
    payload = build_batch([Record(0, 5, None, b"one")])
    with pytest.raises(KafkaError, match="not one whole batch"):
        _accumulator().append_prebuilt(PARTITION, payload + payload, Future(), 0)


def test_the_sticky_partitioner_moves_on_after_batch_size_bytes() -> None:
    sticky = StickyPartitioner(lambda count: 0, 100)
    chosen = [sticky.partition("orders", [0, 1, 2], 60) for _ in range(6)]
    assert chosen == [0, 0, 1, 1, 0, 0]


def test_the_sticky_partitioner_leaves_a_partition_that_is_not_available() -> None:
    sticky = StickyPartitioner(lambda count: 0, 1_000)
    assert sticky.partition("orders", [0, 1], 1) == 0
    assert sticky.partition("orders", [1], 1) == 1


def test_a_flush_names_what_it_waits_for_and_nothing_that_comes_later() -> None:
    accumulator = _accumulator(linger_ms=1_000_000)
    _add(accumulator, b"before")
    (batch,) = accumulator.begin_flush()
    later = _add(accumulator, b"after")
    _take(accumulator, 0).succeed(0, -1)
    assert batch.is_settled
    assert not later.done()
