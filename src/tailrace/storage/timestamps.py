"""Offsets by timestamp, over the segments of one log."""

from collections.abc import Sequence

from tailrace.storage.segment import Segment, TimestampOffset
from tailrace.storage.segments import Segments


def offset_for_timestamp(segments: Segments, timestamp: int, *, log_start_offset: int) -> TimestampOffset | None:
    """The first record, by offset, whose timestamp is at least this one; None if there is none."""
    for segment in segments.from_offset(log_start_offset):
        if segment.max_timestamp >= timestamp:
            segments.keep_loaded(segment)
            found = segment.find_timestamp(timestamp, from_offset=log_start_offset)
            if found is not None:
                return found
    return None


def max_timestamp_offset(segments: Segments, *, log_start_offset: int) -> TimestampOffset | None:
    """The first record with the largest timestamp of the log (KIP-734); None without timestamps."""
    readable = segments.from_offset(log_start_offset)
    largest = max(readable, key=lambda segment: segment.max_timestamp)
    if largest.max_timestamp < 0:
        return None
    segments.keep_loaded(largest)
    found = largest.find_timestamp(largest.max_timestamp, from_offset=log_start_offset)
    return _largest_of_all_batches(readable, log_start_offset) if found is None else found


def _largest_of_all_batches(segments: Sequence[Segment], log_start_offset: int) -> TimestampOffset | None:
    """The same from the batches alone: the one with the largest timestamp lies below the log start."""
    largest, holder = -1, None
    for segment in segments:
        for _, header in segment.headers():
            if header.max_timestamp > largest and header.records_count and header.last_offset >= log_start_offset:
                largest, holder = header.max_timestamp, segment
    return None if holder is None else holder.find_timestamp(largest, from_offset=log_start_offset)
