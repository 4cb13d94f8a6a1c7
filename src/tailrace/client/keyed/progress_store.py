"""The progress of a group at its coordinator: rectangles if the coordinator knows rectangles (KIP-X), else stable
offsets, as with Apache Kafka.

With a server that knows rectangles, a restart repeats only the records that no commit covers. With any other server,
such as Apache Kafka, the lowest offset in hand is committed, and a restart repeats the done records behind this offset.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.group.range_progress import RangeBudget
from tailrace.client.keyed.done_offsets import ProgressCommit
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.model.partitions import TopicPartition

_log = logging.getLogger(__name__)

_OF_ONE_PARTITION = (
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.POLICY_VIOLATION,
)


RETRY_S: Final = 0.1
"""The pause after a failed request to the coordinator."""

OUT_OF_GROUP: Final = frozenset(
    (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    )
)
"""The codes of a member that is out of its group: its partitions have left or will leave, and the next owner repeats
the records that are not committed."""

T = TypeVar("T")


async def answer_of(name: TopicPartition, storing: asyncio.Lock, request: Callable[[], Awaitable[T]]) -> T:
    """The answer to a request about a partition, which is repeated. `storing` lets one request at a time through.

    Raises KafkaError for a fault that no retry cures. It does not return while this member is out of its group: the
    partitions leave, and cancel their requests.
    """
    while True:
        try:
            async with storing:
                return await request()
        except KafkaError as fault:
            if not fault.code.retriable and fault.code not in OUT_OF_GROUP:
                raise
            _log.debug("progress of %s: %s", name, fault.detail)
        await asyncio.sleep(RETRY_S)


MOST_INVALID_COMMITS: Final = 3
"""Reading starts over after this number of commits in a row with offsets that the leader does not have."""


@dataclass(slots=True)
class WrittenProgress:
    """The result of a commit, by partition. For a partition in no field the stable offset was committed, or nothing had
    to be."""

    uses: dict[TopicPartition, RangeBudget] = field(default_factory=dict)
    full: set[TopicPartition] = field(default_factory=set)
    """The server keeps no more rectangles of these partitions: the commit was refused."""
    was_reset: set[TopicPartition] = field(default_factory=set)
    """The offsets of these partitions were reset meanwhile, or are invalid time after time: the commit was refused, and
    reading starts over."""
    invalid: set[TopicPartition] = field(default_factory=set)
    """The commits of these partitions have offsets that the server does not know: the log may have been cut."""
    without_ranges: set[TopicPartition] = field(default_factory=set)
    """The topics of these partitions take no rectangles."""

    def unite(self, other: "WrittenProgress") -> None:
        """Take in the result for other partitions."""
        self.uses |= other.uses
        for own, others in zip(self._faults, other._faults, strict=True):
            own.update(others)

    @property
    def _faults(self) -> tuple[set[TopicPartition], ...]:
        return self.full, self.was_reset, self.invalid, self.without_ranges

    def add_fault(self, name: TopicPartition, code: ErrorCode) -> None:
        """Note that the commit of this partition was refused, with a code that concerns only this partition."""
        self._faults[_OF_ONE_PARTITION.index(code)].add(name)


class StableOffsets(Protocol):
    """The calls of a consumer that any server can answer."""

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> object:
        """Commit these offsets."""
        ...

    def epoch_before(self, name: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record before this offset; -1: unknown."""
        ...


class KnownProgress(Protocol):
    """The progress of a group in a partition, for a consumer."""

    @property
    def stable_offset(self) -> int: ...

    @property
    def ranges(self) -> Sequence[Rectangle]: ...


class RangeCommits(Protocol):
    """The calls of a consumer that only servers with rectangles can answer."""

    async def takes_ranges(self) -> bool:
        """Whether the coordinator of the group takes rectangles."""
        ...

    async def committed(self, partitions: TopicPartition) -> KnownProgress | None:
        """The progress in this partition."""
        ...

    async def commit(
        self, *, ranges: Mapping[TopicPartition, Sequence[Rectangle]], notes: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, RangeBudget]:
        """Commit these rectangles, and store the notes with them."""
        ...

    async def cut(self, name: TopicPartition, offset: int) -> None:
        """Forget the commits from this offset on."""
        ...


