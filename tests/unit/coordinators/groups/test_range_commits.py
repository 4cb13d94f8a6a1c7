"""Commits of ranges and of offsets, each against the progress that a group has: what they give, and what is refused."""

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinators.groups.commands import CommitOffsets, OffsetToCommit, RangesToCommit
from tailrace.coordinators.groups.offset_commits import OffsetCommits
from tailrace.coordinators.groups.range_commits import (
    RangedProgress,
    RangeLimits,
    check_ranges,
    commit_offset,
    commit_ranges,
    cut,
    reset_offset,
    within,
)
from tailrace.coordinators.groups.ranged_offsets import RangedOffsets
from tailrace.coordinators.groups.store import GroupStore, LatestGroups
from tailrace.model import committed_progress
from tailrace.model.committed_progress import MAX_RANGES_PER_COMMIT, CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.model.partitions import TopicPartition

LIMITS = RangeLimits(rectangles=4, end_offset=100)
HALF = HASH_SPACE // 2
LOW = (0, HALF - 1)
HIGH = (HALF, HASH_SPACE - 1)


def committed(*ranges: Rectangle, stable: int = 0, state_epoch: int = 0) -> RangedProgress:
    return RangedProgress(CommittedProgress(stable).with_committed(ranges), state_epoch)


def refusal(progress: RangedProgress | None, *ranges: Rectangle, state_epoch: int = 0) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        commit_ranges(progress, ranges, state_epoch=state_epoch, stable_offset=-1, limits=LIMITS)
    return caught.value


def test_two_halves_move_the_stable_offset() -> None:
    first = commit_ranges(None, [Rectangle(10, 19, *LOW)], state_epoch=-1, stable_offset=10, limits=LIMITS)
    assert (first.committed.stable_offset, first.committed.rectangle_count) == (10, 1)
    second = commit_ranges(first, [Rectangle(10, 14, *HIGH)], state_epoch=0, stable_offset=10, limits=LIMITS)
    assert second.committed.stable_offset == 15
    assert list(second.committed.rectangles()) == [Rectangle(15, 19, *LOW)]


def test_the_first_commit_without_an_offset_begins_at_0() -> None:
    first = commit_ranges(None, [Rectangle(5, 9)], state_epoch=-1, stable_offset=-1, limits=LIMITS)
    assert first.committed.stable_offset == 0
    assert first.committed.is_committed(7, 1)


def test_ranges_in_another_state_epoch_are_fenced() -> None:
    reset = committed(state_epoch=3)
    for state_epoch in (-1, 0, 2, 4):
        assert refusal(reset, Rectangle(0, 1), state_epoch=state_epoch).code is ErrorCode.FENCED_STATE_EPOCH
    assert commit_ranges(reset, [Rectangle(0, 1)], state_epoch=3, stable_offset=0, limits=LIMITS).state_epoch == 3


def test_a_log_that_was_truncated_has_nothing_done_from_there_on() -> None:
    before = committed(Rectangle(10, 19, *LOW), Rectangle(30, 39, *LOW), Rectangle(10, 34, *HIGH), stable=10)
    assert before.committed.stable_offset == 20
    after = cut(before, 32, state_epoch=0)
    assert after.state_epoch == 1
    assert after.committed.stable_offset == 20, "below it nothing becomes done"
    assert list(after.committed.rectangles()) == [Rectangle(30, 31, *LOW), Rectangle(20, 31, *HIGH)]
    assert cut(before, 20, state_epoch=0) == RangedProgress(CommittedProgress(20), 1)
    assert cut(before, 5, state_epoch=0) == RangedProgress(CommittedProgress(5), 1)
    assert cut(None, 5, state_epoch=-1) == RangedProgress(CommittedProgress(5))
    for known in (-1, 2):
        with pytest.raises(KafkaError) as fenced:
            cut(after, 5, state_epoch=known)
        assert fenced.value.code is ErrorCode.FENCED_STATE_EPOCH


