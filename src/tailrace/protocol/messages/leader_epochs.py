"""OffsetForLeaderEpoch (23): where a leader epoch ends, so that a reader notices truncation (KIP-320)."""

from tailrace.protocol.schema import Int16, Int32, Int64, field, message, struct


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


@struct
class EpochEndOffset:
    """The largest epoch at or below the one asked for, and its end (exclusive); -1 and -1 if unknown."""

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
