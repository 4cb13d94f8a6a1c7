"""Records of single batches that compaction keeps: tombstones, transactions, producers, unreadable batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.steps import result_of
from tailrace.protocol.records.batch import BatchHeader, read_header, seal
from tailrace.protocol.records.control import ControlType, EndTransactionMarker, build_marker, read_marker
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.storage.compaction.batch_filter import AbortedTransactions, BatchFilter, KeyCollector, TransactionEnds

NOW_MS = 10_000
RETENTION_MS = 500
P, Q = 7, 8


def batch(offset: int, *pairs: tuple[bytes | None, bytes | None], producer_id: int = -1, **options: int) -> bytes:
    made = [Record(0, NOW_MS - 10 + at, key, value, (("h", b"x"),)) for at, (key, value) in enumerate(pairs)]
    producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0} if producer_id >= 0 else {}
    return bytes(build_batch(made, base_offset=offset, **producer, **options))  # type: ignore[arg-type]


def sent(offset: int, *pairs: tuple[bytes | None, bytes | None], producer_id: int = P) -> bytes:
    return batch(offset, *pairs, producer_id=producer_id, is_transactional=True)


def marker(offset: int, kind: ControlType, producer_id: int = P) -> bytes:
    value = EndTransactionMarker(kind, 0)
    return bytes(build_marker(value, producer_id=producer_id, producer_epoch=0, timestamp=NOW_MS, base_offset=offset))


def compacted(
    stored: list[bytes], *, now_ms: int = NOW_MS, last: tuple[int, ...] = (), first_dirty: int = 0
) -> list[bytes]:
    """The batches after one compaction; `last` are the offsets of the batches that are the last of their producer."""
    collector = KeyCollector(first_dirty, memory_bytes=1 << 20, ends=TransactionEnds())
    dirty = [(content, read_header(content)) for content in stored if read_header(content).last_offset >= first_dirty]
    for content, header in dirty:
        if header.is_transactional and header.records_count:
            found = read_marker(content, header)
            collector.ends.add(header, None if found is None else found.type)
    if dirty:
        collector.ends.end_at(dirty[-1][1].end_offset)
    for content, header in dirty:
        result_of(collector.add(content, header))

    def is_last(header: BatchHeader) -> bool:
        return header.base_offset in last

    filter_ = BatchFilter(collector, is_last_of_producer=is_last, now_ms=now_ms, delete_retention_ms=RETENTION_MS)
    rewritten = [result_of(filter_.rewrite(content, read_header(content), keep_header=False)) for content in stored]
    return [bytes(content) for content in rewritten if content is not None]


def values(stored: list[bytes]) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        for content in stored
        if not read_header(content).is_control
        for record in read_records(content)
    ]


def test_a_batch_of_which_everything_stays_is_the_same_bytes() -> None:
    stored = [batch(0, (b"a", b"1"), (b"b", b"2"))]
    assert compacted(stored) == stored


@pytest.mark.parametrize("codec", range(5))
def test_a_record_that_stays_keeps_offset_time_value_and_headers(codec: int) -> None:
    stored = [batch(10, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), codec=codec), batch(14, (b"c", b"5"))]
    first, _ = after = compacted(stored)
    assert read_records(first) == [record for record in read_records(stored[0]) if record.offset in (11, 12)]
    header, original = read_header(first), read_header(stored[0])
    assert (header.base_offset, header.last_offset, header.codec) == (10, 13, original.codec)
    assert header.max_timestamp == NOW_MS - 8
    assert values(after) == [(11, b"2"), (12, b"3"), (14, b"5")]


def test_a_record_without_a_key_goes() -> None:
    assert values(compacted([batch(0, (None, b"1"), (b"a", b"2"))])) == [(1, b"2")]


@pytest.mark.parametrize("has_append_time", [False, True])
def test_a_tombstone_stays_until_the_horizon_that_its_first_compaction_sets(has_append_time: bool) -> None:
    append_time = {"log_append_time": NOW_MS} if has_append_time else {}
    stored = [batch(0, (b"a", b"1"), (b"b", b"2")), batch(2, (b"a", None), (b"c", b"3"), **append_time)]
    once = compacted(stored)
    assert values(once) == [(1, b"2"), (2, None), (3, b"3")]
    header = read_header(once[1])
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW_MS + RETENTION_MS
    assert read_records(once[1]) == read_records(stored[1])
    just_before = compacted(once, now_ms=NOW_MS + RETENTION_MS - 1)
    assert just_before == once, "the horizon is set once"
    assert values(compacted(just_before, now_ms=NOW_MS + RETENTION_MS)) == [(1, b"2"), (3, b"3")]


def test_records_of_an_aborted_transaction_go_and_replace_nothing() -> None:
    stored = [batch(0, (b"a", b"old")), sent(1, (b"a", b"never")), marker(2, ControlType.ABORT)]
    assert values(compacted(stored)) == [(0, b"old")]


@given(
    lengths=st.lists(st.integers(1, 5), max_size=20),
    producer_id=st.sampled_from((P, Q)),
    offset=st.integers(0, 150),
)
def test_a_batch_is_aborted_if_it_lies_in_a_transaction_of_its_producer_that_was(
    lengths: list[int], producer_id: int, offset: int
) -> None:
    aborted, ranges, start = AbortedTransactions(), [], 0
    for length in lengths:
        ranges.append((start, start + length))
        aborted.add(P, start, start + length)
        start += length + 2
    is_within = producer_id == P and any(first <= offset < marker for first, marker in ranges)
    assert aborted.has(read_header(sent(offset, (b"a", b"1"), producer_id=producer_id))) is is_within


def test_records_of_a_committed_transaction_replace_earlier_ones() -> None:
    stored = [
        batch(0, (b"a", b"old")),
        sent(1, (b"a", b"new")),
        sent(2, (b"b", b"never"), producer_id=Q),
        marker(3, ControlType.COMMIT),
        marker(4, ControlType.ABORT, Q),
    ]
    assert values(compacted(stored)) == [(1, b"new")]


def test_nothing_at_or_above_an_open_transaction_is_touched() -> None:
    stored = [
        batch(0, (b"a", b"1")),
        batch(1, (b"a", b"2")),
        sent(2, (b"a", b"3")),
        batch(3, (b"a", b"4"), (None, b"")),
    ]
    assert compacted(stored) == stored[2:], "a record below may go, if a later record that counts has its key"


def test_the_ends_of_transactions_serve_the_next_pass() -> None:
    ends = TransactionEnds()
    for content in (sent(0, (b"a", b"1")), sent(1, (b"b", b"1"), producer_id=Q), marker(2, ControlType.ABORT)):
        header, found = read_header(content), read_marker(content, read_header(content))
        ends.add(header, None if found is None else found.type)
    ends.end_at(3)
    assert ends.undecided_from == 1
    assert ends.is_visible(read_header(sent(0, (b"c", b"1"), producer_id=Q))), "it was over before the open transaction"
    assert not ends.is_visible(read_header(sent(0, (b"a", b"1"))))
    ends.go_on()
    assert ends.undecided_from is None
    last = marker(3, ControlType.COMMIT, Q)
    ends.add(read_header(last), ControlType.COMMIT)
    ends.end_at(4)
    assert (ends.undecided_from, ends.end_offset) == (None, 4)
    assert KeyCollector(2, memory_bytes=1000, ends=ends).ends is ends


def test_a_marker_goes_a_retention_after_the_last_batch_of_its_transaction() -> None:
    stored = [sent(0, (b"a", b"1")), marker(1, ControlType.COMMIT), batch(2, (b"a", b"2"))]
    once = compacted(stored)
    assert once == stored[1:], "its transaction was there a moment ago"
    twice = compacted(once)
    assert read_header(twice[0]).base_timestamp == NOW_MS + RETENTION_MS
    assert read_records(twice[0]) == read_records(stored[1])
    assert compacted(twice, now_ms=NOW_MS + RETENTION_MS - 1) == twice
    assert compacted(twice, now_ms=NOW_MS + RETENTION_MS) == stored[2:]


def test_the_last_batch_of_a_producer_stays_without_its_records() -> None:
    stored = [batch(0, (b"a", b"1"), (b"a", b"2"), producer_id=P, codec=1), batch(2, (b"a", b"3"))]
    emptied, _ = once = compacted(stored, last=(0,))
    header, original = read_header(emptied), read_header(stored[0])
    assert read_records(emptied) == []
    assert (header.records_count, header.codec, header.size_bytes) == (0, 0, 61)
    assert (header.last_offset, header.producer_id, header.last_sequence) == (1, P, original.last_sequence)
    assert compacted(once, last=(0,)) == once
    assert compacted(once) == stored[1:]


def test_a_batch_that_cannot_be_read_stays_as_it_is() -> None:
    unreadable = bytearray(batch(0, (b"a", b"1")))
    unreadable[61:64] = b"\xff\xff\xff"
    seal(unreadable)
    stored = [bytes(unreadable), batch(1, (b"a", b"2"))]
    assert compacted(stored) == stored


def test_a_tombstone_whose_time_cannot_be_written_beside_a_horizon_stays_for_good() -> None:
    ancient = bytearray(build_batch([Record(0, -(2**63), b"a", None)]))
    stored = [bytes(ancient)]
    assert compacted(stored) == stored
    assert compacted(stored, now_ms=10**15) == stored
