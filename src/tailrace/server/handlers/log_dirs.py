"""DescribeLogDirs (35): the partitions on this broker's disk, and their sizes (KIP-113).

v3 an error for the whole; v4 the size of the disk and what is left of it (KIP-827). Partitions that are not here
are left out, as in Kafka.
"""

from collections import defaultdict
from collections.abc import Iterable

from tailrace.model.errors import StorageError
from tailrace.protocol.messages.log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tailrace.server.context import RequestContext
from tailrace.server.data.partitions import PartitionTable

_UNKNOWN = -1


class DescribeLogDirsHandler:
    """Describes the one directory that a node has."""

    def __init__(self, *, partitions: PartitionTable, path: str) -> None:
        """`path` is the directory as clients shall see it."""
        self._partitions = partitions
        self._path = path

    def handle(self, request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
        by_topic: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
        for (topic, index), size_bytes in self._sizes(request):
            by_topic[topic].append(
                DescribeLogDirsPartition(
                    partition_index=index, partition_size=size_bytes, offset_lag=0, is_future_key=False
                )
            )
        total_bytes, usable_bytes = self._space()
        result = DescribeLogDirsResult(
            log_dir=self._path,
            topics=tuple(
                DescribeLogDirsTopic(name=topic, partitions=tuple(described)) for topic, described in by_topic.items()
            ),
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
        )
        return DescribeLogDirsResponse(results=(result,))

    def _sizes(self, request: DescribeLogDirsRequest) -> Iterable[tuple[tuple[str, int], int]]:
        if request.topics is None:
            return self._partitions.sizes()
        names = dict.fromkeys((topic.topic, index) for topic in request.topics for index in topic.partitions)
        return [(name, size) for name in names if (size := self._partitions.size_of(*name)) is not None]

    def _space(self) -> tuple[int, int]:
        directory = self._partitions.directory
        try:
            return directory.total_bytes, directory.free_bytes
        except StorageError:
            return _UNKNOWN, _UNKNOWN
