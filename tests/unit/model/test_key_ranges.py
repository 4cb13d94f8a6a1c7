"""Ranges of key hashes: the vectors of Kafka's murmur2, blocks of offsets, slots, and what is no range."""

import pytest

from tailrace.model.key_ranges import (
    HASH_SPACE,
    SLOT_HASHES,
    WHOLE,
    KeyRange,
    contains,
    fault_of,
    hash_of,
    joined,
    of_slots,
    slot_of,
)


def test_the_hash_of_a_key_is_kafkas_read_unsigned() -> None:
    assert hash_of(b"21", 7) == 2**32 - 973932308
    assert hash_of(b"abc", 7) == 479470107
    assert hash_of(b"", 7) == 275646681, "an empty key is a key"


def test_records_without_a_key_share_the_hash_of_their_block_and_spread() -> None:
    assert hash_of(None, 0) == hash_of(None, 63) != hash_of(None, 64)
    assert hash_of(None, 0) != hash_of(b"", 0)
    slots = [slot_of(hash_of(None, 64 * block)) for block in range(25_600)]
    assert all(50 < slots.count(slot) < 160 for slot in range(256))


def test_slots_are_the_highest_bits() -> None:
    assert slot_of(0) == 0
    assert slot_of(SLOT_HASHES - 1) == 0
    assert slot_of(HASH_SPACE - 1) == 255
    assert of_slots(0, 255) == WHOLE
    assert of_slots(3, 4) == KeyRange(3 * SLOT_HASHES, 5 * SLOT_HASHES - 1)


@pytest.mark.parametrize(
    "ranges",
    [
        [KeyRange(5, 4)],
        [KeyRange(-1, 4)],
        [KeyRange(0, HASH_SPACE)],
        [KeyRange(0, 10), KeyRange(10, 20)],
        [KeyRange(7, 7), KeyRange(0, 100)],
    ],
)
def test_bad_ranges_have_a_fault(ranges: list[KeyRange]) -> None:
    assert fault_of(ranges)


def test_ranges_side_by_side_are_valid_and_join() -> None:
    ranges = [KeyRange(11, 20), KeyRange(0, 10), KeyRange(30, 30)]
    assert fault_of(ranges) is None
    assert joined(ranges) == (KeyRange(0, 20), KeyRange(30, 30))
    assert joined([KeyRange(0, 100), KeyRange(5, 6)]) == (KeyRange(0, 100),)
    assert joined([]) == ()
    assert contains(ranges, 30)
    assert not contains(ranges, 29)
