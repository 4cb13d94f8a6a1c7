"""Segments to remove, by size, by time and by the log's start. Decides only; the log removes.

Rules: only a run of the oldest segments goes; never an offset at or above the high watermark; never the active segment.
The last rule is ours, and does not hold while the disk is short of space. In Kafka the active segment goes too when all
its records are too old or too many; here a topic without writes keeps its last segment, which segment.ms and
segment.bytes keep small, until a record begins the next one. DeleteRecords makes its records go without that.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Protocol

from tailrace.model.topic_config import TopicConfig


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
        """The largest timestamp, or the file's without timestamps. Only asked for where time decides."""
        ...

    @property
    def has_doubtful_times(self) -> bool:
        """Whether its records must be looked at before time decides."""
        ...


class NoSegment:
    """The segment that would follow the active one: with it behind, the active segment may go too."""

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
    """For each of the oldest segments that may go, why. `segments` are in order and end with the active one."""
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
