"""Offsets by timestamp, over the segments of one log."""

from typing import NamedTuple

from tailrace.storage.segment import Segment
from tailrace.storage.segments import Segments


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_timestamp(segments: Segments, timestamp: int, *, log_start_offset: int) -> TimestampOffset | None:
    """The first record, by offset, whose timestamp is at least this one; None if there is none."""
    for segment in segments.from_offset(log_start_offset):
        if segment.max_timestamp >= timestamp:
            segments.keep_loaded(segment)
            found = _find(segment, timestamp, from_offset=log_start_offset)
            if found is not None:
                return found
    return None


def max_timestamp_offset(segments: Segments, *, log_start_offset: int) -> TimestampOffset | None:
    """The first record with the largest timestamp of the log (KIP-734); None without timestamps."""
    first, *later = segments.from_offset(log_start_offset)
    largest, holder = max(
        ((segment.max_timestamp, segment) for segment in (first, *later)), key=lambda candidate: candidate[0]
    )
    if largest < 0:
        return None
    segments.keep_loaded(holder)
    found = _find(holder, largest, from_offset=log_start_offset)
    if found is not None or holder is not first:
        return found
    # It lies below the log start: what else is in that segment counts. Only one segment is ever looked through.
    largest, holder = _largest_readable(first, log_start_offset), first
    for segment in later:
        if segment.max_timestamp > largest:
            largest, holder = segment.max_timestamp, segment
    return None if largest < 0 else _find(holder, largest, from_offset=log_start_offset)


def _find(segment: Segment, timestamp: int, *, from_offset: int) -> TimestampOffset | None:
    """The first record at or after `from_offset` whose timestamp is at least this one."""
    offset = max(segment.floor_of_time(timestamp), from_offset)
    for position, header in segment.headers(segment.locate(offset)):
        if header.max_timestamp < timestamp or header.last_offset < from_offset:
            continue
        for record in segment.records_at(position, header):
            if record.timestamp >= timestamp and record.offset >= from_offset:
                return TimestampOffset(record.timestamp, record.offset, header.partition_leader_epoch)
    return None


def _largest_readable(segment: Segment, log_start_offset: int) -> int:
    """The largest timestamp from this offset on, -1 for none."""
    largest = -1
    for position, header in segment.headers(segment.locate(log_start_offset)):
        if header.base_offset >= log_start_offset:
            timestamps = [header.max_timestamp] if header.records_count else []
        else:
            records = segment.records_at(position, header)
            timestamps = [record.timestamp for record in records if record.offset >= log_start_offset]
        largest = max([largest, *timestamps])
    return largest