class ProgressStore:
    """The progress of the group of one consumer. One call at a time."""

    def __init__(self, offsets: StableOffsets, ranges: RangeCommits) -> None:
        self._offsets: Final = offsets
        self._ranges: Final = ranges
        self._without_ranges: set[str] = set()
        """Topics that have refused commits of rectangles since `read` was last called for a partition of the topic."""
        self._invalid_commits: dict[TopicPartition, int] = defaultdict(int)
        """The number of invalid commits in a row, by partition."""

    async def read(self, name: TopicPartition) -> CommittedProgress | None:
        """The progress in this partition; None: the group has no progress, or its server knows stable offsets only.
        Raises MalformedMessage for impossible offsets or hashes.
        """
        if not await self._ranges.takes_ranges():
            return None
        self._without_ranges.discard(name.topic)
        try:
            found = await self._ranges.committed(name)
        except KafkaError as fault:
            if fault.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            return None  # the coordinator has moved to an older broker meanwhile
        if found is None:
            return None
        if found.stable_offset < 0 or not all(map(_is_possible, found.ranges)):
            raise MalformedMessage(f"no progress of {name}: offset {found.stable_offset}, {found.ranges!r:.200}")
        return CommittedProgress(found.stable_offset).with_committed(found.ranges)

    async def cut(self, name: TopicPartition, offset: int, *, not_done: int) -> None:
        """Cut the progress as the log was cut at this offset: the log has other records from there on, which are not
        done.

        The progress in the partition was read before. `not_done` is the lowest offset that is not done, as the reader
        knows it: without rectangles every record from there on is repeated.
        """
        if await self._ranges.takes_ranges():
            try:
                await self._ranges.cut(name, offset)
                return
            except KafkaError as fault:
                if fault.code is ErrorCode.FENCED_STATE_EPOCH:
                    return  # the offset was reset: nothing is committed beyond the new offset
                if fault.code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.POLICY_VIOLATION):
                    raise
        await self._commit_offsets({name: (min(offset, not_done), "")})

    async def write(self, commits: Mapping[TopicPartition, ProgressCommit]) -> WrittenProgress:
        """Commit this progress. Raises the KafkaErrors of the server, except for the faults that `WrittenProgress`
        has."""
        written = WrittenProgress()
        rest = dict(commits)
        if await self._ranges.takes_ranges():
            wanted = {name: commit for name, commit in commits.items() if name.topic not in self._without_ranges}
            try:
                written = await _write_ranges(self._ranges, wanted)
                self._count_invalid(written)
                self._without_ranges.update(name.topic for name in written.without_ranges)
                rest = {
                    name: commit
                    for name, commit in commits.items()
                    if name.topic in self._without_ranges or (commit.note and not _rectangles_of(commit))
                }
            except KafkaError as fault:
                if fault.code != ErrorCode.UNSUPPORTED_VERSION:
                    raise
                _log.debug("the coordinator knows no ranges any more: %s", fault.detail)
        if rest:
            await self._commit_offsets({name: (commit.stable_offset, commit.note) for name, commit in rest.items()})
        return written

    def _count_invalid(self, written: WrittenProgress) -> None:
        """After many invalid commits in a row reading starts over, once. If more invalid commits follow, stable offsets
        are committed.

        If the log was cut, the reader notices the cut, at the latest after the start over. Any other reason stays, such
        as the name of a view.
        """
        for name in written.uses:
            self._invalid_commits.pop(name, None)
        for name in tuple(written.invalid):
            self._invalid_commits[name] += 1
            if self._invalid_commits[name] >= MOST_INVALID_COMMITS:
                starts_over = self._invalid_commits[name] == MOST_INVALID_COMMITS
                written.invalid.remove(name)
                (written.was_reset if starts_over else written.without_ranges).add(name)

    async def _commit_offsets(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        epoch_before = self._offsets.epoch_before
        await self._offsets.commit(
            {
                name: OffsetAndMetadata(offset, epoch_before(name, offset), note)
                for name, (offset, note) in offsets.items()
            }
        )


def _is_possible(rectangle: Rectangle) -> bool:
    return (
        0 <= rectangle.first_offset <= rectangle.last_offset
        and 0 <= rectangle.first_hash <= rectangle.last_hash < HASH_SPACE
    )


def _rectangles_of(commit: ProgressCommit) -> tuple[Rectangle, ...]:
    """The rectangles of a commit. A note is stored with a rectangle: a note alone goes with the record below the stable
    offset, which is done."""
    if commit.rectangles or not commit.note or not commit.stable_offset:
        return commit.rectangles
    return (Rectangle(commit.stable_offset - 1, commit.stable_offset - 1),)


async def _write_ranges(ranges: RangeCommits, commits: Mapping[TopicPartition, ProgressCommit]) -> WrittenProgress:
    wanted = {name: found for name, commit in commits.items() if (found := _rectangles_of(commit))}
    written = WrittenProgress()
    if not wanted:
        return written
    try:
        budgets = await ranges.commit(
            ranges=wanted, notes={name: commit.note for name, commit in commits.items() if commit.note}
        )
    except KafkaError as fault:
        if fault.code not in _OF_ONE_PARTITION:
            raise
        if len(wanted) > 1:
            # The error names no partition. Commits unite, so that a second commit of a partition does no harm.
            return await _write_one_by_one(ranges, {name: commits[name] for name in wanted})
        (name,) = wanted
        _log.debug("commit of ranges of %s: %s", name, fault.detail)
        written.add_fault(name, fault.code)
        return written
    written.uses = dict(budgets)
    return written


async def _write_one_by_one(ranges: RangeCommits, commits: Mapping[TopicPartition, ProgressCommit]) -> WrittenProgress:
    written = WrittenProgress()
    for name, commit in commits.items():
        written.unite(await _write_ranges(ranges, {name: commit}))
    return written
