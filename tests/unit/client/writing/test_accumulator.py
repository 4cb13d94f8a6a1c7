"""Records become batches per partition; when a batch is ready, and when it expires."""

from concurrent.futures import Future

import pytest

from tailrace.client.transactions.producer_transaction import Identity
from tailrace.client.writing.accumulator import Accumulator
from tailrace.client.writing.outgoing import OutgoingBatch, RecordMetadata
from tailrace.client.writing.partition_choice import StickyPartitioner
from tailrace.client.writing.partition_queue import BatchOutcome, PartitionQueue
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch, read_records

PARTITION = TopicPartition("orders", 0)
IDENTITY = Identity(7, 0)


def _accumulator(**options: int) -> Accumulator:
    usual = {"batch_size": 200, "linger_ms": 5, "delivery_timeout_ms": 120_000, "max_request_size": 1_048_576}
    return Accumulator(**{**usual, **options}, codec=Codec.NONE)


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


def test_an_open_batch_outgrows_batch_size_while_nothing_more_may_be_sent() -> None:
    accumulator = _accumulator()
    _fill(accumulator, 1)
    _take(accumulator)
    for _ in range(20):
        _add(accumulator, b"x" * 100)
    queue = accumulator.queue(PARTITION)
    assert not queue.waiting
    assert queue.open is not None
    assert queue.open.count == 20


def test_batches_expire_after_delivery_timeout_ms() -> None:
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
    values = []
    for _ in range(3):
        batch = _take(accumulator)
        values.append([record.value for record in read_records(batch.payload)])
        accumulator.queue(PARTITION).settle(batch, BatchOutcome.DONE, not_before_ms=0)
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


def test_a_flush_waits_for_earlier_batches_only() -> None:
    accumulator = _accumulator(linger_ms=1_000_000)
    _add(accumulator, b"before")
    (batch,) = accumulator.begin_flush()
    later = _add(accumulator, b"after")
    _take(accumulator, 0).succeed(0, -1)
    assert batch.is_complete
    assert not later.done()


def test_a_record_that_cannot_be_encoded_leaves_no_empty_batch() -> None:
    accumulator = _accumulator()
    with pytest.raises(TypeError):
        _add(accumulator, "text")  # type: ignore[arg-type]
    assert accumulator.is_empty
    _add(accumulator, b"bytes")
    batch = _take(accumulator)
    assert [record.value for record in read_records(batch.payload)] == [b"bytes"]


def test_a_partition_that_was_served_comes_after_the_others() -> None:
    """Otherwise partitions with enough records to fill every request would hold back all other partitions."""
    accumulator = _accumulator()
    partitions = [TopicPartition("orders", number) for number in range(3)]
    for partition in partitions:
        accumulator.append(partition, 1_000, None, b"v", (), 25, Future(), 0)
    first = next(accumulator.ready(100))
    accumulator.served(first)
    assert [queue.topic_partition.partition for queue in accumulator.ready(100)] == [1, 2, 0]
