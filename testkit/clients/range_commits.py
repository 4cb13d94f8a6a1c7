"""The committed progress of a group, kept in memory as by a server with rectangles, for clients without a socket."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tailrace.client.group.range_progress import NO_NOTES, RangeBudget
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition


class ProgressOfAGroup:
    """The progress in one partition at a server."""

    def __init__(self, stable_offset: int, ranges: tuple[Rectangle, ...]) -> None:
        self.stable_offset = stable_offset
        self.ranges = ranges


class RangesOfAGroup:
    """A server that knows rectangles; some partitions are refused."""

    def __init__(self, refused: Mapping[TopicPartition, ErrorCode] | None = None, *, knows: bool = True) -> None:
        self.progress: dict[TopicPartition, CommittedProgress] = {}
        self.refused = dict(refused or {})
        self.commits: list[dict[TopicPartition, tuple[Rectangle, ...]]] = []
        """The commits that were taken."""
        self.cuts: list[tuple[TopicPartition, int]] = []
        """The cuts that were taken."""
        self.refused_cuts: dict[TopicPartition, ErrorCode] = {}
        self.notes: dict[TopicPartition, str] = {}
        """The text of the latest commit, by partition."""
        self.knows = knows
        self.answers: dict[TopicPartition, ProgressOfAGroup] = {}
        """Answers in place of the progress, by partition."""
        self.unreadable = 0
        """The number of next reads of the progress that fail."""
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        """The events of `until` that a request sets, which may come from another loop."""

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Return when the condition is true; each request checks it again."""
        tried = asyncio.Event()
        self._waiting[tried] = asyncio.get_running_loop()
        try:
            while not is_true():
                await tried.wait()
                tried.clear()
        finally:
            del self._waiting[tried]

    def _check_waiting(self) -> None:
        for tried, loop in list(self._waiting.items()):
            loop.call_soon_threadsafe(tried.set)

    async def more(self, commits: int) -> None:
        """Return when this number of further partitions has been committed."""
        wanted = len(self.commits) + commits
        await self.until(lambda: len(self.commits) >= wanted)

    async def cut(self, name: TopicPartition, offset: int) -> None:
        """Forget the committed ranges from this offset on, as a coordinator does."""
        try:
            self._cut(name, offset)
        finally:
            self._check_waiting()

    def _cut(self, name: TopicPartition, offset: int) -> None:
        if name in self.refused_cuts:
            raise KafkaError(self.refused_cuts[name], "refused")
        self.cuts.append((name, offset))
        known = self.progress.get(name)
        if known is not None:
            is_behind = offset < known.stable_offset
            self.progress[name] = CommittedProgress(offset) if is_behind else known.cut_at(offset)

    async def takes_ranges(self) -> bool:
        return self.knows

    async def committed(self, partitions: TopicPartition) -> ProgressOfAGroup | None:
        if self.unreadable:
            self.unreadable -= 1
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no coordinator now")
        if self.refused.get(partitions) is ErrorCode.UNSUPPORTED_VERSION:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "no ranges here")
        if partitions in self.answers:
            return self.answers[partitions]
        found = self.progress.get(partitions)
        return None if found is None else ProgressOfAGroup(found.stable_offset, tuple(found.rectangles()))

    async def commit(
        self, *, ranges: Mapping[TopicPartition, Sequence[Rectangle]], notes: Mapping[TopicPartition, str] = NO_NOTES
    ) -> Mapping[TopicPartition, RangeBudget]:
        try:
            return self._commit(ranges, notes)
        finally:
            self._check_waiting()

    def _commit(
        self, ranges: Mapping[TopicPartition, Sequence[Rectangle]], notes: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, RangeBudget]:
        uses = {}
        for name, rectangles in ranges.items():
            code = self.refused.get(name)
            if code is not None:
                raise KafkaError(code, "refused")
            known = self.progress.get(name, CommittedProgress(0))
            self.progress[name] = known.with_committed(rectangles)
            self.commits.append({name: tuple(rectangles)})
            self.notes[name] = notes.get(name, "")
            uses[name] = RangeBudget(self.progress[name].rectangle_count, 4_096)
        return uses
