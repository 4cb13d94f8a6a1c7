"""ListOffsets (2): the offset that belongs to a timestamp, or to an end of the log."""

from tailrace.protocol.schema import Int8, Int16, Int32, Int64, field, message, struct


@struct
class ListOffsetsPartition:
    """A timestamp in ms, or -1 end, -2 start, -3 (v7) the largest timestamp, -4 (v8) and -5 (v9) tiers."""

    partition_index: Int32
    current_leader_epoch: Int32 = field(versions="4+", default=-1)
    timestamp: Int64


@struct
class ListOffsetsTopic:
    """Partitions of one topic."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@message(api_key=2, versions="1-10", flexible="6+")
class ListOffsetsRequest:
    """Asks for the first offset at or after a timestamp. v2 adds isolation, v10 a time limit for remote logs."""

    replica_id: Int32
    isolation_level: Int8 = field(versions="2+", default=0)
    topics: tuple[ListOffsetsTopic, ...]
    timeout_ms: Int32 = field(versions="10+", default=0)


@struct
class ListOffsetsPartitionResponse:
    """The offset found and its record's timestamp; -1 and -1 if there is none."""

    partition_index: Int32
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = field(versions="4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    """Partitions of one topic."""

    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@message(api_key=2, versions="1-10", flexible="6+")
class ListOffsetsResponse:
    """The offsets found. v4 adds the leader epoch of each (KIP-320)."""

    throttle_time_ms: Int32 = field(versions="2+", default=0)
    topics: tuple[ListOffsetsTopicResponse, ...]
