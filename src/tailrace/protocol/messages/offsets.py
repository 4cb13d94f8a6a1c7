"""OffsetCommit (8) and OffsetFetch (9): a group's progress.

The tagged fields from 10,000 on are ours (KIP-X, individual commits): ranges of offsets and key hashes beside the
offset. Without these fields a message has Kafka's bytes, and its answer has Kafka's bytes too.
"""

from tailrace.protocol.messages.fetch import WireKeyRange
from tailrace.protocol.schema import ZERO_UUID, Int16, Int32, Int64, Uuid, field, message, struct


@struct
class WireRectangle:
    """The records with these offsets and these key hashes; inclusive at all ends."""

    first_offset: Int64
    last_offset: Int64
    first_hash: Int64
    last_hash: Int64


@struct
class WireRangeBudget:
    """The number of ranges that a group has committed beyond its offset in a partition, and the most that are
    allowed."""

    used: Int32
    limit: Int32


NO_RANGE_BUDGET = WireRangeBudget(used=0, limit=0)
UNKNOWN_STATE_EPOCH = -1


@struct
class OffsetCommitRequestPartition:
    """The next offset to read, and the epoch of the record before it (v6, KIP-320).

    With ranges, the ranges join the committed ranges, and the offset is the group's offset as the client knows it.
    """

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(versions="6+", default=-1)
    committed_metadata: str | None
    ranges: tuple[WireRectangle, ...] = field(versions="8+", tag=10000, default=())
    state_epoch: Int64 = field(versions="8+", tag=10001, default=UNKNOWN_STATE_EPOCH)


@struct
class OffsetCommitRequestTopic:
    """Partitions of one topic: by name, or from v10 by id."""

    name: str = field(versions="2-9", default="")
    topic_id: Uuid = field(versions="10+", default=ZERO_UUID)
    partitions: tuple[OffsetCommitRequestPartition, ...]


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest:
    """Stores a group's progress; generation -1 from a reader that is in no group. v7 adds static members (KIP-345)."""

    group_id: str
    generation_id_or_member_epoch: Int32 = -1
    member_id: str
    group_instance_id: str | None = field(versions="7+", default=None)
    retention_time_ms: Int64 = field(versions="2-4", default=-1)
    topics: tuple[OffsetCommitRequestTopic, ...]


@struct
class OffsetCommitResponsePartition:
    """Whether one offset is stored. The budget answers a request with ranges alone."""

    partition_index: Int32
    error_code: Int16 = 0
    range_budget: WireRangeBudget = field(versions="8+", tag=10000, default=NO_RANGE_BUDGET)


@struct
class OffsetCommitResponseTopic:
    """Partitions of one topic."""

    name: str = field(versions="2-9", default="")
    topic_id: Uuid = field(versions="10+", default=ZERO_UUID)
    partitions: tuple[OffsetCommitResponsePartition, ...]


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    """Partition by partition, whether the offset is stored."""

    throttle_time_ms: Int32 = field(versions="3+", default=0)
    topics: tuple[OffsetCommitResponseTopic, ...]


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic, of the one group of v1 to v7."""

    name: str = field(versions="1-7", default="")
    partition_indexes: tuple[Int32, ...] = field(versions="1-7", default=())


@struct
class OffsetFetchRequestTopics:
    """Partitions of one topic, from v8 on; from v10 by id."""

    name: str = field(versions="8-9", default="")
    topic_id: Uuid = field(versions="10+", default=ZERO_UUID)
    partition_indexes: tuple[Int32, ...] = field(versions="8+", default=())


@struct
class OffsetFetchRequestGroup:
    """A group, and the partitions wanted; null: every partition that has an offset."""

    group_id: str = field(versions="8+", default="")
    member_id: str | None = field(versions="9+", default=None)
    member_epoch: Int32 = field(versions="9+", default=-1)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = field(versions="8+", default=())
    include_ranges: bool = field(versions="8+", tag=10000, default=False)
    key_ranges: tuple[WireKeyRange, ...] = field(versions="8+", tag=10001, default=())


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest:
    """Asks for a group's progress. v7 can insist on stable offsets (KIP-447), v8 asks for many groups (KIP-709)."""

    group_id: str = field(versions="1-7", default="")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = field(versions="1-7", nullable="2+", default=())
    groups: tuple[OffsetFetchRequestGroup, ...] = field(versions="8+", default=())
    require_stable: bool = field(versions="7+", default=False)


@struct
class OffsetFetchResponsePartition:
    """A committed offset, or -1; v1 to v7."""

    partition_index: Int32 = field(versions="1-7", default=0)
    committed_offset: Int64 = field(versions="1-7", default=0)
    committed_leader_epoch: Int32 = field(versions="5-7", default=-1)
    metadata: str | None = field(versions="1-7", default="")
    error_code: Int16 = field(versions="1-7", default=0)


@struct
class OffsetFetchResponseTopic:
    """Partitions of one topic; v1 to v7."""

    name: str = field(versions="1-7", default="")
    partitions: tuple[OffsetFetchResponsePartition, ...] = field(versions="1-7", default=())


@struct
class OffsetFetchResponsePartitions:
    """A committed offset, or -1; v8 and later. Ranges answer a group's request for ranges alone."""

    partition_index: Int32 = field(versions="8+", default=0)
    committed_offset: Int64 = field(versions="8+", default=0)
    committed_leader_epoch: Int32 = field(versions="8+", default=-1)
    metadata: str | None = field(versions="8+", default="")
    error_code: Int16 = field(versions="8+", default=0)
    committed_ranges: tuple[WireRectangle, ...] = field(versions="8+", tag=10000, default=())
    state_epoch: Int64 = field(versions="8+", tag=10001, default=UNKNOWN_STATE_EPOCH)


@struct
class OffsetFetchResponseTopics:
    """Partitions of one topic; v8 and later."""

    name: str = field(versions="8-9", default="")
    topic_id: Uuid = field(versions="10+", default=ZERO_UUID)
    partitions: tuple[OffsetFetchResponsePartitions, ...] = field(versions="8+", default=())


@struct
class OffsetFetchResponseGroup:
    """The committed offsets of one group, or the error."""

    group_id: str = field(versions="8+", default="")
    topics: tuple[OffsetFetchResponseTopics, ...] = field(versions="8+", default=())
    error_code: Int16 = field(versions="8+", default=0)


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """Committed offsets, from v8 group by group."""

    throttle_time_ms: Int32 = field(versions="3+", default=0)
    topics: tuple[OffsetFetchResponseTopic, ...] = field(versions="1-7", default=())
    error_code: Int16 = field(versions="2-7", default=0)
    groups: tuple[OffsetFetchResponseGroup, ...] = field(versions="8+", default=())


@struct
class OffsetDeleteRequestPartition:
    """A partition whose committed offset is deleted."""

    partition_index: Int32


@struct
class OffsetDeleteRequestTopic:
    """A topic with its partitions."""

    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...]


@message(api_key=47, versions="0")
class OffsetDeleteRequest:
    """Deletes committed offsets of a group, of topics that no member subscribes to (KIP-496)."""

    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...]


@struct
class OffsetDeleteResponsePartition:
    """The outcome of the deletion of one offset."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class OffsetDeleteResponseTopic:
    """A topic with its partitions."""

    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...]


@message(api_key=47, versions="0")
class OffsetDeleteResponse:
    """The outcome for each partition."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...]
