"""FetchSnapshot (59): the bytes of snapshots, for a replica whose log ends before the leader's begins (KIP-630)."""

from tailrace.protocol.messages.fetch import WireSnapshotId
from tailrace.protocol.schema import ZERO_UUID, Int16, Int32, Int64, Records, UInt16, Uuid, field, message, struct


@struct
class SnapshotPosition:
    """A snapshot of a partition, and the byte to read from. v1 adds the replica's directory (KIP-853)."""

    partition: Int32
    current_leader_epoch: Int32
    """-1: not known."""
    snapshot_id: WireSnapshotId
    position: Int64
    replica_directory_id: Uuid = field(versions="1+", tag=0, default=ZERO_UUID)


@struct
class SnapshotTopic:
    name: str
    partitions: tuple[SnapshotPosition, ...]


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotRequest:
    """Bytes of several snapshots; all together at most `max_bytes`, evenly shared."""

    cluster_id: str | None = field(tag=0, default=None)
    replica_id: Int32 = -1
    max_bytes: Int32 = 0x7FFFFFFF
    topics: tuple[SnapshotTopic, ...]


@struct
class SnapshotLeader:
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class SnapshotPart:
    """Some bytes of a snapshot: they may begin and end in the middle of a batch."""

    index: Int32
    error_code: Int16 = 0
    snapshot_id: WireSnapshotId
    current_leader: SnapshotLeader = field(tag=0, default=SnapshotLeader())
    size: Int64
    """Of the whole snapshot, in bytes."""
    position: Int64
    unaligned_records: Records = field(nullable="none")
    """Never null: empty if there are none."""


@struct
class SnapshotPartTopic:
    name: str
    partitions: tuple[SnapshotPart, ...]


@struct
class SnapshotLeaderEndpoint:
    """An address at which a leader listens for other voters."""

    node_id: Int32 = field(versions="1+", default=0)
    host: str = field(versions="1+", default="")
    port: UInt16 = field(versions="1+", default=0)


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: tuple[SnapshotPartTopic, ...]
    node_endpoints: tuple[SnapshotLeaderEndpoint, ...] = field(versions="1+", tag=0, default=())
