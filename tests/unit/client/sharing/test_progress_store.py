"""The progress of a group at servers with and without rectangles."""

import asyncio
from collections.abc import Mapping

import pytest

from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.sharing.done_offsets import ProgressCommit
from tailrace.client.sharing.progress_store import ProgressStore, RangeCommits, RangeUse
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from testkit.range_commits import RangesOfAGroup

ONE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


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
    for ranges in (None, RangesOfAGroup(knows=False)):
        offsets = OffsetsOfAGroup()
        store = ProgressStore(offsets, ranges)
        written = asyncio.run(store.write(COMMITS))
        assert (written.uses, written.full, written.was_reset) == ({}, set(), set())
        assert offsets.offsets == {ONE: OffsetAndMetadata(10, 7), OTHER: OffsetAndMetadata(20, 7)}
        assert asyncio.run(store.read(ONE)) is None


def test_a_server_with_rectangles_gets_and_gives_them() -> None:
    offsets, ranges = OffsetsOfAGroup(), RangesOfAGroup()
    store = ProgressStore(offsets, ranges)
    assert asyncio.run(store.read(ONE)) is None
    written = asyncio.run(store.write(COMMITS))
    assert written.uses == {ONE: RangeUse(1, 4_096), OTHER: RangeUse(0, 4_096)}
    assert offsets.offsets == {}
    assert asyncio.run(store.read(ONE)) == CommittedProgress(10).with_committed([Rectangle(12, 14, 0, 99)])


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.FENCED_STATE_EPOCH])
def test_a_refusal_of_one_partition_spares_the_others(code: ErrorCode) -> None:
    ranges = RangesOfAGroup({ONE: code})
    written = asyncio.run(ProgressStore(OffsetsOfAGroup(), ranges).write(COMMITS))
    assert written.uses == {OTHER: RangeUse(0, 4_096)}
    is_full = code is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert (written.full, written.was_reset) == (({ONE}, set()) if is_full else (set(), {ONE}))
    assert ranges.progress == {OTHER: CommittedProgress(20)}


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


def test_a_reset_is_a_plain_commit() -> None:
    offsets = OffsetsOfAGroup()
    asyncio.run(ProgressStore(offsets, RangesOfAGroup()).reset(ONE, 5))
    assert offsets.offsets == {ONE: OffsetAndMetadata(5, 7)}


def test_the_double_is_what_a_consumer_will_be() -> None:
    assert isinstance(RangesOfAGroup(), RangeCommits)
    assert not isinstance(OffsetsOfAGroup(), RangeCommits)
