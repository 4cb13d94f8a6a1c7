"""DeleteRecords (21): the beginning of a log is given up (KIP-107)."""

from tailrace.protocol.schema import Int16, Int32, Int64, message, struct


@struct
class DeleteRecordsPartition:
    """A partition and the offset below which everything goes; -1 stands for the high watermark."""

    partition_index: Int32
    offset: Int64


@struct
class DeleteRecordsTopic:
    """A topic with its partitions."""

    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Moves the log start of partitions that this broker leads."""

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


@struct
class DeleteRecordsPartitionResult:
    """The first offset that is left in every replica, -1 with an error."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16 = 0


@struct
class DeleteRecordsTopicResult:
    """A topic with its partitions."""

    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """Partition by partition, where the log starts now."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
