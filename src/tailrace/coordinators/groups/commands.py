"""Commands to a group coordinator, and views of its groups."""

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.coordinators.groups.consumer.group import ConsumerGroupState
from tailrace.coordinators.groups.group import GroupState
from tailrace.coordinators.groups.history import GroupEvent, OffsetProgress
from tailrace.model.committed_progress import Rectangle
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.groups import DescribedGroupMember


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesToCommit:
    """Records of one partition that are done, beside those that are committed (KIP-X)."""

    rectangles: tuple[Rectangle, ...]
    """`range_commits.check_ranges` has found no fault. None at all: the log was truncated at the offset."""
    state_epoch: int
    """The state epoch that the reader knows; -1: none."""
    end_offset: int
    """An offset that the leader of the partition is known to have reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """The offset of one partition, whose topic exists. `metadata` is a text of the client.

    With ranges these are committed, and the offset is the stable one that the reader knows, -1 for none.
    """

    topic: str
    topic_id: TopicId
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    ranges: RangesToCommit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Commit offsets of a group; the answer is an error code per offset, in order."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    knows_epochs: bool
    """The client can be a member of a consumer group (OffsetCommit v9 and later)."""
    retention_time_ms: int
    """The retention of the offsets in ms; -1: that of the broker's settings."""
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsetsInTransaction:
    """Commit offsets of a group with a producer's transaction; the answer is an error code per offset, in order.

    Clients before KIP-447 name no member: generation -1, and no member id.
    """

    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: int
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete a group without members, with all its offsets."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """Delete a group's offsets in topics without a subscription (KIP-496); the answer is a code per partition."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


MOST_RECORDS_OF_A_SWEEP = 5_000
"""The most offsets that one decision of a sweep deletes: a few milliseconds. Sweeps repeat until nothing is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetLostTopics:
    """A sweep: delete the offsets in these topics that belong to another id than the given one; None: all of them.

    A topic that was created again has another id. Offsets without an id count as those of the present topic. The ids
    are read when the command is decided.
    """

    topics: Mapping[str, TopicId | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """A sweep: delete the expired offsets of these groups, and the groups that are empty then (KIP-211).

    If the log still has members of an empty group, the empty group is written first: its retention begins then.
    """

    group_ids: tuple[str, ...]


Command = CommitOffsets | CommitOffsetsInTransaction | DeleteGroup | DeleteOffsets | ForgetLostTopics | ExpireOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    """A group in a list."""

    group_id: str
    protocol_type: str
    """Empty for a group of consumers that assign themselves."""
    state: GroupState | ConsumerGroupState
    is_consumer_group: bool = False
    """A consumer group of KIP-848; else a classic group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """A whole group. Only a stable group has a protocol, and members with metadata; assignments are the last ones."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedGroupMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLiveness:
    """The time since a member's last heartbeat, and its session timeout."""

    member_id: str
    silent_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInsight:
    """Details of a group at one moment that Kafka's answers do not have.

    The moment is `now_ms` on the host's monotonic clock, as the times of events, and `wall_ms` on the clock of commits.
    """

    now_ms: int
    wall_ms: int
    events: tuple[GroupEvent, ...]
    liveness: tuple[MemberLiveness, ...]
    progress: Mapping[TopicPartition, OffsetProgress]
