"""The progress of a group at its coordinator: rectangles if it knows them (KIP-X), else stable offsets, as Kafka's.

A server that knows rectangles has a restart repeat only what no commit covers. On any other, such as Apache Kafka, the
lowest offset in hand is committed, and a restart repeats what was done behind it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, runtime_checkable

from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.sharing.done_offsets import ProgressCommit
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

_log = logging.getLogger(__name__)

_OF_ONE_PARTITION = (ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.FENCED_STATE_EPOCH)


class RangeUse(NamedTuple):
    """The number of rectangles of a group in a partition, and the most that the server keeps."""

    used: int
    limit: int

    @property
    def is_high(self) -> bool:
        """Whether nothing new is to be read in the partition, so that the limit is not reached."""
        return 4 * self.used >= 3 * self.limit


@dataclass(slots=True)
class WrittenProgress:
    """The result of a commit, by partition; each is in one of these, or its server knows no rectangles."""

    uses: dict[TopicPartition, RangeUse] = field(default_factory=dict)
    full: set[TopicPartition] = field(default_factory=set)
    """The server keeps no more rectangles of these: the commit was refused."""
    was_reset: set[TopicPartition] = field(default_factory=set)
    """The offsets of these were reset meanwhile: the commit was refused, and reading starts over."""


class StableOffsets(Protocol):
    """The part of a consumer that any server has the other end of."""

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> object:
        """Commit these offsets."""
        ...

    def epoch_before(self, name: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record before this offset; -1: unknown."""
        ...


class KnownProgress(Protocol):
    """The progress of a group in a partition, as a consumer reads it."""

    @property
    def stable_offset(self) -> int: ...

    @property
    def ranges(self) -> Sequence[Rectangle]: ...


class KnownBudget(Protocol):
    """The room for rectangles after a commit, as a consumer gets it."""

    @property
    def used(self) -> int: ...

    @property
    def limit(self) -> int: ...


@runtime_checkable
class RangeCommits(Protocol):
    """The part of a consumer for servers that know rectangles."""

    async def takes_ranges(self) -> bool:
        """Whether the coordinator of the group takes rectangles."""
        ...

    async def committed(self, partitions: TopicPartition) -> KnownProgress | None:
        """The progress in this partition."""
        ...

    async def commit(
        self, *, ranges: Mapping[TopicPartition, Sequence[Rectangle]]
    ) -> Mapping[TopicPartition, KnownBudget]:
        """Commit these rectangles."""
        ...


class ProgressStore:
    """The progress of the group of one consumer. One call at a time."""

    def __init__(self, offsets: StableOffsets, ranges: RangeCommits | None) -> None:
        """`ranges`: None if the client has no such calls."""
        self._offsets: Final = offsets
        self._ranges: Final = ranges

    async def read(self, name: TopicPartition) -> CommittedProgress | None:
        """The progress in this partition; None: the group has none, or its server knows stable offsets only."""
        if self._ranges is None or not await self._ranges.takes_ranges():
            return None
        try:
            found = await self._ranges.committed(name)
        except KafkaError as fault:
            if fault.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            return None  # the coordinator has moved to an older broker meanwhile
        return None if found is None else CommittedProgress(found.stable_offset).with_committed(found.ranges)

    async def reset(self, name: TopicPartition, offset: int) -> None:
        """Forget what is committed from this offset on: the log has other records there now."""
        await self._offsets.commit({name: OffsetAndMetadata(offset, self._offsets.epoch_before(name, offset))})

    async def write(self, commits: Mapping[TopicPartition, ProgressCommit]) -> WrittenProgress:
        """Commit. Raises KafkaError of the server, but for the faults that `WrittenProgress` has."""
        ranges = self._ranges
        if ranges is not None and await ranges.takes_ranges():
            try:
                return await _write_ranges(ranges, commits)
            except KafkaError as fault:
                if fault.code != ErrorCode.UNSUPPORTED_VERSION:
                    raise
                _log.debug("the coordinator knows no ranges any more: %s", fault.detail)
        epoch_before = self._offsets.epoch_before
        stable = {name: commit.stable_offset for name, commit in commits.items()}
        await self._offsets.commit(
            {name: OffsetAndMetadata(offset, epoch_before(name, offset)) for name, offset in stable.items()}
        )
        return WrittenProgress()


async def _write_ranges(ranges: RangeCommits, commits: Mapping[TopicPartition, ProgressCommit]) -> WrittenProgress:
    wanted = {name: commit.rectangles for name, commit in commits.items() if commit.rectangles}
    written = WrittenProgress()
    if not wanted:
        return written
    try:
        budgets = await ranges.commit(ranges=wanted)
    except KafkaError as fault:
        if fault.code not in _OF_ONE_PARTITION:
            raise
        if len(wanted) > 1:
            # The error names no partition. Commits unite, so that another try harms none.
            return await _write_one_by_one(ranges, {name: commits[name] for name in wanted})
        (name,) = wanted
        (written.full if fault.code == ErrorCode.OFFSET_METADATA_TOO_LARGE else written.was_reset).add(name)
        return written
    written.uses = {name: RangeUse(budget.used, budget.limit) for name, budget in budgets.items()}
    return written


async def _write_one_by_one(ranges: RangeCommits, commits: Mapping[TopicPartition, ProgressCommit]) -> WrittenProgress:
    written = WrittenProgress()
    for name, commit in commits.items():
        one = await _write_ranges(ranges, {name: commit})
        written.uses |= one.uses
        written.full |= one.full
        written.was_reset |= one.was_reset
    return written
