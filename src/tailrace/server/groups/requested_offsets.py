"""The offsets of a commit request: the offsets that can be committed, and the codes of refused offsets."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from tailrace.coordinators.groups.commands import OffsetToCommit, RangesToCommit
from tailrace.metadata.image import TopicImage
from tailrace.metadata.views import hashes_of, stored_as
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.server.slices import STEP, Stepwise


class RequestedPartition(Protocol):
    """A partition of a request, with the offset to commit."""

    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


P = TypeVar("P", bound=RequestedPartition)
RangesOf = Callable[[TopicImage, P], RangesToCommit | None]
"""Returns the ranges of a partition that has ranges; raises KafkaError for bad ranges."""


class RequestedOffsets:
    """The offsets of a request: the offsets that can be committed, and the error codes of refused offsets.

    The last offset of a partition replaces earlier offsets of the same request. For a partition with ranges, that would
    lose the earlier ranges: so a request may name such a partition only once.
    """

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, OffsetToCommit] = {}
        self._refused: dict[TopicPartition, ErrorCode] = {}
        self._codes: list[list[ErrorCode | TopicPartition]] = []
        """For each topic and partition of the request an error, or the partition's key in `_offsets` or `_refused`."""
        self._ends_of_ranges: dict[TopicPartition, tuple[TopicPartition, int]] = {}
        """For each partition with ranges the partition of its records, and the offset behind the last range."""

    @property
    def offsets(self) -> tuple[OffsetToCommit, ...]:
        """The offsets that can be committed."""
        return tuple(self._offsets.values())

    @property
    def ends_of_ranges(self) -> dict[TopicPartition, int]:
        """The offset behind the last range in each partition that has records of ranges, for the partition's leader to
        confirm."""
        ends: dict[TopicPartition, int] = {}
        for stored, end in self._ends_of_ranges.values():
            ends[stored] = max(end, ends.get(stored, end))
        return ends

    def add(
        self,
        topics: Iterable[tuple[TopicImage | None, Sequence[P]]],
        *,
        code_if_absent: ErrorCode,
        ranges_of: RangesOf[P] = lambda _topic, _partition: None,
    ) -> Stepwise[None]:
        """Add the partitions of all topics of the request; None for a topic that does not exist."""
        count = 0
        for topic, partitions in topics:
            codes = []
            for partition in partitions:
                count += 1
                if not count % STEP:
                    yield
                codes.append(code_if_absent if topic is None else self._add(topic, partition, ranges_of))
            count += 1
            if not count % STEP:
                yield
            self._codes.append(codes)

    def _add(self, topic: TopicImage, partition: P, ranges_of: RangesOf[P]) -> ErrorCode | TopicPartition:
        if partition.partition_index not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        where = TopicPartition(topic.name, partition.partition_index)
        try:
            ranges = ranges_of(topic, partition)
        except KafkaError as fault:
            self._refuse(where, fault.code)
            return where
        before = self._offsets.get(where)
        if where in self._refused or (before is not None and (before.ranges or ranges)):
            self._refuse(where, ErrorCode.INVALID_REQUEST)
            return where
        self._offsets[where] = OffsetToCommit(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            ranges=ranges,
            hashes=hashes_of(topic, where.partition),
        )
        if ranges is not None and ranges.rectangles:
            end = max(rectangle.last_offset for rectangle in ranges.rectangles) + 1
            self._ends_of_ranges[where] = stored_as(topic, where.partition), end
        return where

    def _refuse(self, partition: TopicPartition, code: ErrorCode) -> None:
        self._offsets.pop(partition, None)
        self._ends_of_ranges.pop(partition, None)
        self._refused[partition] = code

    def take_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take the ends that leaders have confirmed. A partition without an end is refused, with a code after which
        the client tries again."""
        for partition, (stored, _) in tuple(self._ends_of_ranges.items()):
            end, offset = ends.get(stored), self._offsets[partition]
            if end is None:
                self._refuse(partition, ErrorCode.REQUEST_TIMED_OUT)
            elif offset.ranges is not None:
                self._offsets[partition] = replace(offset, ranges=replace(offset.ranges, end_offset=end))

    def codes(self, outcome: Sequence[ErrorCode] | ErrorCode) -> Iterator[Iterator[ErrorCode]]:
        """The codes by topic and partition. `outcome` has a code per offset of `offsets`, or a common code."""
        of_offsets = [outcome] * len(self._offsets) if isinstance(outcome, ErrorCode) else outcome
        codes = {**self._refused, **dict(zip(self._offsets, of_offsets, strict=True))}
        return ((code if isinstance(code, ErrorCode) else codes[code] for code in row) for row in self._codes)
