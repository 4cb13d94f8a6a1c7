"""Moves of a group's progress between a topic and its views, record by record: a move changes no record's state."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.admin.group_moves import SlotProgress, of_slot, united
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.key_ranges import HASH_SPACE, KeyRange
from tailrace.model.views import key_range_of

CELLS = 8
CELL = HASH_SPACE // CELLS
OFFSETS = 12
FAN_OUTS = st.sampled_from([2, 4, 8])


class LoggedRecord(NamedTuple):
    """The offset and the key hash of a record of the log."""

    offset: int
    key_hash: int


@st.composite
def rectangles(draw: st.DrawFn) -> Rectangle:
    first_offset, last_offset = sorted((draw(st.integers(0, OFFSETS - 1)), draw(st.integers(0, OFFSETS - 1))))
    first, last = sorted((draw(st.integers(0, CELLS - 1)), draw(st.integers(0, CELLS - 1))))
    return Rectangle(first_offset, last_offset, first * CELL, (last + 1) * CELL - 1)


LOGS = st.lists(st.one_of(st.none(), st.integers(0, CELLS - 1)), max_size=OFFSETS).map(
    lambda cells: [LoggedRecord(at, cell * CELL + 5) for at, cell in enumerate(cells) if cell is not None]
)
"""A log of a record or a gap at each offset."""


def end_of(log: list[LoggedRecord], hashes: KeyRange, start: int) -> int:
    """The end of a slot, as the server answers it."""
    found = [record.offset + 1 for record in log if hashes.first <= record.key_hash <= hashes.last]
    return max([start, *found])


def done_in(log: list[LoggedRecord], progress: CommittedProgress) -> set[int]:
    return {record.offset for record in log if progress.is_committed(record.offset, record.key_hash)}


def slots_of(
    whole: CommittedProgress, log: list[LoggedRecord], fan_out: int, start: int
) -> dict[KeyRange, CommittedProgress]:
    ranges = [key_range_of(number, fan_out) for number in range(fan_out)]
    return {hashes: of_slot(whole, hashes, end_of(log, hashes, start)) for hashes in ranges}


def done_in_slots(log: list[LoggedRecord], slots: dict[KeyRange, CommittedProgress]) -> set[int]:
    return {
        record.offset
        for record in log
        for hashes, progress in slots.items()
        if hashes.first <= record.key_hash <= hashes.last and progress.is_committed(record.offset, record.key_hash)
    }


@given(LOGS, st.integers(0, OFFSETS), st.lists(rectangles(), max_size=8), FAN_OUTS, FAN_OUTS)
def test_done_records_stay_done_and_no_others_become_done(
    log: list[LoggedRecord], stable: int, ranges: list[Rectangle], fan_out: int, other: int
) -> None:
    """From a topic to a view, to another view, and back to the topic."""
    end = OFFSETS
    before = CommittedProgress(stable).with_committed(ranges)
    expected = done_in(log, before)
    slots = slots_of(before, log, fan_out, 0)
    assert done_in_slots(log, slots) == expected
    for hashes, progress in slots.items():
        limit = end_of(log, hashes, 0)
        assert progress.stable_offset <= limit
        assert progress.end_offset <= limit, "a slot has no progress behind its end"
        assert all(hashes.first <= strip.start < strip.end <= hashes.last + 1 for strip in progress.strips)
    known = [SlotProgress(hashes, found, end_of(log, hashes, 0)) for hashes, found in slots.items()]
    whole = united(known, 0, end)
    assert done_in(log, whole) == expected
    assert done_in_slots(log, slots_of(whole, log, other, 0)) == expected


@given(LOGS, st.lists(st.one_of(st.none(), st.integers(0, OFFSETS)), min_size=4, max_size=4), st.integers(0, 3))
def test_the_offset_of_a_partition_is_the_first_record_that_a_slot_has_not_done(
    log: list[LoggedRecord], offsets: list[int | None], start: int
) -> None:
    """Plain members of a view commit an offset for each slot; a slot without an offset has done nothing."""
    log = [record for record in log if record.offset >= start]
    slots = [
        SlotProgress(hashes, None if offset is None else CommittedProgress(offset), end_of(log, hashes, start))
        for hashes, offset in ((key_range_of(number, 4), offset) for number, offset in enumerate(offsets))
    ]
    whole = united(slots, start, OFFSETS)
    undone = {
        record.offset
        for record in log
        for hashes, committed, _ in slots
        if hashes.first <= record.key_hash <= hashes.last
        and record.offset >= (start if committed is None else committed.stable_offset)
    }
    assert {record.offset for record in log} - done_in(log, whole) == undone
    assert whole.stable_offset <= min(undone, default=OFFSETS)
    if not undone:
        assert whole == CommittedProgress(max([OFFSETS, *(offset for offset in offsets if offset is not None)]))
