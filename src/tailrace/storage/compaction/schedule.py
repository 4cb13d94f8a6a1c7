"""The compactions of one log: what the next one would do, and the one that is under way."""

from collections.abc import Callable

from tailrace.model.topic_config import TopicConfig
from tailrace.storage.compaction.batch_filter import TransactionEnds
from tailrace.storage.compaction.compaction import Compaction
from tailrace.storage.compaction.plan import Cleanable, find_cleanable
from tailrace.storage.files import File, FileSystem
from tailrace.storage.producers.state import ProducerState
from tailrace.storage.segment_limits import SegmentLimits
from tailrace.storage.segments import Segments


class Compactions:
    """One at a time."""

    __slots__ = ("_current", "_directory", "_files", "_known_ends", "_known_from", "_limits", "_producers", "_segments")

    def __init__(
        self,
        directory: str,
        *,
        files: FileSystem,
        segments: Segments,
        limits: SegmentLimits,
        producers: ProducerState,
    ) -> None:
        self._directory = directory
        self._files = files
        self._segments = segments
        self._limits = limits
        self._producers = producers
        self._current: Compaction | None = None
        self._known_ends: TransactionEnds | None = None
        self._known_from = 0  # where the log is dirty, if that is known

    @property
    def unsynced_files(self) -> tuple[File, ...]:
        """What the next flush of the log has to sync for the one that is under way."""
        return () if self._current is None else self._current.unsynced_files

    def cleanable(
        self, config: TopicConfig, now_ms: int, *, first_dirty_offset: int, log_start_offset: int, end_offset: int
    ) -> Cleanable:
        """What a compaction now would do below `end_offset`."""
        first_open_offset = self._producers.first_open_offset
        if first_open_offset is not None:
            end_offset = min(end_offset, first_open_offset)
        return find_cleanable(
            self._segments.all,
            config=config,
            now_ms=now_ms,
            first_dirty_offset=first_dirty_offset,
            log_start_offset=log_start_offset,
            end_offset=end_offset,
        )

    def begin(
        self,
        config: TopicConfig,
        now_ms: int,
        *,
        first_dirty_offset: int,
        log_start_offset: int,
        durable_end: int,
        before_swap: Callable[[int], None],
        on_broken: Callable[[str], None],
        memory_bytes: int,
    ) -> Compaction | None:
        """Begin one of what lies below `durable_end`; None if nothing is dirty. Otherwise as `Compaction`."""
        assert self._current is None, f"{self._directory}: a compaction is under way"
        plan = self.cleanable(
            config,
            now_ms,
            first_dirty_offset=first_dirty_offset,
            log_start_offset=log_start_offset,
            end_offset=durable_end,
        )
        if not plan.dirty_bytes:
            return None
        ends, self._known_ends = self._known_ends, None
        if ends is None or self._known_from != plan.first_dirty_offset or ends.end_offset > plan.end_offset:
            ends = TransactionEnds()
        self._current = Compaction(
            self._directory,
            plan,
            files=self._files,
            segments=self._segments,
            limits=self._limits,
            config=config,
            producers=self._producers,
            durable_end=durable_end,
            before_swap=before_swap,
            on_broken=on_broken,
            now_ms=now_ms,
            memory_bytes=memory_bytes,
            ends=ends,
        )
        return self._current

    def mark_synced(self, files: frozenset[File]) -> None:
        """Note that these files are durable."""
        if self._current is not None:
            self._current.mark_synced(files)

    def finish(self, compaction: Compaction) -> int:
        """Let go of one that is over; where the log is dirty from then on, 0 if that was not achieved."""
        if compaction is not self._current:
            return 0
        assert compaction.is_over, f"{self._directory}: the compaction is under way"
        self._current = None
        self._known_ends, self._known_from = compaction.known_ends, compaction.end_offset
        return compaction.end_offset if compaction.is_complete else 0

    def abort(self) -> int:
        """Give up the one that is under way, if there is one: the log is about to be changed. Otherwise as `finish`."""
        end_offset = 0
        if self._current is not None:
            self._current.abort()
            end_offset = self.finish(self._current)
        self._known_ends = None
        return end_offset
