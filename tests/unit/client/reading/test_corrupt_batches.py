"""Batches that cannot be decoded, between batches that can: they raise, or are stepped over and named."""

import gzip
import logging
from collections.abc import Callable

import pytest

from tailrace.client.reading.assigned_partitions import AssignedPartitions
from tailrace.client.reading.corrupt_batches import LOGGER, CorruptBatches
from tailrace.client.reading.fetching import FetchOptions, PartitionFetch, read_partition
from tailrace.model.errors import CorruptRecords, ErrorCode
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import AbortedTransaction, PartitionData
from tailrace.protocol.records.batch import HEADER_SIZE, seal
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.corrupt_batch import corrupt_batch
from tailrace.protocol.records.record import Record, build_batch

ORDERS = TopicPartition("orders", 0)
ALL_KEYS = (KeyRange(0, 2**32 - 1),)


def _batch(base_offset: int, count: int = 2, *, codec: int = Codec.NONE, producer_id: int = -1) -> bytearray:
    records = [Record(0, 1, b"k", b"v%d" % (base_offset + number)) for number in range(count)]
    return build_batch(
        records,
        base_offset=base_offset,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )


def _marker(offset: int, producer_id: int) -> bytearray:
    """An abort marker."""
    return build_batch(
        [Record(0, 1, b"\0\0\0\0", b"")],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )


def _packed(content: bytes, codec: int) -> bytearray:
    """A batch of two records at offset 2 whose records are these bytes."""
    batch = _batch(2)[:HEADER_SIZE] + content
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] |= codec
    seal(batch)
    return batch


def _patched(position: int, value: bytes, *, is_sealed: bool = True) -> bytearray:
    batch = _batch(2)
    batch[position : position + len(value)] = value
    if is_sealed:
        seal(batch)
    return batch


CORRUPT: dict[str, Callable[[], bytearray]] = {
    "checksum": lambda: _patched(HEADER_SIZE + 8, b"?", is_sealed=False),
    "format": lambda: _patched(16, b"\1"),
    "count above the offsets": lambda: _patched(57, (3).to_bytes(4, "big")),
    "count below the records": lambda: _patched(57, (1).to_bytes(4, "big")),
    "last offset delta": lambda: _patched(23, b"\xff\xff\xff\xff"),
    "base offset": lambda: _patched(0, b"\xff" * 8),
    "record": lambda: _patched(HEADER_SIZE, b"\x7f"),
    "codec": lambda: _patched(22, b"\7"),
    "gzip": lambda: _packed(b"\x1f\x8brubbish", Codec.GZIP),
    "snappy": lambda: _packed(b"\xff\xff\xff\xff\x0f", Codec.SNAPPY),
    "lz4": lambda: _packed(b"rubbish", Codec.LZ4),
    "zstd": lambda: _packed(b"\x28\xb5\x2f\xfdrubbish", Codec.ZSTD),
    "records of gzip": lambda: _packed(gzip.compress(b"rubbish"), Codec.GZIP),
}


def _partitions(corrupt: CorruptBatches, ranges: tuple[KeyRange, ...] = ()) -> AssignedPartitions:
    assigned = AssignedPartitions(corrupt)
    assigned.assign({ORDERS: ranges})
    assigned.start_at(ORDERS, 0, valid_under=0)
    return assigned


def _data(records: bytes, aborted: tuple[AbortedTransaction, ...] | None = None) -> PartitionData:
    return PartitionData(
        partition_index=0, high_watermark=100, last_stable_offset=100, aborted_transactions=aborted, records=records
    )


def _answer(
    assigned: AssignedPartitions, records: bytes, aborted: tuple[AbortedTransaction, ...] | None = None
) -> None:
    """The next fetch brings these bytes."""
    partition = assigned.by_name[ORDERS]
    want = PartitionFetch(ORDERS, ZERO_TOPIC_ID, partition.position.offset, 0, 1 << 20, partition.key_ranges)
    data = _data(records, aborted)
    fetched = read_partition(want, data, FetchOptions(0, 1, 1 << 20, 0 if aborted is None else 1, ""))
    assert fetched.fault is None
    partition.store(fetched)
    assigned.note(ORDERS)


def _offsets(assigned: AssignedPartitions, limit: int = 100) -> list[int]:
    return [record.offset for _, record in assigned.take(limit)]


@pytest.mark.parametrize("ranges", [(), ALL_KEYS], ids=["all", "key ranges"])
@pytest.mark.parametrize("name", CORRUPT)
def test_a_corrupt_batch_raises_behind_the_good_records_and_again(name: str, ranges: tuple[KeyRange, ...]) -> None:
    assigned = _partitions(CorruptBatches(), ranges)
    _answer(assigned, bytes(_batch(0) + CORRUPT[name]() + _batch(4)))
    assert _offsets(assigned) == [0, 1]
    for _ in range(2):
        with pytest.raises(
            CorruptRecords, match=r'orders-0: a batch of \d+ bytes at offset.* on_corrupt="skip"'
        ) as fault:
            assigned.take(100)
        assert assigned.position(ORDERS) == 2
    assert fault.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assigned.seek(ORDERS, 4)
    _answer(assigned, bytes(_batch(4)))
    assert _offsets(assigned) == [4, 5]


