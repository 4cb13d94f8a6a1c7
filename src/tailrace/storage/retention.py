"""Segments to remove, by size, by time and by the log's start.

Rules: only a run of the oldest segments goes; never an offset at or above the high watermark; never the active segment.
The last rule is ours, and does not hold while the disk is short of space. In Kafka the active segment goes too when all
its records are too old or too many; here a topic without writes keeps its last segment, which segment.ms and
segment.bytes keep small, until a record begins the next segment. DeleteRecords removes the records of such a segment
nevertheless.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, Protocol

from tailrace.model.errors import StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage.across_segments import AcrossSegments
from tailrace.storage.compaction.compactions import Compactions
from tailrace.storage.keys.log_keys import LogKeys
from tailrace.storage.log_times import LogTimes
from tailrace.storage.readable_log import ReadableLog


class Reason(Enum):
    """The reason for the removal of a segment."""

    START_OFFSET = "it lies below the log start offset"
    TIME = "all its records are older than retention.ms"
    SIZE = "the log is larger than retention.bytes"


class StoredSegment(Protocol):
    """The facts about a segment that the decision needs."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def age_timestamp(self) -> int:
        """The largest timestamp; without timestamps the time of the file. Read only if time decides."""
        ...

    @property
    def has_doubtful_times(self) -> bool:
        """Whether `age_timestamp` may be wrong, so that the segment's records must be read first."""
        ...


class NoSegment:
    """A stand-in for a segment behind the active segment, so that the active segment may be removed too."""

    size_bytes = 0
    age_timestamp = 0
    has_doubtful_times = False

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset


def expired_segments(
    segments: Sequence[StoredSegment],
    *,
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
    only_below_log_start: bool = False,
) -> list[Reason]:
    """The reasons of the oldest segments that may go. `segments` are in order and end with the active segment."""
    may_delete = "delete" in config.cleanup_policy and not only_below_log_start
    excess = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    reasons: list[Reason] = []
    for segment, following in pairwise(segments):
        if following.base_offset > high_watermark:
            break
        if following.base_offset <= log_start_offset:
            reason = Reason.START_OFFSET
        elif may_delete and config.retention_bytes >= 0 and excess >= segment.size_bytes:
            reason = Reason.SIZE
        elif (
            may_delete
            and config.retention_ms >= 0
            and not segment.has_doubtful_times
            and segment.age_timestamp < now_ms - config.retention_ms
        ):
            reason = Reason.TIME
        else:
            break
        excess -= segment.size_bytes
        reasons.append(reason)
    return reasons


class RetiredSegment(NamedTuple):
    """A segment that retention has removed."""

    base_offset: int
    size_bytes: int
    reason: Reason
    newest_timestamp: int
    """The largest time of its records, in ms since 1970; -1 without times, and for a segment below the log start, whose
    times are not read."""


class LogRetention:
    """The retention of one log: its oldest segments are renamed first, and removed from the disk some time later."""

    __slots__ = ("_across", "_compactions", "_keys", "_log", "_times")

    def __init__(
        self, log: ReadableLog, *, across: AcrossSegments, compactions: Compactions, times: LogTimes, keys: LogKeys
    ) -> None:
        self._log = log
        self._across = across
        self._compactions = compactions
        self._times = times
        self._keys = keys

    @property
    def next_removal_ms(self) -> int | None:
        """The time (ms since 1970) from which `remove_retired` removes something; None without retired files."""
        return self._log.segments.next_removal_ms

    def remove_retired(self, now_ms: int | None) -> None:
        """Remove the files of retired segments whose deadline has passed; without a time, of all retired segments."""
        if not self._log.failure:
            self._log.segments.unlink_retired(now_ms)

    def apply(
        self, now_ms: int, high_watermark: int, *, only_below_log_start: bool = False, frees_all: bool = False
    ) -> list[RetiredSegment]:
        """Retire the segments that are too old, too many or below the log start; to be called now and then.

        `only_below_log_start`: a follower's log begins where its leader's does, whatever the settings say. Only whole
        segments below the high watermark are retired. The active segment is retired only with `frees_all`, for a disk
        that is short of space: an empty segment follows. The files are renamed at once, and `remove_retired` removes
        the files `file.delete.delay.ms` later. In a log that is read by key, segments stay until their keys are
        examined (`LogKeys.awaits_removal`), except with `frees_all`.
        """
        log, segments = self._log, self._log.segments
        log.check_online()
        self._times.read_note()
        segments.unlink_retired(now_ms)
        kept: Sequence[StoredSegment] = segments.all
        if frees_all and segments.active.size_bytes:
            kept = (*segments.all, NoSegment(log.log_end_offset))
        reasons = expired_segments(
            kept,
            config=log.config,
            now_ms=now_ms,
            log_start_offset=log.log_start_offset,
            high_watermark=high_watermark,
            only_below_log_start=only_below_log_start,
        )
        if reasons:
            examined_to = self._keys.removable_to(kept[len(reasons)].base_offset, now_ms)
            if not frees_all:
                reasons = reasons[: sum(segment.base_offset <= examined_to for segment in kept[1 : len(reasons) + 1])]
        if not reasons:
            return []
        if len(reasons) == len(segments):
            try:
                self._across.roll(log.log_end_offset, retires_old=True)
            except StorageError:
                if len(reasons) == 1:
                    raise
                reasons.pop()  # no space for the files of a new segment: only the older segments go
        retired = [
            RetiredSegment(
                segment.base_offset,
                segment.size_bytes,
                reason,
                -1 if reason is Reason.START_OFFSET else segment.max_timestamp,
            )
            for segment, reason in zip(segments.all, reasons, strict=False)
        ]
        log.is_changed = True
        self._compactions.abort()
        self._keys.note_removal(segments.all[len(reasons)].base_offset, now_ms)
        self._across.retire(len(reasons), deadline_ms=now_ms + log.config.file_delete_delay_ms)
        return retired
