"""The progress of a group at servers with and without rectangles."""

import asyncio
from collections.abc import Mapping

import pytest

from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.group.range_progress import RangeBudget
from tailrace.client.keyed.done_offsets import ProgressCommit
from tailrace.client.keyed.progress_store import ProgressStore, WrittenProgress
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.partitions import TopicPartition
from testkit.clients.range_commits import ProgressOfAGroup, RangesOfAGroup

ONE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
ELSEWHERE = TopicPartition("unshared", 0)


class OffsetsOfAGroup:
    """A server that knows stable offsets."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, OffsetAndMetadata | int] = {}

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        self.offsets.update(offsets)

    def epoch_before(self, name: TopicPartition, offset: int) -> int:
        return 7


def commit_to(offset: int, *rectangles: Rectangle) -> ProgressCommit:
    return ProgressCommit(offset, (Rectangle(0, offset - 1), *rectangles), offset, 0, 0)


COMMITS = {ONE: commit_to(10, Rectangle(12, 14, 0, 99)), OTHER: commit_to(20)}


def test_a_server_without_rectangles_gets_stable_offsets() -> None:
    offsets = OffsetsOfAGroup()
    store = ProgressStore(offsets, RangesOfAGroup(knows=False))
    written = asyncio.run(store.write(COMMITS))
    assert written == WrittenProgress()
    assert offsets.offsets == {ONE: OffsetAndMetadata(10, 7), OTHER: OffsetAndMetadata(20, 7)}
    assert asyncio.run(store.read(ONE)) is None


def test_a_server_with_rectangles_gets_and_gives_them() -> None:
    offsets, ranges = OffsetsOfAGroup(), RangesOfAGroup()
    store = ProgressStore(offsets, ranges)
    assert asyncio.run(store.read(ONE)) is None
    written = asyncio.run(store.write(COMMITS))
    assert written.uses == {ONE: RangeBudget(1, 4_096), OTHER: RangeBudget(0, 4_096)}
    assert offsets.offsets == {}
    assert asyncio.run(store.read(ONE)) == CommittedProgress(10).with_committed([Rectangle(12, 14, 0, 99)])


def test_a_note_is_stored_with_the_progress() -> None:
    """With rectangles, with the record below the stable offset where nothing else is new, and with a stable offset."""
    offsets, ranges = OffsetsOfAGroup(), RangesOfAGroup()
    store = ProgressStore(offsets, ranges)
    asyncio.run(store.write({ONE: COMMITS[ONE]._replace(note="first"), OTHER: COMMITS[OTHER]}))
    assert (ranges.notes, offsets.offsets) == ({ONE: "first", OTHER: ""}, {})
    nothing_new = ProgressCommit(10, (), 20, 0, 0, "second")
    before = ranges.progress[ONE]
    asyncio.run(store.write({ONE: nothing_new, OTHER: nothing_new._replace(note="")}))
    assert ranges.notes == {ONE: "second", OTHER: ""}
    assert ranges.progress[ONE] == before
    assert len(ranges.commits) == 3, "a commit of nothing is not sent"
    asyncio.run(store.write({ELSEWHERE: ProgressCommit(0, (), 20, 0, 0, "at the beginning")}))
    assert offsets.offsets == {ELSEWHERE: OffsetAndMetadata(0, 7, "at the beginning")}
    without = OffsetsOfAGroup()
    asyncio.run(ProgressStore(without, RangesOfAGroup(knows=False)).write({ONE: nothing_new}))
    assert without.offsets == {ONE: OffsetAndMetadata(10, 7, "second")}


@pytest.mark.parametrize(
    ("code", "of"),
    [
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, "full"),
        (ErrorCode.FENCED_STATE_EPOCH, "was_reset"),
        (ErrorCode.INVALID_REQUEST, "invalid"),
        (ErrorCode.POLICY_VIOLATION, "without_ranges"),
    ],
    ids=str,
)
def test_a_refusal_of_one_partition_spares_the_others(code: ErrorCode, of: str) -> None:
    ranges = RangesOfAGroup({ONE: code})
    written = asyncio.run(ProgressStore(OffsetsOfAGroup(), ranges).write(COMMITS))
    expected = WrittenProgress({OTHER: RangeBudget(0, 4_096)})
    setattr(expected, of, {ONE})
    assert written == expected
    assert ranges.progress == {OTHER: CommittedProgress(20)}


def test_a_topic_without_key_ranges_gets_stable_offsets_until_its_progress_is_read_again() -> None:
    offsets, ranges = OffsetsOfAGroup(), RangesOfAGroup({ELSEWHERE: ErrorCode.POLICY_VIOLATION})
    store = ProgressStore(offsets, ranges)
    commits = {ONE: COMMITS[ONE], ELSEWHERE: COMMITS[OTHER]}
    for _ in range(2):
        asyncio.run(store.write(commits))
        assert offsets.offsets == {ELSEWHERE: OffsetAndMetadata(20, 7)}
    ranges.refused.clear()
    asyncio.run(store.write(commits))
    assert ELSEWHERE not in ranges.progress, "it is not tried each time"
    asyncio.run(store.read(ELSEWHERE))
    asyncio.run(store.write(commits))
    assert ranges.progress.keys() == {ONE, ELSEWHERE}


def test_a_coordinator_that_has_forgotten_rectangles_gets_stable_offsets() -> None:
    offsets = OffsetsOfAGroup()
    ranges = RangesOfAGroup({ONE: ErrorCode.UNSUPPORTED_VERSION})
    store = ProgressStore(offsets, ranges)
    assert asyncio.run(store.read(ONE)) is None
    asyncio.run(store.write({ONE: COMMITS[ONE]}))
    assert offsets.offsets == {ONE: OffsetAndMetadata(10, 7)}


def test_another_fault_is_raised() -> None:
    ranges = RangesOfAGroup({ONE: ErrorCode.GROUP_AUTHORIZATION_FAILED})
    with pytest.raises(KafkaError, match="refused"):
        asyncio.run(ProgressStore(OffsetsOfAGroup(), ranges).write(COMMITS))


def test_offsets_that_stay_invalid_have_reading_start_over_once_and_are_stable_ones_then() -> None:
    """Partitions such as a view's, of which no server takes ranges."""
    offsets, ranges = OffsetsOfAGroup(), RangesOfAGroup({ONE: ErrorCode.INVALID_REQUEST})
    store = ProgressStore(offsets, ranges)
    results = []
    for _ in range(5):
        asyncio.run(store.read(ONE))
        results.append(asyncio.run(store.write({ONE: COMMITS[ONE]})))
        assert bool(offsets.offsets) == (len(results) > 3)
    assert results == [
        WrittenProgress(invalid={ONE}),
        WrittenProgress(invalid={ONE}),
        WrittenProgress(was_reset={ONE}),
        WrittenProgress(without_ranges={ONE}),
        WrittenProgress(without_ranges={ONE}),
    ]


