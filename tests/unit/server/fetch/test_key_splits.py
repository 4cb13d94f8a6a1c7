"""Parts of split chunks wait for their readers within bounds, whatever ranges are asked for (KIP-X)."""

import pytest

from tailrace.model.key_ranges import KeyRange, of_slots
from tailrace.server.fetch.key_splits import (
    MOST_RANGES,
    MOST_READERS,
    MOST_READERS_OF_SLOT,
    MOST_REMEMBERED,
    READ_WITHIN_MS,
    KeySplits,
    Part,
    Ranges,
)

ORDERS, PAYMENTS = "orders", "payments"
LOW: Ranges = (of_slots(0, 127),)
HIGH: Ranges = (of_slots(128, 255),)


@pytest.fixture
def splits() -> KeySplits:
    return KeySplits(max_bytes=10_000)


def overlapping(number: int) -> Ranges:
    return (KeyRange(number, 1_000_000),)


def part(start: int, end: int, size_bytes: int = 0) -> Part:
    return Part(start, end, bytes(size_bytes))


def test_a_chunk_is_split_for_its_reader_first_and_for_the_others(splits: KeySplits) -> None:
    for ranges in (LOW, HIGH):
        splits.being_read(ORDERS, ranges, 0, 0)
    splits.being_read(PAYMENTS, overlapping(1), 0, 0)
    assert splits.wanted(ORDERS, LOW, 100) == [LOW, HIGH]
    assert splits.wanted(ORDERS, HIGH, 100) == [HIGH, LOW]


def test_a_chunk_is_not_split_for_readers_that_are_behind_its_end(splits: KeySplits) -> None:
    splits.being_read(ORDERS, LOW, 0, 0)
    splits.being_read(ORDERS, HIGH, 50, 0)
    assert splits.wanted(ORDERS, LOW, 50) == [LOW]
    assert splits.wanted(ORDERS, LOW, 51) == [LOW, HIGH]
    splits.keep(ORDERS, HIGH, part(40, 50, 100))
    assert splits.kept_bytes == 0


def test_a_key_split_copies_no_record_for_more_than_a_few_others(splits: KeySplits) -> None:
    for number in range(50):
        splits.being_read(ORDERS, overlapping(number), 0, number)
    splits.being_read(ORDERS, HIGH, 0, 50)
    latest = [overlapping(number) for number in range(49, 49 - MOST_READERS_OF_SLOT, -1)]
    assert splits.wanted(ORDERS, LOW, 100) == [LOW, HIGH, *latest]


def test_a_chunk_is_split_for_so_many_ranges_of_others(splits: KeySplits) -> None:
    many: Ranges = tuple(KeyRange(2 * number, 2 * number) for number in range(MOST_RANGES))
    splits.being_read(ORDERS, HIGH, 0, 0)
    splits.being_read(ORDERS, many, 0, 1)
    assert splits.wanted(ORDERS, LOW, 100) == [LOW, many]


def test_ranges_that_are_not_named_any_more_are_forgotten(splits: KeySplits) -> None:
    splits.being_read(ORDERS, LOW, 0, 0)
    splits.being_read(ORDERS, HIGH, 0, 0)
    splits.keep(ORDERS, LOW, part(0, 5, 100))
    splits.being_read(ORDERS, HIGH, 0, READ_WITHIN_MS + 1)
    assert splits.wanted(ORDERS, HIGH, 100) == [HIGH]
    assert splits.kept_bytes == 0
    splits.keep(ORDERS, LOW, part(0, 5, 100))
    assert splits.kept_bytes == 0


def test_so_many_readers_of_a_partition_are_remembered(splits: KeySplits) -> None:
    for number in range(MOST_READERS + 1):
        splits.being_read(ORDERS, (KeyRange(number, number),), 0, number)
    splits.keep(ORDERS, (KeyRange(0, 0),), part(0, 5, 100))
    assert splits.kept_bytes == 0
    splits.keep(ORDERS, (KeyRange(1, 1),), part(0, 5, 100))
    assert splits.kept_bytes > 0