def test_a_commit_that_would_multiply_the_ranges_is_refused_before_it_is_united() -> None:
    """Found by review: ranges over all hashes are one run more in each strip, and took minutes."""
    limits = RangeLimits(rectangles=4_096, end_offset=10**9)
    width = HASH_SPACE // 4_000
    strips = [Rectangle(10**6 + 2 * n, 10**6 + 2 * n, n * width, n * width + width - 1) for n in range(4_000)]
    state = RangedProgress(CommittedProgress(0).with_committed(strips))
    evil = [Rectangle(10 + 2 * n, 10 + 2 * n) for n in range(1_024)]
    runs: list[int] = []

    def counted(*args: Any) -> Any:
        runs.append(1)
        return merged(*args)

    merged = committed_progress._merged
    with patch.object(committed_progress, "_merged", counted), pytest.raises(KafkaError) as refused:
        commit_ranges(state, evil, state_epoch=0, stable_offset=0, limits=limits)
    assert refused.value.code is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert len(runs) < 100


def test_a_reader_that_knew_progress_which_is_gone_is_fenced() -> None:
    """The group's offset was deleted: its readers look again."""
    assert refusal(None, Rectangle(0, 9), state_epoch=0).code is ErrorCode.FENCED_STATE_EPOCH
    assert refusal(None, Rectangle(0, 9), state_epoch=3).code is ErrorCode.FENCED_STATE_EPOCH


def test_ranges_behind_the_end_of_the_partition_are_refused() -> None:
    assert refusal(None, Rectangle(0, 100), state_epoch=-1).code is ErrorCode.INVALID_REQUEST
    assert commit_ranges(None, [Rectangle(0, 99)], state_epoch=-1, stable_offset=0, limits=LIMITS)


@pytest.mark.parametrize(
    ("end_offset", "left"),
    [
        (60, None),
        (59, committed(Rectangle(20, 58, *LOW), stable=10, state_epoch=3)),
        (20, RangedProgress(CommittedProgress(10), 3)),
        (10, RangedProgress(CommittedProgress(10), 3)),
        (5, RangedProgress(CommittedProgress(10), 3)),
    ],
)
def test_ranges_behind_the_end_are_dropped(end_offset: int, left: RangedProgress | None) -> None:
    """A drop lowers a frontier, and so has a state epoch of its own. The offset stays, as in Kafka."""
    assert within(committed(Rectangle(20, 59, *LOW), stable=10, state_epoch=2), end_offset) == left


def test_progress_without_ranges_has_nothing_behind_any_end() -> None:
    assert within(committed(stable=10), 5) is None


def test_a_commit_behind_the_end_is_refused_and_drops_the_ranges_that_the_log_has_lost() -> None:
    """KIP-X: ranges stored beyond the end that the leader confirms are dropped with it, and counted."""
    store, shared = GroupStore(), RangedOffsets(max_rectangles=10)
    commits = OffsetCommits(LatestGroups(store), {}, shared, max_metadata=10)

    def commit(rectangle: Rectangle, *, end_offset: int, state_epoch: int = 0) -> ErrorCode:
        ranges = RangesToCommit(rectangles=(rectangle,), state_epoch=state_epoch, end_offset=end_offset)
        offset = OffsetToCommit(
            topic="orders",
            topic_id=TopicId(bytes(16)),
            partition=0,
            offset=0,
            leader_epoch=-1,
            metadata="",
            ranges=ranges,
        )
        command = CommitOffsets(
            group_id="g",
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            knows_epochs=True,
            retention_time_ms=-1,
            offsets=(offset,),
        )
        decision = commits.commit(command, 1_000)
        for record in decision.records:
            store.apply(record)
        return decision.response[0]

    def ahead() -> RangedProgress:
        value = LatestGroups(store).offsets("g")(TopicPartition("orders", 0))
        assert value is not None
        return shared.progress(value)

    assert commit(Rectangle(20, 59, *LOW), end_offset=60, state_epoch=-1) is ErrorCode.NONE
    assert commit(Rectangle(50, 59, *HIGH), end_offset=40) is ErrorCode.INVALID_REQUEST
    assert ahead() == committed(Rectangle(20, 39, *LOW), state_epoch=1)
    assert shared.cut_partitions == 1
    assert commit(Rectangle(39, 40, *HIGH), end_offset=40, state_epoch=1) is ErrorCode.INVALID_REQUEST
    assert ahead() == committed(Rectangle(20, 39, *LOW), state_epoch=1), "all of it is in the log"
    assert commit(Rectangle(40, 41, *LOW), end_offset=50) is ErrorCode.FENCED_STATE_EPOCH


