"""The key index of a segment: its entries, its file, and the bytes that it refuses."""

from collections.abc import Sequence

import pytest
from crc32c import crc32c

from tailrace.model.key_ranges import SLOTS
from tailrace.storage.keys.batch_slots import BatchSlots
from tailrace.storage.keys.key_index import ENTRY_SIZE, HEAD_SIZE, KeyIndex
from testkit.records.batches import stored_batch

BASE = 1000


def slots_of(*batches: tuple[int, Sequence[int]], count: int = 2) -> BatchSlots:
    """Batches of `count` records at these offsets, with these slots; each slot's last offset is the batch's."""
    made = [stored_batch(offset, count) for offset, _ in batches]
    maps, last_offsets = bytearray(), [-1] * SLOTS
    for offset, slots in batches:
        maps += sum(1 << slot for slot in slots).to_bytes(32, "little")
        for slot in slots:
            last_offsets[slot] = offset + count - 1
    return BatchSlots([stored.header for stored in made], maps, last_offsets, bytes(made[-1].buffer[:61]))


def new_index(*, interval_bytes: int = 0, position: int = 0, end_offset: int = BASE) -> KeyIndex:
    return KeyIndex(BASE, position=position, end_offset=end_offset, interval_bytes=interval_bytes)


def full_index(*, interval_bytes: int = 0) -> KeyIndex:
    index = new_index(interval_bytes=interval_bytes)
    index.append(slots_of((1000, [3, 7]), (1002, [7])))
    index.append(slots_of((1010, [255]), (1012, [])))
    return index


def read_back(data: bytes, *, base_offset: int = BASE) -> KeyIndex | None:
    index = KeyIndex.from_head(data[:HEAD_SIZE], base_offset=base_offset, interval_bytes=0)
    if index is None or index.file_bytes != len(data) or not index.take_entries(data[HEAD_SIZE:]):
        return None
    return index


SIZE = stored_batch(BASE, 2).header.size_bytes


def test_an_index_has_the_last_offset_of_each_slot_and_the_entries_that_have_it() -> None:
    index = full_index()
    assert [index.last_offsets[slot] for slot in (3, 7, 255, 4)] == [1001, 1003, 1011, -1]
    assert (index.end_offset, index.end_position, len(index)) == (1014, 4 * SIZE, 4)
    assert index.last_with(1 << 7, 1014, most=9) == ((1002, SIZE, 2 * SIZE), 1014)
    assert index.last_with(1 << 7, 1002, most=9) == ((1000, 0, SIZE), 1002)
    assert index.last_with(1 << 3, 1014, most=3) == (None, 1002)
    assert index.last_with(1 << 4, 1014, most=9) == (None, BASE)
    assert index.next_with(1 << 255, 1001, most=9) == 1010
    assert index.next_with(1 << 255, 1011, most=9) == 1011
    assert index.next_with(1 << 255, 1000, most=1) == 1002
    assert index.next_with(1 << 3, 1002, most=9) == 1014
    assert index.next_with(1 << 3, 1014, most=9) == 1014


def test_small_batches_share_an_entry() -> None:
    index = full_index(interval_bytes=SIZE + 1)
    assert len(index) == 2
    assert index.last_with(1 << 7, 1014, most=9) == ((1000, 0, 2 * SIZE), 1014)
    assert index.next_with(1 << 7, 1000, most=9) == 1000
    assert index.next_with(1 << 3, 1002, most=9) == 1002  # it may be in any of the two


def test_a_segment_of_any_size_has_a_bounded_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.storage.keys.key_index._SHARE_BITS", 4)
    index = new_index()
    for number in range(2_000):
        index.append(slots_of((BASE + 2 * number, [number % SLOTS])))
    assert len(index) < 100, "16 entries for each doubling of the size, and those of the first batches"


