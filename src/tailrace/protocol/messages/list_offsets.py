"""ListOffsets (2): the offset that belongs to a timestamp, or to an end of the log.

OffsetForLeaderEpoch (23): where a leader epoch ends, so that a reader notices truncation (KIP-320).
"""

from typing import Final

from tailrace.protocol.schema import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid, field, message, struct

NOT_COUNTED: Final = -1
EXACT_COUNT: Final = 0
ESTIMATED_COUNT: Final = 1
UNFINISHED_COUNT: Final = 2
"""An estimate that will be better if the question comes again."""


@struct
class ListOffsetsPartition:
    """A timestamp in ms, or -1 end, -2 start, -3 (v7) the largest timestamp, -4 (v8) and -5 (v9) tiers."""

    partition_index: Int32
    current_leader_epoch: Int32 = field(versions="4+", default=-1)
    timestamp: Int64
    count_from: Int64 = field(versions="6+", tag=10000, default=-1)
    """Ours: the records from this offset up to the end (-1) are counted, of a view partition too (decision 0100)."""


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
    secret: Uuid = field(versions="6+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this replica (`model.proofs`)."""


@struct
class ListOffsetsPartitionResponse:
    """The offset found and its record's timestamp; -1 and -1 if no offset was found."""

    partition_index: Int32
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = field(versions="4+", default=-1)
    records: Int64 = field(versions="6+", tag=10000, default=-1)
    """Ours: the counted records; -1: the server counts none."""
    count_quality: Int8 = field(versions="6+", tag=10001, default=0)
    """Ours: whether the count is exact."""


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


@struct
class OffsetForLeaderPartition:
    """Asks where `leader_epoch` ends; `current_leader_epoch` fences readers with old metadata."""

    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


@struct
class OffsetForLeaderTopic:
    """Partitions of one topic."""

    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """Asks for the ends of leader epochs. v3 adds the replica id: -1 is a consumer, -2 a debugger."""

    replica_id: Int32 = field(versions="3+", default=-2)
    topics: tuple[OffsetForLeaderTopic, ...]
    secret: Uuid = field(versions="4+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this replica (`model.proofs`)."""


@struct
class EpochEndOffset:
    """The largest epoch at or below the epoch in the request, and its end (exclusive); -1 and -1 if unknown."""

    error_code: Int16 = 0
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@struct
class OffsetForLeaderTopicResult:
    """Partitions of one topic."""

    topic: str
    partitions: tuple[EpochEndOffset, ...]


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """The ends of leader epochs."""

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetForLeaderTopicResult, ...]