@pytest.mark.parametrize("ranges", [(), ALL_KEYS], ids=["all", "key ranges"])
@pytest.mark.parametrize("name", CORRUPT)
def test_a_skipped_batch_is_passed_exactly_counted_and_named(
    name: str, ranges: tuple[KeyRange, ...], caplog: pytest.LogCaptureFixture
) -> None:
    corrupt = CorruptBatches("skip")
    assigned = _partitions(corrupt, ranges)
    bad = CORRUPT[name]()
    _answer(assigned, bytes(_batch(0) + bad + _batch(4)))
    assert _offsets(assigned, limit=3) == [0, 1, 4]
    assert assigned.position(ORDERS) == 5
    assert _offsets(assigned) == [5]
    assert corrupt.batches == 1
    assert corrupt.size_bytes == len(bad)
    assert 1 <= corrupt.offsets <= 2
    (line,) = caplog.messages
    assert line.startswith(f"orders-0: a batch of {len(bad)} bytes at offset")
    assert "is skipped: " in line
    assert {record.name for record in caplog.records} == {LOGGER}


@pytest.mark.parametrize("name", sorted(CORRUPT.keys() - {"base offset", "last offset delta"}))
def test_a_skipped_batch_at_the_end_of_an_answer_leaves_the_position_behind_it(name: str) -> None:
    corrupt = CorruptBatches("skip")
    assigned = _partitions(corrupt)
    _answer(assigned, bytes(_batch(0) + CORRUPT[name]()))
    assert _offsets(assigned) == [0, 1]
    assert (assigned.position(ORDERS), assigned.by_name[ORDERS].position.offset, corrupt.offsets) == (4, 4, 2)


def test_a_batch_whose_length_is_damaged_is_not_stepped_over() -> None:
    """The batch's end is not known: the good batches before it are returned, then the fetch itself has a fault."""
    assigned = _partitions(CorruptBatches("skip"))
    bad = _patched(8, (5).to_bytes(4, "big"), is_sealed=False)
    _answer(assigned, bytes(_batch(0) + bad))
    assert _offsets(assigned) == [0, 1]
    want = PartitionFetch(ORDERS, ZERO_TOPIC_ID, 2, 0, 1 << 20)
    fetched = read_partition(want, _data(bytes(bad)), FetchOptions(0, 1, 1, 0, ""))
    assert fetched.fault is not None
    assert fetched.fault.code == ErrorCode.CORRUPT_MESSAGE


def test_a_header_that_claims_many_offsets_skips_no_batch_that_follows() -> None:
    corrupt = CorruptBatches("skip")
    assigned = _partitions(corrupt)
    bad = _patched(23, (1_000_000).to_bytes(4, "big"))
    bad[16] = 1
    _answer(assigned, bytes(_batch(0) + bad + _batch(4)))
    assert _offsets(assigned) == [0, 1, 4, 5]
    assert corrupt.offsets == 2


def test_gaps_and_aborted_transactions_are_as_without_a_corrupt_batch() -> None:
    """Compaction has left a gap before the batch and behind it; the marker of the abort comes behind the batch."""
    assigned = _partitions(CorruptBatches("skip"))
    records = _batch(1, producer_id=9) + CORRUPT["gzip"]() + _batch(7) + _marker(9, 9) + _batch(10, producer_id=9)
    records[len(_batch(1, producer_id=9)) + 7] = 5  # the base offset of the corrupt batch
    _answer(assigned, bytes(records), (AbortedTransaction(producer_id=9, first_offset=1),))
    assert _offsets(assigned) == [7, 8, 10, 11]


def test_a_corrupt_batch_of_an_aborted_transaction_is_nobodys() -> None:
    assigned = _partitions(CorruptBatches())
    bad = _batch(2, producer_id=9)
    bad[-1] ^= 1
    records = _batch(0, producer_id=9) + bad + _marker(4, 9) + _batch(5)
    _answer(assigned, bytes(records), (AbortedTransaction(producer_id=9, first_offset=0),))
    assert _offsets(assigned) == [5, 6]


def test_a_corrupt_marker_ends_the_aborted_transaction_if_it_is_skipped() -> None:
    marker = _marker(2, 9)
    marker[-1] ^= 1
    records = bytes(_batch(0, producer_id=9) + marker + _batch(3, producer_id=9))
    aborted = (AbortedTransaction(producer_id=9, first_offset=0),)
    skipping = _partitions(CorruptBatches("skip"))
    _answer(skipping, records, aborted)
    assert _offsets(skipping) == [3, 4]
    raising = _partitions(CorruptBatches())
    _answer(raising, records, aborted)
    with pytest.raises(CorruptRecords, match="at offset 2 cannot be read"):
        raising.take(100)


def test_lines_are_bounded_and_none_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 0
    corrupt = CorruptBatches("skip", now_ms=lambda: now_ms)
    bad = CORRUPT["gzip"]()
    batch = corrupt_batch(bad, 0, len(bad), CorruptRecords("rubbish"))
    for _ in range(1_000):
        corrupt.meet(ORDERS, batch)
    assert len(caplog.messages) == 20
    now_ms = 31_000
    corrupt.meet(ORDERS, batch)
    assert caplog.messages[20] == "980 more batches that cannot be read are skipped"
    assert len(caplog.messages) == 22
    for _ in range(30):
        corrupt.meet(ORDERS, batch)
    corrupt.flush()
    assert caplog.messages[-1] == "11 more batches that cannot be read are skipped"
    assert corrupt.batches == 1_031
    assert all(record.levelno == logging.WARNING for record in caplog.records)
