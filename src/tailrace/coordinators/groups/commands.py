"""Commands to a group coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.model.committed_progress import Rectangle
from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import WHOLE, KeyRange
from tailrace.model.partitions import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesToCommit:
    """Records of one partition that are done, beside the committed records (KIP-X)."""

    rectangles: tuple[Rectangle, ...]
    """The caller has checked the ranges by `range_commits.check_ranges`. No ranges: the log was truncated at the
    offset."""
    state_epoch: int
    """The state epoch that the reader knows; -1 if it knows no epoch."""
    end_offset: int
    """An offset that the leader of the partition is known to have reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """The offset of one partition, whose topic exists. `metadata` is a text of the client.

    With ranges the ranges are committed, and the offset is the stable offset that the reader knows, or -1.
    """

    topic: str
    topic_id: TopicId
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    ranges: RangesToCommit | None = None
    hashes: KeyRange = WHOLE
    """The hashes that the records of the partition may have: a slot for a partition of a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Commit offsets of a group, inside or outside of a producer's transaction; the answer is a code per offset, in
    order.

    A client that names no member has generation -1 and no member id.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]
    knows_epochs: bool = True
    """Whether the client can be a member of a consumer group (OffsetCommit v9 and later)."""
    retention_time_ms: int = -1
    """The retention time of the offsets in ms; -1: the time in the broker's settings."""
    producer_id: int | None = None
    """The producer with whose transaction the offsets become committed."""


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
    """A sweep: for each topic, delete the offsets that belong to another topic id than the given id; None: every offset
    of the topic.

    A topic that was created again has another id. Offsets without an id count as offsets of the present topic. The ids
    are read when the command is decided.
    """

    topics: Mapping[str, TopicId | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """A sweep: delete the expired offsets of these groups, and the groups that have no offsets after that (KIP-211).

    If the log still has members of an empty group, the empty group is written first: with this record its retention
    begins.
    """

    group_ids: tuple[str, ...]


Command = CommitOffsets | DeleteGroup | DeleteOffsets | ForgetLostTopics | ExpireOffsets
