"""Fetch (1): a long poll for record batches, by consumers and by followers.

DescribeFetchSessions (10000): the fetch sessions (KIP-227) of the broker that is asked. Keys from 10000 on are ours,
not Kafka's, as tags are (decision 0053); a broker announces its keys in ApiVersions like Kafka's keys.
"""

from collections.abc import Sequence

from tailrace.protocol.schema import ZERO_UUID, Int8, Int16, Int32, Int64, Records, Uuid, field, message, struct


@struct
class ReplicaState:
    """The follower that asks, and the epoch of its registration (KIP-903); consumers have -1."""

    replica_id: Int32 = field(versions="15+", default=-1)
    replica_epoch: Int64 = field(versions="15+", default=-1)


KEY_RANGES_FEATURES = ("tailrace.key.ranges", "tailrace.key.sharing")
"""The extensions of KIP-X, in fields tagged from 10000 on: a broker that announces either feature knows the extensions.
The second name is the former name (decision 0093); a broker announces both."""


@struct
class WireKeyRange:
    """The key hashes from `first` to `last`, and the epoch in which the group has assigned them to the reader."""

    first: Int64
    last: Int64
    assignment_epoch: Int32 = -1


@struct
class FetchPartition:
    """The offset at which to read one partition, and the reader's knowledge of the leadership and of its own log.

    v9 adds the leader epoch (KIP-320), v12 the epoch of the last fetched record (KIP-595), v18 the follower's high
    watermark, so that a follower with a stale high watermark is answered at once (KIP-1166).
    """

    partition: Int32
    current_leader_epoch: Int32 = field(versions="9+", default=-1)
    fetch_offset: Int64
    last_fetched_epoch: Int32 = field(versions="12+", default=-1)
    log_start_offset: Int64 = field(versions="5+", default=-1)
    partition_max_bytes: Int32
    replica_directory_id: Uuid = field(versions="17+", tag=0, default=ZERO_UUID)
    high_watermark: Int64 = field(versions="18+", tag=1, default=9223372036854775807)
    key_ranges: tuple[WireKeyRange, ...] = field(versions="12+", tag=10000, default=())


@struct
class FetchTopic:
    """Partitions to read of one topic: by name, or from v13 by id (KIP-516)."""

    topic: str = field(versions="4-12", default="")
    topic_id: Uuid = field(versions="13+", default=ZERO_UUID)
    partitions: Sequence[FetchPartition]


@struct
class ForgottenTopic:
    """Partitions that leave the fetch session (KIP-227)."""

    topic: str = field(versions="7-12", default="")
    topic_id: Uuid = field(versions="13+", default=ZERO_UUID)
    partitions: tuple[Int32, ...] = field(versions="7+", default=())


