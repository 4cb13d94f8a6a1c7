"""Lookups by time in view partitions: the first record of the view partition at or after a time (decision 0099).

A lookup reads batches, so a request makes its lookups in steps, before its answer (decision 0077). Lookups of the same
time in several view partitions of one partition are one walk over the partition.
"""

from collections.abc import Generator, Iterable
from typing import NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange
from tailrace.replication.partition import Partition
from tailrace.server.fetch.key_reads import ScanBudget
from tailrace.server.fetch.view_reads import ViewEnds
from tailrace.server.slices import Stepwise
from tailrace.storage import TimestampOffset
from tailrace.storage.keys.key_times import Found, first_at_least, largest


class TimeLookup(NamedTuple):
    """A lookup in one view partition."""

    partition: Partition
    key_range: KeyRange
    timestamp: int | None
    """None: the largest time."""


class FoundTimes:
    """The results of the lookups of one request."""

    def __init__(self) -> None:
        self._found: dict[TimeLookup, TimestampOffset | KafkaError | None] = {}

    def look_up(
        self, lookups: Iterable[TimeLookup], isolation: int, ends: ViewEnds, budget: ScanBudget
    ) -> Stepwise[None]:
        """Make these lookups, below the readable ends for this isolation level."""
        by_walk: dict[tuple[Partition, int], dict[KeyRange, int]] = {}
        for lookup in lookups:
            partition, key_range, timestamp = lookup
            try:
                end = ends.end(partition, key_range, partition.readable_end(isolation), budget)
            except KafkaError as fault:
                self._found[lookup] = fault
                continue
            if end is None:
                self._found[lookup] = keys_are_being_indexed(partition)
            elif timestamp is None:
                log = partition.log
                yield from self._walk([lookup], largest(log, log.keys, key_range, end))
            else:
                by_walk.setdefault((partition, timestamp), {})[key_range] = end
            yield
        for (partition, timestamp), range_ends in by_walk.items():
            log = partition.log
            together = [TimeLookup(partition, key_range, timestamp) for key_range in range_ends]
            yield from self._walk(together, first_at_least(log, log.keys, timestamp, range_ends))

    def _walk(self, lookups: list[TimeLookup], walk: Generator[None, None, Found]) -> Stepwise[None]:
        try:
            found = yield from walk
        except KafkaError as fault:
            self._found.update(dict.fromkeys(lookups, fault))
        else:
            self._found.update({lookup: found.get(lookup.key_range) for lookup in lookups})

    def of(self, lookup: TimeLookup) -> TimestampOffset | None:
        """The found record; None without such a record. Raises the KafkaError of the lookup, and OFFSET_NOT_AVAILABLE
        (78) if the lookup was not made."""
        found = self._found.get(lookup, keys_are_being_indexed(lookup.partition))
        if isinstance(found, KafkaError):
            raise found
        return found


def keys_are_being_indexed(partition: Partition) -> KafkaError:
    """The error of a request that needs keys of the partition which are not known yet."""
    return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"the keys of {partition.topic_partition} are being indexed")
