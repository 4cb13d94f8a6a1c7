"""DescribeLogDirs (35) and AlterReplicaLogDirs (34): the partitions on this broker's disk, and their sizes (KIP-113).

DescribeLogDirs: v3 an error of the whole answer; v4 the total and the free bytes of the disk (KIP-827). Partitions
without a replica on this broker are left out, as in Kafka. With our tagged field `wants_log_ends` the answer also has
the partitions whose logs cannot be used, with the end of the undamaged part, for `tailrace topics elect --unclean`.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tailrace.model.errors import ErrorCode, StorageError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tailrace.server.context import RequestContext
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.slices import STEP, Stepwise, mapped, mapped_in, once

_UNKNOWN: Final = -1
_MOST_SIGNS: Final = 1_000


class DescribeLogDirsHandler:
    """Describes the one directory that a node has."""

    def __init__(self, *, partitions: PartitionTable, path: str) -> None:
        """`path` is the directory as clients see it."""
        self._partitions = partitions
        self._path = path

    def handle(self, request: DescribeLogDirsRequest, context: RequestContext) -> Stepwise[DescribeLogDirsResponse]:
        by_topic: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
        for number, ((topic, index), size_bytes) in enumerate((yield from self._sizes(request)), 1):
            if not number % STEP:
                yield
            by_topic[topic].append(self._described(topic, index, size_bytes, wants_log_ends=request.wants_log_ends))
        total_bytes, usable_bytes = self._space()
        result = DescribeLogDirsResult(
            log_dir=self._path,
            topics=tuple(
                DescribeLogDirsTopic(name=topic, partitions=tuple(described)) for topic, described in by_topic.items()
            ),
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
        )
        return DescribeLogDirsResponse(results=(result,), has_log_ends=request.wants_log_ends)

    def _described(self, topic: str, index: int, size_bytes: int, *, wants_log_ends: bool) -> DescribeLogDirsPartition:
        ends = self._partitions.offline.log_ends(TopicPartition(topic, index)) if wants_log_ends else None
        if ends is None:
            return DescribeLogDirsPartition(
                partition_index=index, partition_size=size_bytes, offset_lag=0, is_future_key=False
            )
        return DescribeLogDirsPartition(
            partition_index=index,
            partition_size=size_bytes,
            offset_lag=0,
            is_future_key=False,
            good_end_offset=ends.good_end_offset,
            acknowledged_end_offset=ends.acknowledged_end_offset,
            log_fault=ends.fault[:_MOST_SIGNS],
        )

    def _sizes(self, request: DescribeLogDirsRequest) -> Stepwise[Iterable[tuple[tuple[str, int], int]]]:
        offline = self._partitions.offline if request.wants_log_ends else ()
        if request.topics is None:
            return [*self._partitions.sizes(), *((name, _UNKNOWN) for name in offline)]
        names = yield from once((topic.topic, index) for topic in request.topics for index in topic.partitions)
        sizes = yield from mapped(lambda name: _UNKNOWN if name in offline else self._partitions.size_of(*name), names)
        return [(name, size) for name, size in zip(names, sizes, strict=True) if size is not None]

    def _space(self) -> tuple[int, int]:
        directory = self._partitions.directory
        try:
            return directory.total_bytes, directory.free_bytes
        except StorageError:
            return _UNKNOWN, _UNKNOWN


class AlterReplicaLogDirsHandler:
    """AlterReplicaLogDirs (34): a node has one directory, so that no replica can move (KIP-113)."""

    def __init__(self, *, partitions: PartitionTable, path: str) -> None:
        """`path` is the directory as clients see it."""
        self._partitions = partitions
        self._path = path

    def handle(
        self, request: AlterReplicaLogDirsRequest, context: RequestContext
    ) -> Stepwise[AlterReplicaLogDirsResponse]:
        results = yield from mapped_in(
            ((directory.path, topic) for directory in request.dirs for topic in directory.topics),
            lambda pair: pair[1].partitions,
            lambda pair, index: AlterReplicaLogDirPartitionResult(
                partition_index=index, error_code=self._move(pair[0], pair[1].name, index)
            ),
            lambda pair, partitions: AlterReplicaLogDirTopicResult(topic_name=pair[1].name, partitions=partitions),
        )
        return AlterReplicaLogDirsResponse(results=results)

    def _move(self, path: str, topic: str, index: int) -> ErrorCode:
        if path != self._path:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if self._partitions.offline_replica(topic, index) is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._partitions.has(topic, index):
            return ErrorCode.NONE
        is_elsewhere = self._partitions.leaders.leader_of(topic, index) is not None
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
