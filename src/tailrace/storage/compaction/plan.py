"""The part of a log that may be compacted, whether a compaction is worth the work, and the segments to merge. Decides
only; pure.

Rules, as Kafka's (KIP-58, KIP-354):

1. Never the active segment, never a segment that reaches to an offset at or above `end_offset`: the smallest of high
   watermark, last stable offset and flushed end. A record goes only once the record that replaces it cannot be lost.
2. Never a segment with a record younger than min.compaction.lag.ms, and no later segment.
3. The *clean* part was compacted before, the *dirty* part was not. A compaction is worth the work when the dirty share
   is above min.cleanable.dirty.ratio, or when the oldest dirty record is older than max.compaction.lag.ms.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from tailrace.model.topic_config import TopicConfig

_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_MAX_SEGMENT_BYTES: Final = 2**31 - 1
_NO_LAG: Final = 2**63 - 1


class CompactedSegment(Protocol):
    """The facts about a segment that the decisions need."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def age_timestamp(self) -> int:
        """The largest timestamp; without timestamps the time of the file. Only read where time decides."""
        ...

    @property
    def first_timestamp(self) -> int:
        """The first batch's timestamp; -1 without timestamps. Only read where time decides."""
        ...

    @property
    def index_entries(self) -> int:
        """The number of entries of the larger index, or more."""
        ...


class Cleanable(NamedTuple):
    """The plan of a compaction now."""

    first_dirty_offset: int
    """The end of the clean part: below this offset no key occurred twice after the last compaction."""
    end_offset: int
    """Records above the offset stay unchanged."""
    segment_count: int
    """The number of oldest segments that may be rewritten."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether max.compaction.lag.ms asks for a compaction."""

    @property
    def dirty_ratio(self) -> float:
        """The share of dirty bytes, as min.cleanable.dirty.ratio defines the share."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_worth_it(self, config: TopicConfig) -> bool:
        """Whether the topic's settings ask for a compaction."""
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio)


def find_cleanable(
    segments: Sequence[CompactedSegment],
    *,
    config: TopicConfig,
    now_ms: int,
    first_dirty_offset: int,
    log_start_offset: int,
    end_offset: int,
) -> Cleanable:
    """The part that may be compacted. `segments` are in order and end with the active segment."""
    first_dirty = max(first_dirty_offset, log_start_offset)
    clean_bytes = dirty_bytes = count = 0
    oldest_dirty = -1
    for segment, following in pairwise(segments):
        if following.base_offset > end_offset:
            break
        is_dirty = following.base_offset > first_dirty
        if (
            is_dirty
            and config.min_compaction_lag_ms > 0
            and segment.age_timestamp > now_ms - config.min_compaction_lag_ms
        ):
            break
        count += 1
        if is_dirty:
            dirty_bytes += segment.size_bytes
            if oldest_dirty < 0 and config.max_compaction_lag_ms < _NO_LAG:
                oldest_dirty = segment.first_timestamp
        else:
            clean_bytes += segment.size_bytes
    return Cleanable(
        first_dirty_offset=first_dirty,
        end_offset=segments[count].base_offset,
        segment_count=count,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        is_overdue=0 <= oldest_dirty < now_ms - config.max_compaction_lag_ms,
    )


def group_segments(
    segments: Sequence[CompactedSegment], *, end_offset: int, config: TopicConfig, max_index_entries: int
) -> list[int]:
    """The numbers of segments in the groups to merge, in order: a group has as many segments as fit into one segment by
    the settings.

    Sizes are the sizes before the compaction. `end_offset` is where the last segment ends.
    """
    counts: list[int] = []
    count = size_bytes = entries = base_offset = 0
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        if count and (
            size_bytes + segment.size_bytes > min(config.segment_bytes, _MAX_SEGMENT_BYTES)
            or entries + segment.index_entries > max_index_entries
            or following - 1 - base_offset > _MAX_RELATIVE_OFFSET
        ):
            counts.append(count)
            count = 0
        if not count:
            size_bytes = entries = 0
            base_offset = segment.base_offset
        count += 1
        size_bytes += segment.size_bytes
        entries += segment.index_entries
    return [*counts, count] if count else counts