def test_the_last_offsets_of_places_a_little_behind_the_end_are_remembered() -> None:
    index = new_index()
    for number in range(100):
        index.append(slots_of((BASE + 2 * number, [number % 2])))
    end = index.end_offset
    below = index.last_offsets_below(end - 20)
    assert below is not None
    assert list(below[:2]) == [end - 23, end - 21]
    assert index.last_offsets_below(end - 21) is None  # within a batch
    assert index.last_offsets_below(end - 150) is None
    assert index.last_offsets_below(end) == index.last_offsets


def test_earlier_batches_come_before_and_older_last_offsets_stay_behind() -> None:
    later = new_index(position=2 * SIZE, end_offset=1004)
    later.append(slots_of((1010, [7])))
    earlier = new_index()
    earlier.append(slots_of((1000, [3, 7]), (1002, [7])))
    assert (later.start_offset, later.start_position) == (1010, 2 * SIZE)
    later.prepend(earlier)
    assert (later.start_offset, later.start_position, len(later)) == (BASE, 0, 3)
    assert [later.last_offsets[slot] for slot in (3, 7)] == [1001, 1011]
    assert later.next_with(1 << 7, 1004, most=9) == 1004  # in a gap: the batch before it may hold it
    assert later.last_with(1 << 3, 1012, most=9) == ((1000, 0, SIZE), 1012)


def test_the_file_has_all_of_it() -> None:
    index = full_index()
    data = index.to_bytes()
    assert len(data) == index.file_bytes == HEAD_SIZE + 4 * ENTRY_SIZE
    again = read_back(data)
    assert again is not None
    assert again.is_saved
    assert again.to_bytes() == data
    assert again.last_offsets == index.last_offsets
    assert again.last_batch == (3 * SIZE, bytes(stored_batch(1012, 2).buffer[:61]))
    again.append(slots_of((1014, [9])))
    assert not again.is_saved


def test_the_last_offsets_stay_when_the_entries_are_dropped() -> None:
    index = full_index()
    data = index.to_bytes()
    index.drop_entries()
    assert (len(index), index.last_offsets[255], index.has_entries) == (4, 1011, False)
    assert index.take_entries(data[HEAD_SIZE:])
    assert index.to_bytes() == data


def test_every_changed_byte_is_found() -> None:
    data = full_index().to_bytes()
    for at in range(len(data)):
        for flip in (1, 0x80):
            changed = bytearray(data)
            changed[at] ^= flip
            assert read_back(bytes(changed)) is None, at


def test_a_file_that_is_cut_short_or_too_long_is_refused() -> None:
    data = full_index().to_bytes()
    assert not any(read_back(data[:size]) for size in range(len(data)))
    assert read_back(data + b"\0") is None
    assert read_back(b"") is None


def test_the_file_of_another_segment_is_refused() -> None:
    assert read_back(full_index().to_bytes(), base_offset=BASE + 1) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("end_position", 4 * SIZE + 1),
        ("_last_position", 2 * SIZE),
        ("_last_header", bytes(stored_batch(990, 2).buffer[:61])),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(field: str, value: object) -> None:
    index = full_index()
    setattr(index, field, value)
    assert read_back(index.to_bytes()) is None


def test_a_head_whose_checksum_is_right_may_hold_anything() -> None:
    data = full_index().to_bytes()
    refused = 0
    for at in range(HEAD_SIZE - 4):
        for value in (0, 0x7F, 0xFF):
            changed = bytearray(data)
            changed[at] = value
            changed[HEAD_SIZE - 4 : HEAD_SIZE] = crc32c(bytes(changed[: HEAD_SIZE - 4])).to_bytes(4, "big")
            refused += read_back(bytes(changed)) is None
    assert refused > HEAD_SIZE


def test_a_last_offset_outside_of_the_segment_is_refused() -> None:
    for offset in (BASE - 1, 1014, -2):
        index = full_index()
        index.last_offsets[4] = offset
        assert read_back(index.to_bytes()) is None


def test_key_index_entries_that_do_not_rise_are_refused() -> None:
    for numbers in ("_offsets", "_positions"):
        for at, value in ((1, 0), (0, 99), (3, 1 << 31)):
            index = full_index()
            getattr(index, numbers)[at] = value
            assert read_back(index.to_bytes()) is None