@message(api_key=1, versions="4-18", flexible="12+")
class FetchRequest:
    """A long poll for record batches. Answered as soon as `min_bytes` can be read, else after `max_wait_ms`.

    v7 adds fetch sessions (KIP-227), v11 the reader's rack (KIP-392), v13 topic ids (KIP-516), v15 moves the replica id
    into `replica_state` (KIP-903). `key_ranges` hold for partitions without key ranges of their own.
    """

    cluster_id: str | None = field(versions="12+", tag=0, default=None)
    replica_id: Int32 = field(versions="4-14", default=-1)
    replica_state: ReplicaState = field(versions="15+", tag=1, default=ReplicaState())
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Int32 = field(versions="7+", default=0)
    session_epoch: Int32 = field(versions="7+", default=-1)
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = field(versions="7+", default=())
    rack_id: str = field(versions="11+", default="")
    hash_scheme: Int8 = field(versions="12+", tag=10004, default=0)
    key_ranges: tuple[WireKeyRange, ...] = field(versions="12+", tag=10006, default=())
    secret: Uuid = field(versions="12+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this replica (`model.proofs`)."""


@struct
class DivergingEpoch:
    """The offset and epoch at which the follower's log diverges from the leader's (KIP-595)."""

    epoch: Int32 = field(versions="12+", default=-1)
    end_offset: Int64 = field(versions="12+", default=-1)


@struct
class LeaderIdAndEpoch:
    """A newer leader, named with error 6 or 74 so that the reader need not ask for metadata (KIP-951)."""

    leader_id: Int32 = field(versions="12+", default=-1)
    leader_epoch: Int32 = field(versions="12+", default=-1)


@struct
class WireSnapshotId:
    """The snapshot that a follower must load because the log no longer reaches back (KIP-630)."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


@struct
class AbortedTransaction:
    """A transaction whose records from `first_offset` to its marker a read-committed reader skips."""

    producer_id: Int64
    first_offset: Int64


@struct
class PartitionData:
    """The answer for one partition. v11 adds the replica to read from instead (KIP-392).

    `records` are batches, beginning with the batch that holds the fetch offset; other brokers may cut the last batch.
    For key ranges `records` are parts of batches, and every record of the ranges below `scanned_to` is here or was in
    an earlier answer. `checked_from`: to a follower, its leader vouches for the headers of batches from this offset on
    (decision 0069). `deleted_keys`: to a follower, the last deleted offset of each slot (decision 0099).
    """

    partition_index: Int32
    error_code: Int16 = 0
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = field(versions="5+", default=-1)
    diverging_epoch: DivergingEpoch = field(versions="12+", tag=0, default=DivergingEpoch())
    current_leader: LeaderIdAndEpoch = field(versions="12+", tag=1, default=LeaderIdAndEpoch())
    snapshot_id: WireSnapshotId = field(versions="12+", tag=2, default=WireSnapshotId())
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    preferred_read_replica: Int32 = field(versions="11+", default=-1)
    records: Records = None
    applied_key_ranges: tuple[WireKeyRange, ...] = field(versions="12+", tag=10000, default=())
    scanned_to: Int64 = field(versions="12+", tag=10001, default=-1)
    checked_from: Int64 = field(versions="12+", tag=10002, default=-1)
    deleted_keys: bytes = field(versions="12+", tag=10003, default=b"")


@struct
class FetchableTopicResponse:
    """Partitions of one topic; in an incremental answer only partitions with changes."""

    topic: str = field(versions="4-12", default="")
    topic_id: Uuid = field(versions="13+", default=ZERO_UUID)
    partitions: Sequence[PartitionData]


@struct
class NodeEndpoint:
    """The address of a leader (KIP-951)."""

    node_id: Int32 = field(versions="16+", default=0)
    host: str = field(versions="16+", default="")
    port: Int32 = field(versions="16+", default=0)
    rack: str | None = field(versions="16+", default=None)


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse:
    """Record batches. v7 adds the session and its errors (KIP-227), v16 where new leaders listen (KIP-951)."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(versions="7+", default=0)
    session_id: Int32 = field(versions="7+", default=0)
    responses: tuple[FetchableTopicResponse, ...]
    node_endpoints: tuple[NodeEndpoint, ...] = field(versions="16+", tag=0, default=())


# Descriptions of fetch sessions


@message(api_key=10000, versions="0", flexible="0+")
class DescribeFetchSessionsRequest:
    """Asks for sessions page by page, in the order of their ids."""

    first_session_id: Int32 = 0
    """The id at which the page begins; 0: the first page."""


@struct
class DescribedFetchSession:
    """A session."""

    session_id: Int32
    session_epoch: Int32
    """The epoch of the next fetch."""
    principal: str
    listener_name: str
    replica_id: Int32
    """The broker whose follower has the session; -1 for a consumer, -2 for a sender that has not proved its id."""
    client_id: str
    client_host: str
    is_privileged: bool
    partition_count: Int32
    uses_topic_ids: bool
    age_ms: Int64
    idle_ms: Int64
    """The time since the last fetch of the session."""
    incremental_fetches: Int64
    saved_bytes: Int64
    """The bytes by which full fetches would have been larger, estimated."""


@message(api_key=10000, versions="0", flexible="0+")
class DescribeFetchSessionsResponse:
    """The session cache of one broker, and one page of its sessions."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    slots: Int32 = 0
    """The most sessions that the broker keeps (max.incremental.fetch.session.cache.slots)."""
    session_count: Int32 = 0
    partition_count: Int64 = 0
    """The partitions of all sessions together."""
    evictions: Int64 = 0
    """Sessions that newer sessions have displaced since the broker started."""
    sessions: tuple[DescribedFetchSession, ...] = ()
    next_session_id: Int32 = 0
    """The begin of the next page; 0: this is the last page."""
