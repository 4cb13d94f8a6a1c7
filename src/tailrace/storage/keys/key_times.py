"""Lookups by time for key ranges of one log: the first record of a range at or after a time, and the first record with
the largest time (KIP-X; decision 0099).

A lookup is a walk in steps: `next` does a step, which examines a group of batches or passes over a stretch. Between two
steps the log may change, so a step begins at an offset, never at a place in a file. A walk passes over segments and
batches whose largest time is too low, and over batches that the key index knows to have no record of the ranges.

A control batch, and a batch that cannot be split in one go, counts as a batch with records of every range, as in the
ends of ranges (`storage.keys.batch_slots`).
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import KeyRange, slots_of
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import BatchHeader, iter_batches
from tailrace.protocol.records.kernels import split_by_key
from tailrace.protocol.records.record_times import RecordTimes, record_times
from tailrace.storage.keys.batch_slots import GROUP_BATCHES, GROUP_BYTES, PlainBatch, readable_batch
from tailrace.storage.keys.log_keys import LogKeys
from tailrace.storage.readable_log import ReadableLog, TimestampOffset
from tailrace.storage.segment_files.segment import Segment

_MOST_PASSED: Final = 1_024
"""The batches, or the segments, that a step passes over because of their times."""

Found = dict[KeyRange, TimestampOffset]


def first_at_least(
    log: ReadableLog, keys: LogKeys, timestamp: int, ends: Mapping[KeyRange, int]
) -> Generator[None, None, Found]:
    """The first record of each range with at least this timestamp, below the end of the range; no entry without such a
    record.

    Raises StorageError, also for damage, which puts the log offline.
    """
    found: Found = {}
    left = dict(ends)
    walk = _Walk(log, keys)
    while left := {key_range: end for key_range, end in left.items() if walk.offset < end}:
        group = walk.step(timestamp, left)
        for key_range, times in _times_of(group, tuple(left), log):
            for of_batch, epoch in times:
                first = of_batch.first_at_least(timestamp)
                if first is not None:
                    if first[1] < left.pop(key_range):
                        found[key_range] = TimestampOffset(*first, epoch)
                    break
        yield
    return found


def largest(log: ReadableLog, keys: LogKeys, key_range: KeyRange, end: int) -> Generator[None, None, Found]:
    """The first record of the range, below its end, with the largest time of these records; as `first_at_least`."""
    if end <= log.log_start_offset:
        return {}
    # The last record comes first: in a log whose times rise, no other record is examined.
    best = -1
    for start in (end - 1, 0):
        walk = _Walk(log, keys, start)
        while walk.offset < end:
            group = walk.step(best + 1, {key_range: end})
            for _, times in _times_of(group, (key_range,), log):
                best = max(best, *(_largest_below(of_batch, end) for of_batch, _ in times))
            yield
    if best < 0:
        return {}
    return (yield from first_at_least(log, keys, best, {key_range: end}))


class _WalkedBatch(NamedTuple):
    """A batch of a group."""

    segment: Segment
    position: int
    header: BatchHeader
    plain: PlainBatch | None
    """None: the batch counts for every range."""


class _Walk:
    """The way from batch to batch, upwards."""

    def __init__(self, log: ReadableLog, keys: LogKeys, start: int = 0) -> None:
        self._log = log
        self._keys = keys
        self.offset = start
        """The walk goes on with the batch that has this offset, or with the next batch."""

    def step(self, timestamp: int, ends: Mapping[KeyRange, int]) -> Sequence[_WalkedBatch]:
        """The next batches that may have a record of these ranges with at least this timestamp; perhaps none."""
        log, end = self._log, max(ends.values())
        log.check_online()
        try:
            self.offset = max(self.offset, log.log_start_offset)
            segment = self._segment_of(timestamp, end)
            if segment is None:
                return ()
            self.offset = max(self.offset, segment.floor_of_time(timestamp))
            next_match = self._keys.next_match(slots_of(ends), self.offset, end)
            if next_match > self.offset:
                self.offset = next_match
                return ()
            return self._group(segment, timestamp, end)
        except CorruptRecords as fault:
            raise log.condemned(fault, offset=self.offset) from fault

    def _segment_of(self, timestamp: int, end: int) -> Segment | None:
        """The next segment with such a time; None if the step passes over segments alone."""
        segments = self._log.segments
        for number, segment in enumerate(segments.from_offset(self.offset)):
            self.offset = max(self.offset, segment.base_offset)
            if self.offset >= end or number == _MOST_PASSED:
                return None
            if segment.size_bytes and segment.max_timestamp >= timestamp:
                segments.keep_loaded(segment)
                return segment
        self.offset = end
        return None

    def _group(self, segment: Segment, timestamp: int, end: int) -> Sequence[_WalkedBatch]:
        group: list[_WalkedBatch] = []
        size_bytes = 0
        for passed, (position, stored, header) in enumerate(segment.batches(segment.locate(self.offset))):
            if header.base_offset >= end:
                self.offset = end
                return group
            if passed == _MOST_PASSED or len(group) == GROUP_BATCHES or size_bytes >= GROUP_BYTES:
                return group
            if segment.largest_time_at(position, header) >= timestamp:
                plain = None if header.is_control else readable_batch(stored, header)
                group.append(_WalkedBatch(segment, position, header, plain))
                size_bytes += header.size_bytes if plain is None else plain.size_bytes
            self.offset = header.end_offset
        following = self._log.segments.from_offset(segment.base_offset)[1:2]
        self.offset = max(self.offset, following[0].base_offset if following else end)
        return group


_Times = Sequence[tuple[RecordTimes, int]]
"""The times of batches, each with the leader epoch of the batch."""


def _times_of(
    group: Sequence[_WalkedBatch], ranges: Sequence[KeyRange], log: ReadableLog
) -> Iterable[tuple[KeyRange, _Times]]:
    """The times of the records of each range in these batches, in order."""
    parts: list[list[tuple[RecordTimes, int]]] = [[] for _ in ranges]
    from_offset = log.log_start_offset
    try:
        for is_plain, alike in groupby(group, lambda examined: examined.plain is not None):
            for run, split in _split(list(alike), ranges) if is_plain else ((alike, None),):
                if split is not None:
                    for part, batches in zip(parts, split, strict=True):
                        part.extend(_stored_times(batches, from_offset))
                    continue
                for segment, position, header, _ in run:
                    times = segment.times_at(position, header, from_offset=from_offset)
                    for part in parts:
                        part.append((times, header.partition_leader_epoch))
    except CorruptRecords as fault:
        raise log.condemned(fault) from fault
    return [(key_range, part) for key_range, part in zip(ranges, parts, strict=True) if part]


def _split(
    run: Sequence[_WalkedBatch], ranges: Sequence[KeyRange]
) -> Iterable[tuple[Sequence[_WalkedBatch], Sequence[Buffer] | None]]:
    """The batches of each range; None for a batch whose header is wrong about its records."""
    batches = [(plain.stored, plain.plain) for _, _, _, plain in run if plain is not None]
    try:
        yield run, split_by_key(batches, [[wanted] for wanted in ranges]).parts
    except CorruptRecords:
        if len(run) == 1:
            yield run, None
            return
        for examined in run:
            yield from _split((examined,), ranges)


def _stored_times(batches: Buffer, from_offset: int) -> Iterable[tuple[RecordTimes, int]]:
    view = memoryview(batches)
    for position, header in iter_batches(view):
        batch = view[position : position + header.size_bytes]
        yield record_times(batch, header, from_offset=from_offset), header.partition_leader_epoch


def _largest_below(times: RecordTimes, end: int) -> int:
    return max((time for offset, time in zip(times.offsets, times.timestamps, strict=True) if offset < end), default=-1)
