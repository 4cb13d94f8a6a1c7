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
    """The offsets of one request."""

    def __init__(self) -> None:
        self.offsets: list[OffsetToCommit] = []
        """Those that can be committed, in order."""
        self._codes: list[list[ErrorCode | None]] = []
        """Per topic and partition: an error, or None for one that is in `offsets`."""

    def add_topic(
        self, topic: TopicImage | None, partitions: Sequence[AskedPartition], *, code_if_absent: ErrorCode
    ) -> None:
        """The partitions of the next topic; None: there is no such topic."""
        self._codes.append([self._take(topic, partition, code_if_absent) for partition in partitions])

    def _take(self, topic: TopicImage | None, partition: AskedPartition, code_if_absent: ErrorCode) -> ErrorCode | None:
        if topic is None:
            return code_if_absent
        if partition.partition_index not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.offsets.append(
            OffsetToCommit(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=partition.partition_index,
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata or "",
            )
        )
        return None

    def codes(self, outcome: Sequence[ErrorCode] | ErrorCode) -> list[list[ErrorCode]]:
        """Per topic and partition. `outcome` has a code for each of `offsets`, or one for all."""
        of_offsets = [outcome] * len(self.offsets) if isinstance(outcome, ErrorCode) else outcome
        committed = iter(of_offsets)
        return [[next(committed) if code is None else code for code in codes] for codes in self._codes]