def test_more_rectangles_than_the_limit_are_refused_with_the_oldest_gap() -> None:
    full = committed(*(Rectangle(at, at, *LOW) for at in (3, 5, 7, 9)))
    fault = refusal(full, Rectangle(11, 11, *LOW))
    assert fault.code is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert "oldest gap is at offset 0, key hashes 0-4294967295" in fault.detail
    fewer = commit_ranges(full, [Rectangle(4, 8, *LOW)], state_epoch=0, stable_offset=0, limits=LIMITS)
    assert fewer.committed.rectangle_count == 1


def test_a_limit_that_was_lowered_refuses_nothing_that_makes_it_no_worse() -> None:
    full = committed(*(Rectangle(at, at, *LOW) for at in range(1, 21, 2)))
    fewer = commit_ranges(full, [Rectangle(2, 2, *LOW)], state_epoch=0, stable_offset=0, limits=LIMITS)
    assert fewer.committed.rectangle_count == 9


def test_a_plain_commit_forward_keeps_what_is_done_beyond() -> None:
    before = committed(Rectangle(10, 19, *LOW))
    after = commit_offset(before, 12)
    assert after == RangedProgress(CommittedProgress(12).with_committed([Rectangle(12, 19, *LOW)]), 0)
    assert commit_offset(None, 7) == committed(stable=7)


def test_a_plain_commit_backward_is_a_rewind() -> None:
    before = committed(Rectangle(30, 40, *LOW), stable=20, state_epoch=1)
    assert commit_offset(before, 19) == committed(stable=19, state_epoch=2)
    assert commit_offset(before, 20) == before


@pytest.mark.parametrize(
    ("before", "offset", "state_epoch"),
    [
        (committed(stable=20), 25, 0),
        (committed(stable=20), 19, 1),
        (committed(Rectangle(30, 40, *LOW), stable=20), 25, 1),
        (None, 3, 0),
    ],
)
def test_a_reset_leaves_nothing_beyond_the_offset(before: RangedProgress | None, offset: int, state_epoch: int) -> None:
    assert reset_offset(before, offset) == committed(stable=offset, state_epoch=state_epoch)


@pytest.mark.parametrize(
    "bad",
    [
        Rectangle(5, 4),
        Rectangle(-1, 4),
        Rectangle(0, 2**63 - 1),
        Rectangle(0, 1, 5, 4),
        Rectangle(0, 1, -1, 4),
        Rectangle(0, 1, 0, HASH_SPACE),
    ],
)
def test_a_bad_range_is_an_invalid_request(bad: Rectangle) -> None:
    with pytest.raises(KafkaError) as caught:
        check_ranges([Rectangle(200, 300), bad])
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_too_many_ranges_are_an_invalid_request() -> None:
    ranges = [Rectangle(2 * at, 2 * at) for at in range(MAX_RANGES_PER_COMMIT + 1)]
    check_ranges(ranges[:-1])
    with pytest.raises(KafkaError, match="1024 at most"):
        check_ranges(ranges)


SMALL = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted)


@given(st.lists(st.tuples(SMALL, SMALL).map(lambda pair: Rectangle(*pair[0], *pair[1])), max_size=6))
def test_ranges_are_refused_if_two_overlap(ranges: list[Rectangle]) -> None:
    cells = [
        (offset, key_hash)
        for rectangle in ranges
        for offset in range(rectangle.first_offset, rectangle.last_offset + 1)
        for key_hash in range(rectangle.first_hash, rectangle.last_hash + 1)
    ]
    if len(set(cells)) == len(cells):
        check_ranges(ranges)
    else:
        with pytest.raises(KafkaError, match="overlap"):
            check_ranges(ranges)