def test_a_commit_that_is_taken_ends_the_row_of_invalid_ones() -> None:
    ranges = RangesOfAGroup({ONE: ErrorCode.INVALID_REQUEST})
    store = ProgressStore(OffsetsOfAGroup(), ranges)
    for _ in range(2):
        for _ in range(2):
            assert asyncio.run(store.write({ONE: COMMITS[ONE]})).invalid == {ONE}
        ranges.refused.clear()
        assert asyncio.run(store.write({ONE: COMMITS[ONE]})).invalid == set()
        ranges.refused[ONE] = ErrorCode.INVALID_REQUEST


def test_a_cut_takes_back_what_is_committed_behind_it_and_nothing_below() -> None:
    offsets, ranges = OffsetsOfAGroup(), RangesOfAGroup()
    ranges.progress[ONE] = CommittedProgress(10).with_committed([Rectangle(12, 14, 0, 99), Rectangle(20, 30, 0, 99)])
    asyncio.run(ProgressStore(offsets, ranges).cut(ONE, 13, not_done=10))
    assert ranges.progress[ONE] == CommittedProgress(10).with_committed([Rectangle(12, 12, 0, 99)])
    assert offsets.offsets == {}, "a plain commit of the cut would cover all below it"


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.POLICY_VIOLATION, None], ids=str)
def test_a_cut_without_rectangles_commits_the_lowest_offset_that_is_not_done(code: ErrorCode | None) -> None:
    offsets, ranges = OffsetsOfAGroup(), RangesOfAGroup(knows=code is not None)
    if code is not None:
        ranges.refused_cuts[ONE] = code
    store = ProgressStore(offsets, ranges)
    asyncio.run(store.cut(ONE, 13, not_done=10))
    assert offsets.offsets == {ONE: OffsetAndMetadata(10, 7)}
    asyncio.run(store.cut(ONE, 5, not_done=10))
    assert offsets.offsets == {ONE: OffsetAndMetadata(5, 7)}


def test_a_cut_of_an_offset_that_was_reset_leaves_the_reset() -> None:
    offsets, ranges = OffsetsOfAGroup(), RangesOfAGroup()
    ranges.refused_cuts[ONE] = ErrorCode.FENCED_STATE_EPOCH
    asyncio.run(ProgressStore(offsets, ranges).cut(ONE, 13, not_done=10))
    assert offsets.offsets == {}


@pytest.mark.parametrize(
    ("stable_offset", "rectangle"),
    [
        (-5, None),
        (5, Rectangle(9, 8)),
        (5, Rectangle(-9, 8)),
        (5, Rectangle(8, 9, 7, 6)),
        (5, Rectangle(8, 9, 0, 2**32)),
    ],
    ids=str,
)
def test_a_progress_that_cannot_be_is_a_malformed_answer(stable_offset: int, rectangle: Rectangle | None) -> None:
    ranges = RangesOfAGroup()
    ranges.answers[ONE] = ProgressOfAGroup(stable_offset, () if rectangle is None else (rectangle,))
    with pytest.raises(MalformedMessage, match="no progress of orders-0"):
        asyncio.run(ProgressStore(OffsetsOfAGroup(), ranges).read(ONE))
