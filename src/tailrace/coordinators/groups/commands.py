"""What a coordinator commits before it answers, and how its groups look from outside."""

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.coordinators.groups.group import GroupState
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """One partition's progress. The topic exists; `metadata` is any text of the client's."""

    topic: str
    topic_id: TopicId = ZERO_TOPIC_ID
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """A group's progress; the answer is an error code per offset, in order."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    """How long the offsets shall stay; -1: as long as the broker's settings say."""
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete a group without members, with all its offsets."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetLostTopics:
    """Delete the offsets of all topics but these; a topic that was created anew has another id and is lost too."""

    topics: Mapping[str, TopicId]


Command = CommitOffsets | DeleteGroup | ForgetLostTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    """A group as a list shows it."""

    group_id: str
    protocol_type: str
    """Empty for a group of consumers that assign themselves."""
    state: GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group in full. Only a stable group has a protocol, and members with metadata and assignment."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]
