"""Compactions of a log, at most one compaction at a time, and the offset below which the log is compacted."""

from tailrace.storage.compaction.batch_filter import TransactionEnds
from tailrace.storage.compaction.compaction import Compaction
from tailrace.storage.compaction.plan import Cleanable, find_cleanable
from tailrace.storage.file_system import File, FileSystem
from tailrace.storage.readable_log import ReadableLog
from tailrace.storage.segment_files.segment_limits import SegmentLimits


class Compactions:
    """The compaction of a log that is under way, if any, and the facts that the next compaction has to know."""

    __slots__ = ("_current", "_files", "_known_ends", "_known_from", "_limits", "_log", "first_dirty_offset")

    def __init__(self, log: ReadableLog, *, files: FileSystem, limits: SegmentLimits, first_dirty_offset: int) -> None:
        """`first_dirty_offset` is where the last compaction ended; an offset outside the log is ignored."""
        self._log = log
        self._files = files
        self._limits = limits
        is_within = log.log_start_offset < first_dirty_offset <= log.log_end_offset
        self.first_dirty_offset = first_dirty_offset if is_within else log.log_start_offset
        """The end of the compacted part; the owner of the log writes the offset to a checkpoint now and then."""
        self._current: Compaction | None = None
        self._known_ends: TransactionEnds | None = None
        self._known_from = 0  # the dirty part of the log, if known

    @property
    def unsynced_files(self) -> tuple[File, ...]:
        """The files and names that the log's next flush has to sync for the compaction that is under way."""
        return () if self._current is None else self._current.unsynced_files

    def cleanable(self, now_ms: int, *, end_offset: int) -> Cleanable:
        """The plan of a compaction now. `end_offset` is the smaller of high watermark and last stable offset."""
        log = self._log
        if log.checkpoint is not None:
            end_offset = min(end_offset, log.checkpoint.compaction_bound)
        first_open_offset = log.producers.first_open_offset
        if first_open_offset is not None:
            end_offset = min(end_offset, first_open_offset)
        return find_cleanable(
            log.segments.all,
            config=log.config,
            now_ms=now_ms,
            first_dirty_offset=self.first_dirty_offset,
            log_start_offset=log.log_start_offset,
            end_offset=end_offset,
        )

    def begin(self, now_ms: int, *, end_offset: int, memory_bytes: int) -> Compaction | None:
        """Begin a compaction, which keeps the last record of each key; None if nothing is dirty.

        At most one compaction is under way. The compaction reads flushed records only: a record goes when the later
        record of its key is durable. The caller makes the steps, and flushes the log when `needs_sync`; then `finish`.
        `memory_bytes` bounds the map of keys: keys beyond that are left for the next compaction.
        """
        log = self._log
        log.check_online()
        assert self._current is None, f"{log.directory}: a compaction is under way"
        durable_end = min(end_offset, log.flushed_offset)
        if log.checkpoint is not None:
            durable_end = min(durable_end, log.checkpoint.compaction_bound)
        plan = self.cleanable(now_ms, end_offset=durable_end)
        if not plan.dirty_bytes:
            return None
        ends, self._known_ends = self._known_ends, None
        if ends is None or self._known_from != plan.first_dirty_offset or ends.end_offset > plan.end_offset:
            ends = TransactionEnds()
        self._current = Compaction(
            log.directory,
            plan,
            files=self._files,
            segments=log.segments,
            limits=self._limits,
            config=log.config,
            producers=log.producers,
            durable_end=durable_end,
            before_swap=self._before_swap,
            on_broken=log.fail,
            now_ms=now_ms,
            memory_bytes=memory_bytes,
            ends=ends,
        )
        return self._current

    def _before_swap(self, bound: int) -> None:
        log = self._log
        log.is_changed = True
        # Records that are not durable yet may be lost, and then must not pass for compacted records.
        log.gaps.allow(bound if log.gaps.is_known else max(bound, log.flushed_offset))

    def mark_synced(self, files: frozenset[File]) -> None:
        """Note that these files are durable."""
        if self._current is not None:
            self._current.mark_synced(files)

    def finish(self, compaction: Compaction) -> None:
        """Take the result of a compaction that is over."""
        if compaction is not self._current:
            return
        assert compaction.is_over, f"{self._log.directory}: the compaction is under way"
        self._current = None
        self._known_ends, self._known_from = compaction.known_ends, compaction.end_offset
        if compaction.is_complete:
            self.first_dirty_offset = max(self.first_dirty_offset, compaction.end_offset)

    def abort(self) -> None:
        """Give up the compaction that is under way, if any, before the log changes."""
        if self._current is not None:
            self._current.abort()
            self.finish(self._current)
        self._known_ends = None

    def restart(self, first_dirty_offset: int) -> None:
        """Take this first dirty offset: the log was cut at this offset."""
        self.first_dirty_offset = first_dirty_offset
