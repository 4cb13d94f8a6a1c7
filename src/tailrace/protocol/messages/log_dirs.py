"""DescribeLogDirs (35), AlterReplicaLogDirs (34): replicas on a broker's disks, with sizes (KIP-113).

AssignReplicasToDirs (73): a broker tells in which of its directories its replicas are (KIP-858).
"""

from tailrace.protocol.schema import ZERO_UUID, Int16, Int32, Int64, Uuid, field, message, struct


@struct
class DescribableLogDirTopic:
    """A topic and the partitions asked for."""

    topic: str
    partitions: tuple[Int32, ...]


@message(api_key=35, versions="1-4", flexible="2+")
class DescribeLogDirsRequest:
    """Asks for partitions on this broker; null topics: every topic."""

    topics: tuple[DescribableLogDirTopic, ...] | None
    wants_log_ends: bool = field(versions="2+", tag=10000, default=False)
    """True: report replicas whose logs cannot be used too, and for each replica the end of the good part of its log."""


@struct
class DescribeLogDirsPartition:
    """A log's bytes, and how far the log is behind the high watermark."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: bool
    good_end_offset: Int64 = field(versions="2+", tag=10000, default=-1)
    """If asked for: where the log ends; the end of the good part if the log is damaged. -1: not known."""
    acknowledged_end_offset: Int64 = field(versions="2+", tag=10001, default=-1)
    """If asked for: the offset up to which the log was flushed or committed, as far as noted. -1: not known."""
    log_fault: str = field(versions="2+", tag=10002, default="")
    """The reason why the log cannot be used, if the request asks for it; empty if the log can be used."""


@struct
class DescribeLogDirsTopic:
    """A topic with its partitions."""

    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


@struct
class DescribeLogDirsResult:
    """A directory. v4 adds the size of its file system and the free bytes (KIP-827)."""

    error_code: Int16 = 0
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...]
    total_bytes: Int64 = field(versions="4+", default=-1)
    usable_bytes: Int64 = field(versions="4+", default=-1)


@message(api_key=35, versions="1-4", flexible="2+")
class DescribeLogDirsResponse:
    """The directories of this broker. v3 adds an error for the whole answer."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(versions="3+", default=0)
    results: tuple[DescribeLogDirsResult, ...]
    has_log_ends: bool = field(versions="2+", tag=10000, default=False)
    """The echo of `wants_log_ends`."""


@struct
class AlterReplicaLogDirTopic:
    """A topic and the partitions to move."""

    name: str
    partitions: tuple[Int32, ...]


@struct
class AlterReplicaLogDir:
    """A directory and the partitions to keep there."""

    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...]


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """Moves replicas on this broker from one of its directories to another."""

    dirs: tuple[AlterReplicaLogDir, ...]


@struct
class AlterReplicaLogDirPartitionResult:
    """Whether one replica is, or will be, in the wanted directory."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class AlterReplicaLogDirTopicResult:
    """A topic with its partitions."""

    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...]


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...]


@struct
class AssignedPartition:
    partition_index: Int32


@struct
class AssignedTopic:
    topic_id: Uuid
    partitions: tuple[AssignedPartition, ...]


@struct
class AssignedDirectory:
    """A directory and its replicas."""

    id: Uuid
    topics: tuple[AssignedTopic, ...]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest:
    """The partitions of a broker, directory by directory."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    directories: tuple[AssignedDirectory, ...]
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this broker (`model.proofs`)."""


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
    """For each replica, whether the controller knows its directory now."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: tuple[AssignedDirectoryResult, ...]
