"""Committed progress against a set of cells: any order, repetition or division of the same commits gives one state.

The model knows each offset of each of a few hashes. From its cells the one form of the state is made by other means:
column by column.
"""

from itertools import groupby
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinators.groups.range_commits import within_hashes
from tailrace.coordinators.groups.stored_ranges import decode_ranges, encode_ranges
from tailrace.model.committed_progress import CommittedProgress, Rectangle, Run, Strip
from tailrace.model.errors import MalformedMessage
from tailrace.model.key_ranges import HASH_SPACE, KeyRange

CELLS = 8
CELL = HASH_SPACE // CELLS
OFFSETS = 10

cells = st.sets(st.tuples(st.integers(0, OFFSETS - 1), st.integers(0, CELLS - 1)))


@st.composite
def rectangles(draw: st.DrawFn) -> Rectangle:
    first_offset, last_offset = sorted((draw(st.integers(0, OFFSETS - 1)), draw(st.integers(0, OFFSETS - 1))))
    first, last = sorted((draw(st.integers(0, CELLS - 1)), draw(st.integers(0, CELLS - 1))))
    return Rectangle(first_offset, last_offset, first * CELL, (last + 1) * CELL - 1)


Done = set[tuple[int, int]]
"""Offsets and cells."""


def cells_of(rectangle: Rectangle) -> Done:
    return {
        (offset, cell)
        for offset in range(rectangle.first_offset, rectangle.last_offset + 1)
        for cell in range(rectangle.first_hash // CELL, rectangle.last_hash // CELL + 1)
    }


def frontier(done: Done, stable: int, cell: int) -> int:
    return next(offset for offset in range(stable, OFFSETS + 1) if (offset, cell) not in done)


def stable_offset(done: Done, stable: int) -> int:
    return min(frontier(done, stable, cell) for cell in range(CELLS))


def expected(done: Done, before: int) -> CommittedProgress:
    stable = stable_offset(done, before)
    columns = []
    for cell in range(CELLS):
        offsets = [offset for offset in range(stable, OFFSETS) if (offset, cell) in done]
        runs = [
            [offset for _, offset in group]
            for _, group in groupby(enumerate(offsets), key=lambda numbered: numbered[1] - numbered[0])
        ]
        columns.append((cell, tuple(Run(run[0], run[-1] + 1) for run in runs)))
    strips = []
    for runs_of_strip, group in groupby(columns, key=lambda column: column[1]):
        members = [cell for cell, _ in group]
        if runs_of_strip:
            strips.append(Strip(members[0] * CELL, (members[-1] + 1) * CELL, runs_of_strip))
    return CommittedProgress(stable, tuple(strips))


@given(st.integers(0, 3), st.lists(rectangles(), max_size=12), st.randoms(use_true_random=False))
def test_any_order_repetition_and_division_gives_the_state_of_the_cells(
    stable: int, commits: list[Rectangle], chance: Random
) -> None:
    done: Done = set().union(*map(cells_of, commits)) if commits else set()
    state = CommittedProgress(stable)
    for commit in commits:
        after = state.with_committed([commit])
        assert after.stable_offset >= state.stable_offset
        state = after
    assert state == expected(done, stable)
    assert CommittedProgress(stable).with_committed(commits) == state
    parts = [
        Rectangle(offset, offset, cell * CELL, (cell + 1) * CELL - 1)
        for commit in commits
        for offset, cell in cells_of(commit)
    ]
    again = [*parts, *commits]
    chance.shuffle(again)
    assert CommittedProgress(stable).with_committed(again) == state
    assert state.with_committed(state.rectangles()) == state
    assert state.with_committed(commits) == state
    assert CommittedProgress(state.stable_offset).with_committed(state.rectangles()) == state


@given(st.integers(0, 3), st.lists(rectangles(), max_size=12), st.lists(rectangles(), max_size=60))
def test_many_at_once_give_the_same_as_one_by_one(stable: int, before: list[Rectangle], more: list[Rectangle]) -> None:
    progress = CommittedProgress(stable).with_committed(before)
    expected = progress
    for rectangle in more:
        expected = expected.with_committed([rectangle])
    assert progress.with_committed(more) == expected


@given(st.integers(0, 3), st.lists(rectangles(), max_size=12), st.integers(0, CELLS - 1), st.integers(0, CELLS - 1))
def test_the_questions_have_the_answers_of_the_cells(
    stable: int, commits: list[Rectangle], low: int, high: int
) -> None:
    done: Done = set().union(*map(cells_of, commits)) if commits else set()
    state = CommittedProgress(stable).with_committed(commits)
    for cell in range(CELLS):
        for place in (cell * CELL, cell * CELL + CELL // 2, (cell + 1) * CELL - 1):
            assert state.frontier(place) == frontier(done, state.stable_offset, cell)
            for offset in range(OFFSETS):
                assert state.is_committed(offset, place) == (offset < state.stable_offset or (offset, cell) in done)
    low, high = sorted((low, high))
    ranges = [KeyRange(low * CELL, (high + 1) * CELL - 1)]
    assert state.lowest_frontier(ranges) == min(
        frontier(done, state.stable_offset, cell) for cell in range(low, high + 1)
    )
    assert state.lowest_frontier([]) == state.stable_offset
    assert state.rectangle_count == len(list(state.rectangles()))
    held_back = {cell for cell in range(CELLS) if (state.stable_offset, cell) not in done}
    assert {cell for first, last in state.gaps() for cell in range(first // CELL, last // CELL + 1)} == held_back
    left = {(offset, cell) for offset, cell in done if offset >= state.stable_offset}
    assert state.end_offset == max((offset + 1 for offset, _ in left), default=state.stable_offset)


@given(st.integers(0, 3), st.lists(rectangles(), max_size=12), st.integers(0, 2), st.data())
def test_a_slot_has_the_progress_of_a_partition_whose_other_hashes_are_done(
    stable: int, commits: list[Rectangle], exponent: int, data: st.DataObject
) -> None:
    """A view partition against the whole partition: everything outside of the slot counts as done there."""
    width = CELLS >> exponent
    first = data.draw(st.integers(0, (1 << exponent) - 1)) * width
    hashes = KeyRange(first * CELL, (first + width) * CELL - 1)
    mine = within_hashes([*commits, Rectangle(0, 0)], hashes)
    in_slot = CommittedProgress(stable, hashes=hashes).with_committed(mine)
    others = [
        Rectangle(0, OFFSETS, cell * CELL, (cell + 1) * CELL - 1)
        for cell in range(CELLS)
        if not first <= cell < first + width
    ]
    whole = CommittedProgress(stable).with_committed([*mine, *others])
    assert in_slot.stable_offset == whole.stable_offset
    for cell in range(first, first + width):
        assert in_slot.frontier(cell * CELL) == whole.frontier(cell * CELL)
    assert list(in_slot.gaps()) == list(whole.gaps())
    assert all(hashes.first <= strip.start < strip.end <= hashes.last + 1 for strip in in_slot.strips)
    assert CommittedProgress(in_slot.stable_offset, hashes=hashes).with_committed(in_slot.rectangles()) == in_slot
    assert in_slot.of_hashes(hashes) == in_slot
    stored = decode_ranges(in_slot.stable_offset, encode_ranges(in_slot))
    assert stored.of_hashes(hashes) == in_slot


@given(st.lists(rectangles(), max_size=12), st.integers(0, OFFSETS))
def test_a_cut_leaves_what_is_below(commits: list[Rectangle], end: int) -> None:
    state = CommittedProgress(0).with_committed(commits)
    end = max(end, state.stable_offset)
    done: Done = set().union(*map(cells_of, commits)) if commits else set()
    below = {(offset, cell) for offset, cell in done if offset < end}
    assert state.cut_at(end) == expected(below, state.stable_offset)
    forward = state.with_stable_offset(end)
    assert forward == expected(done | {(offset, cell) for offset in range(end) for cell in range(CELLS)}, 0)


@given(st.lists(rectangles(), max_size=12), st.integers(0, 2**60))
def test_stored_ranges_come_back_and_no_others_are_read(commits: list[Rectangle], stable: int) -> None:
    moved = [
        rectangle._replace(first_offset=rectangle.first_offset + stable, last_offset=rectangle.last_offset + stable)
        for rectangle in commits
    ]
    state = CommittedProgress(stable).with_committed(moved)
    stored = encode_ranges(state)
    assert decode_ranges(state.stable_offset, stored) == state
    for size in range(1, len(stored)):
        with pytest.raises(MalformedMessage):
            decode_ranges(state.stable_offset, stored[:size])
    with pytest.raises(MalformedMessage):
        decode_ranges(state.stable_offset, stored + b"\0") if stored else decode_ranges(0, b"\x01")


@given(st.integers(0, 2**60), st.binary(max_size=64))
def test_any_bytes_are_one_progress_or_malformed(stable: int, stored: bytes) -> None:
    try:
        state = decode_ranges(stable, stored)
    except MalformedMessage:
        return
    assert state.strips == () or len(encode_ranges(state)) <= len(stored)
    assert CommittedProgress(stable).with_committed(state.rectangles()).stable_offset >= stable
