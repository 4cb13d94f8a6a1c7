"""The offsets that a request wants committed: those that can be, and where the codes of the others stand."""

from collections.abc import Sequence
from typing import Protocol

from tailrace.coordinators.groups.commands import OffsetToCommit
from tailrace.metadata.image import TopicImage
from tailrace.model.errors import ErrorCode


class AskedPartition(Protocol):
    """One partition's progress."""

    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


class AskedOffsets:
    """The offsets of one request. Of a partition that is named repeatedly the last one counts, and only that."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, int], OffsetToCommit] = {}
        self._codes: list[list[ErrorCode | tuple[str, int]]] = []
        """Per topic and partition: an error, or which offset of the command it is about."""

    @property
    def offsets(self) -> tuple[OffsetToCommit, ...]:
        """Those that can be committed."""
        return tuple(self._offsets.values())

    def add_topic(
        self, topic: TopicImage | None, partitions: Sequence[AskedPartition], *, code_if_absent: ErrorCode
    ) -> None:
        """The partitions of the next topic; None: there is no such topic."""
        self._codes.append([self._take(topic, partition, code_if_absent) for partition in partitions])

    def _take(
        self, topic: TopicImage | None, partition: AskedPartition, code_if_absent: ErrorCode
    ) -> ErrorCode | tuple[str, int]:
        if topic is None:
            return code_if_absent
        if partition.partition_index not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        where = (topic.name, partition.partition_index)
        self._offsets[where] = OffsetToCommit(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
        )
        return where

    def codes(self, outcome: Sequence[ErrorCode] | ErrorCode) -> list[list[ErrorCode]]:
        """Per topic and partition. `outcome` has a code for each of `offsets`, or one for all."""
        of_offsets = [outcome] * len(self._offsets) if isinstance(outcome, ErrorCode) else outcome
        committed = dict(zip(self._offsets, of_offsets, strict=True))
        return [[code if isinstance(code, ErrorCode) else committed[code] for code in codes] for codes in self._codes]
