"""AlterReplicaLogDirs (34): a node has one directory, and a replica can only be moved to where it is (KIP-113)."""

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from tailrace.server.context import RequestContext
from tailrace.server.partitions.table import PartitionTable


class AlterReplicaLogDirsHandler:
    """Accepts the directory that is there, for replicas that are in it."""

    def __init__(self, *, partitions: PartitionTable, path: str) -> None:
        """`path` is the directory as clients see it."""
        self._partitions = partitions
        self._path = path

    def handle(self, request: AlterReplicaLogDirsRequest, context: RequestContext) -> AlterReplicaLogDirsResponse:
        return AlterReplicaLogDirsResponse(
            results=tuple(
                AlterReplicaLogDirTopicResult(
                    topic_name=topic.name,
                    partitions=tuple(
                        AlterReplicaLogDirPartitionResult(
                            partition_index=index, error_code=self._move(directory.path, topic.name, index)
                        )
                        for index in topic.partitions
                    ),
                )
                for directory in request.dirs
                for topic in directory.topics
            )
        )

    def _move(self, path: str, topic: str, index: int) -> ErrorCode:
        if path != self._path:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if self._partitions.offline_replica(topic, index) is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._partitions.has(topic, index):
            return ErrorCode.NONE
        is_elsewhere = self._partitions.leaders.leader_of(topic, index) is not None
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
