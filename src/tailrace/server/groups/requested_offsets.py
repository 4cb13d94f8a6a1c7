"""The offsets of one commit: those that can be committed, and the codes of the others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from tailrace.coordinators.groups.commands import OffsetToCommit, RangesToCommit
from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.metadata.views import Views
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.server.slices import Stepwise, mapped


class RequestedPartition(Protocol):
    """One partition of a request, with the offset to commit."""

    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


P = TypeVar("P", bound=RequestedPartition)


class NamedTopics(NamedTuple):
    """The topics and views that a group may have offsets in."""

    image: ClusterImage
    views: Views

    def named(self, name: str) -> TopicImage | None:
        return self.views.topic(self.image, name)

    def with_id(self, topic_id: bytes) -> TopicImage | None:
        return self.views.topic_by_id(self.image, topic_id)

    def has(self, partition: TopicPartition) -> bool:
        """Whether the topic or view has this partition."""
        topic = self.named(partition.topic)
        return topic is not None and partition.partition in topic.partitions


class RequestedOffsets:
    """The offsets of a request: those that can be committed, and the error codes of the others.

    The last offset of a partition replaces the earlier ones of the same request. With ranges that would lose what the
    earlier ones say, so a partition with ranges is named once.
    """

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, OffsetToCommit] = {}
        self._refused: dict[TopicPartition, ErrorCode] = {}
        self._codes: list[tuple[ErrorCode | TopicPartition, ...]] = []
        """By topic and partition of the request: an error, or the key in `_offsets` or `_refused`."""

    @property
    def offsets(self) -> tuple[OffsetToCommit, ...]:
        """The offsets that can be committed."""
        return tuple(self._offsets.values())

    def add_topic(
        self,
        topic: TopicImage | None,
        partitions: Sequence[P],
        *,
        code_if_absent: ErrorCode,
        ranges_of: Callable[[TopicImage, P], RangesToCommit | None] = lambda _topic, _partition: None,
    ) -> Stepwise[None]:
        """Add the partitions of the next topic; None: the topic does not exist.

        `ranges_of` returns the ranges of a partition that has some, and raises KafkaError for bad ones.
        """
        codes = yield from mapped(lambda partition: self._add(topic, partition, code_if_absent, ranges_of), partitions)
        self._codes.append(codes)

    def _add(
        self,
        topic: TopicImage | None,
        partition: P,
        code_if_absent: ErrorCode,
        ranges_of: Callable[[TopicImage, P], RangesToCommit | None],
    ) -> ErrorCode | TopicPartition:
        if topic is None:
            return code_if_absent
        if partition.partition_index not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        where = TopicPartition(topic.name, partition.partition_index)
        try:
            ranges = ranges_of(topic, partition)
        except KafkaError as fault:
            self.refuse(where, fault.code)
            return where
        before = self._offsets.get(where)
        if where in self._refused or (before is not None and (before.ranges or ranges)):
            self.refuse(where, ErrorCode.INVALID_REQUEST)
            return where
        self._offsets[where] = OffsetToCommit(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            ranges=ranges,
        )
        return where

    def refuse(self, partition: TopicPartition, code: ErrorCode) -> None:
        """Do not commit this partition, which was added."""
        self._offsets.pop(partition, None)
        self._refused[partition] = code

    def ends_of_ranges(self) -> dict[TopicPartition, int]:
        """The offset behind the last one of the ranges of each partition that has ranges."""
        return {
            partition: max(one.last_offset for one in offset.ranges.rectangles) + 1
            for partition, offset in self._offsets.items()
            if offset.ranges is not None and offset.ranges.rectangles
        }

    def take_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Have the ends of partitions with ranges; one without an end is refused, with a code to try again."""
        for partition in self.ends_of_ranges():
            end = ends.get(partition)
            if end is None:
                self.refuse(partition, ErrorCode.REQUEST_TIMED_OUT)
                continue
            offset = self._offsets[partition]
            assert offset.ranges is not None, "it has ranges"
            self._offsets[partition] = replace(offset, ranges=replace(offset.ranges, end_offset=end))

    def codes(self, outcome: Sequence[ErrorCode] | ErrorCode) -> Iterator[Iterator[ErrorCode]]:
        """The codes by topic and partition. `outcome` has a code for each of `offsets`, or one for all."""
        of_offsets = [outcome] * len(self._offsets) if isinstance(outcome, ErrorCode) else outcome
        codes = {**self._refused, **dict(zip(self._offsets, of_offsets, strict=True))}
        return ((code if isinstance(code, ErrorCode) else codes[code] for code in row) for row in self._codes)
