"""AssignReplicasToDirs (73): a broker tells in which of its directories its replicas are (KIP-858)."""

from tailrace.protocol.schema import Int16, Int32, Int64, Uuid, message, struct


@struct
class AssignedPartition:
    partition_index: Int32


@struct
class AssignedTopic:
    topic_id: Uuid
    partitions: tuple[AssignedPartition, ...]


@struct
class AssignedDirectory:
    """A directory and the replicas in it."""

    id: Uuid
    topics: tuple[AssignedTopic, ...]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest:
    """All at once, directory by directory."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    directories: tuple[AssignedDirectory, ...]


@struct
class AssignedPartitionResult:
    partition_index: Int32
    error_code: Int16 = 0


@struct
class AssignedTopicResult:
    topic_id: Uuid
    partitions: tuple[AssignedPartitionResult, ...]


@struct
class AssignedDirectoryResult:
    id: Uuid
    topics: tuple[AssignedTopicResult, ...]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsResponse:
    """Replica by replica, whether the controller knows it now."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: tuple[AssignedDirectoryResult, ...]
