"""Names and positions of partitions."""

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(*, frozen: bool, **options: Any) -> Any:
        """Frozen for the type checker only: a frozen object takes three times as long to make, and when a broker stops,
        30,000 states are made at once."""
        assert frozen
        return dataclasses.dataclass(unsafe_hash=True, **options)


class TopicPartition(NamedTuple):
    """A partition of a topic. A tuple, since the object is a dictionary key on the hot path."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """`orders-3`: also the name of the partition's directory, as in Kafka."""
        return f"{self.topic}-{self.partition}"


class OffsetAndEpoch(NamedTuple):
    """An offset and the leader epoch of the record before that offset."""

    offset: int
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The state of one partition in the metadata log."""

    topic_id: TopicId
    replicas: tuple[BrokerId, ...]
    """The brokers of the replicas, in order of preference."""
    in_sync_replicas: tuple[BrokerId, ...]
    leader: BrokerId
    """-1 while there is no leader."""
    leader_epoch: LeaderEpoch
    """Rises with every change of leader; fences readers and writers of older epochs (KIP-101, KIP-320)."""
    partition_epoch: int
    """Rises with every change of this state."""
    eligible_leader_replicas: tuple[BrokerId, ...] = ()
    """Replicas that are out of sync by now, and yet complete up to the high watermark, which cannot have moved without
    these replicas (KIP-966)."""
    last_known_leaders: tuple[BrokerId, ...] = ()
    """The leader at the loss of the last complete replica; Kafka's LastKnownElr. At most one broker."""
    adding_replicas: tuple[BrokerId, ...] = ()
    """Members of `replicas` that a reassignment adds; not yet in sync."""
    removing_replicas: tuple[BrokerId, ...] = ()
    """Members of `replicas` that leave once the added replicas are in sync."""
    is_recovering: bool = False
    """The leader was elected without being known to be complete, and has not reported its recovery yet."""
    unclean_epoch: int = -1
    """The leader epoch that the last unclean election began, -1 without such an election: records of older epochs may
    be lost."""
    accepts_loss: bool = False
    """The leader was named by an administrator, and records that its log does not have are lost. Until the leader has
    recovered, or is deposed, the leader may cut a damaged log.
    """
    directories: tuple[bytes, ...] = ()
    """The log directory of each replica, in the order of `replicas` (KIP-858)."""


def unclean_epoch_after(state: PartitionState, leader: BrokerId, leader_epoch: int, *, is_recovering: bool) -> int:
    """`unclean_epoch` once `state` has this leader in this epoch.

    Derived from fields that the metadata log has always had: a leader that is elected while the partition is recovering
    may not have all acknowledged records.
    """
    is_unclean = is_recovering and leader != NO_LEADER and leader_epoch > state.leader_epoch
    return leader_epoch if is_unclean else state.unclean_epoch


def accepts_loss_after(state: PartitionState, leader: BrokerId, *, is_recovering: bool) -> bool:
    """`accepts_loss` once `state` has this leader: false for any other leader, and once the leader has recovered."""
    return state.accepts_loss and is_recovering and leader == state.leader


MAX_TOPIC_NAME = 249
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def topic_name_fault(name: str) -> str | None:
    """The reason why Kafka refuses this topic name, or None for a legal name."""
    if not name:
        return "the empty string is not a topic name"
    if name in (".", ".."):
        return "'.' and '..' are not topic names"
    if len(name) > MAX_TOPIC_NAME:
        return f"a topic name has at most {MAX_TOPIC_NAME} characters, this name has {len(name)}"
    if not _LEGAL.issuperset(name):
        return "a topic name consists of ASCII letters, digits, '.', '_' and '-' only"
    return None


GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
METADATA_TOPIC = "__cluster_metadata"
METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
INTERNAL_TOPICS = frozenset((GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC))


class ElectionType(IntEnum):
    """The type of an election of a partition's leader, as on the wire (KIP-460)."""

    PREFERRED = 0
    """The first replica."""
    UNCLEAN = 1
    """Any replica that is alive, for a partition without a leader: records that this replica does not have are lost."""