def test_so_many_ranges_of_all_partitions_are_remembered(splits: KeySplits) -> None:
    """A client may name other ranges in each of its fetches."""
    for number in range(200):
        many = tuple(KeyRange(2 * place, 2 * place + number % 2) for place in range(number, number + 1_000))
        splits.being_read(f"topic-{number % 150}", many, 0, 0)
        assert splits.remembered_ranges <= MOST_REMEMBERED
    assert splits.remembered_ranges == MOST_REMEMBERED
    assert len(splits) <= 100
    for number in range(150):
        splits.forget(f"topic-{number}")
    assert (splits.remembered_ranges, len(splits)) == (0, 0)


def test_a_partition_that_is_not_read_any_more_leaves_when_another_comes(splits: KeySplits) -> None:
    splits.being_read(ORDERS, LOW, 0, 0)
    splits.keep(ORDERS, LOW, part(0, 5, 100))
    splits.being_read(PAYMENTS, LOW, 0, READ_WITHIN_MS + 1)
    assert (len(splits), splits.kept_bytes) == (1, 0)


def test_the_partition_that_was_read_least_recently_loses_key_splits(splits: KeySplits) -> None:
    for partition in (ORDERS, PAYMENTS):
        splits.being_read(partition, LOW, 0, 0)
        for start in range(0, 40, 10):
            splits.keep(partition, LOW, part(start, start + 10, 1_000))
    splits.being_read(ORDERS, LOW, 0, 1)
    assert splits.kept_bytes <= 10_000
    for start in range(40, 80, 10):
        splits.keep(ORDERS, LOW, part(start, start + 10, 1_000))
    assert splits.kept_bytes <= 10_000
    assert splits.find(PAYMENTS, LOW, 0) is None
    assert splits.find(ORDERS, LOW, 79) == part(70, 80, 1_000)


def test_a_part_is_found_by_its_offsets_and_gone_behind_them(splits: KeySplits) -> None:
    splits.being_read(ORDERS, LOW, 0, 0)
    splits.keep(ORDERS, LOW, part(0, 5, 100))
    splits.keep(ORDERS, LOW, part(10, 15, 100))
    assert splits.find(ORDERS, LOW, 4) == part(0, 5, 100)
    assert splits.find(ORDERS, LOW, 5) is None
    assert splits.find(ORDERS, LOW, 10) == part(10, 15, 100)
    assert splits.find(ORDERS, LOW, 4) is None
    assert splits.find(ORDERS, HIGH, 10) is None


def test_stretches_without_records_are_one_part(splits: KeySplits) -> None:
    splits.being_read(ORDERS, LOW, 0, 0)
    for start in range(1_000):
        splits.keep(ORDERS, LOW, part(start, start + 1))
    assert splits.find(ORDERS, LOW, 0) == part(0, 1_000)


def test_no_key_split_of_a_forgotten_partition_is_kept(splits: KeySplits) -> None:
    splits.being_read(ORDERS, LOW, 0, 0)
    splits.keep(ORDERS, LOW, part(0, 5, 100))
    splits.forget(ORDERS)
    assert splits.kept_bytes == 0
    assert splits.find(ORDERS, LOW, 0) is None
    assert splits.wanted(ORDERS, LOW, 100) == [LOW]


def test_parts_that_are_dropped_unread_are_counted_with_the_reason(splits: KeySplits) -> None:
    for partition in (ORDERS, PAYMENTS):
        splits.being_read(partition, LOW, 0, 0)
    splits.keep(ORDERS, LOW, part(0, 5, 6_000))
    splits.keep(ORDERS, LOW, part(5, 9, 1_000))
    kept = splits.kept_bytes
    assert (splits.kept_parts, splits.displaced.parts, splits.unread.parts) == (2, 0, 0)
    splits.keep(PAYMENTS, LOW, part(0, 5, 6_000))
    assert (splits.kept_parts, splits.displaced.parts) == (2, 1)
    assert 6_000 <= splits.displaced.size_bytes < kept
    assert splits.find(PAYMENTS, LOW, 5) is None, "its reader has come"
    assert (splits.kept_parts, splits.displaced.parts, splits.unread.parts) == (1, 1, 0)
    splits.forget(ORDERS)
    assert (splits.kept_parts, splits.kept_bytes, splits.unread.parts) == (0, 0, 1)
    assert splits.displaced.size_bytes + splits.unread.size_bytes == kept
