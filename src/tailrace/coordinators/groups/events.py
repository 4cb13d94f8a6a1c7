"""Events of a group's membership, and the effects of its machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType

from tailrace.coordinators.groups.group import RequestId
from tailrace.coordinators.groups.records import GroupLogRecord, GroupMetadataValue
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.protocol.messages.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

WriteId = NewType("WriteId", int)
"""A write of a group's metadata, unique for a coordinator: a group that was deleted and created again must not get the
outcome of a write of the former group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAsked:
    request_id: RequestId
    request: JoinGroupRequest
    client_id: str
    client_host: str
    must_know_its_id: bool
    """Whether a new member first gets an id and then joins again with this id (KIP-394): JoinGroup v4 and later."""
    may_skip_assignment: bool
    """Whether the client supports a leader that need not assign (KIP-814): JoinGroup v9 and later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAsked:
    request_id: RequestId
    request: SyncGroupRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAsked:
    request_id: RequestId
    request: HeartbeatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAsked:
    """The members to remove are in `request.members`, for every version."""

    request_id: RequestId
    request: LeaveGroupRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """A member has committed offsets, which keeps its session alive."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCommitted:
    write_id: WriteId


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFailed:
    """The metadata was not committed, or was not committed in time."""

    write_id: WriteId
    code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """The machine of the group ends: `code` is the answer to every waiting member."""

    code: ErrorCode = ErrorCode.NOT_COORDINATOR


Asked = JoinAsked | SyncAsked | HeartbeatAsked | LeaveAsked
Event = Asked | OffsetsCommitted | MetadataCommitted | MetadataFailed | Tick | Abandoned
MembershipResponse = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Send the response of a request, which gets exactly one response."""

    request_id: RequestId
    response: MembershipResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistGroup:
    """Commit this generation, then report MetadataCommitted or MetadataFailed."""

    group_id: str
    write_id: WriteId
    metadata: GroupMetadataValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Write these tombstones of an empty consumer group, whose name a classic group takes."""

    records: tuple[GroupLogRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExpired:
    """A consumer group's member has timed out: remove the member."""

    group_id: str
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Commit these records of a consumer group, then answer. Without records, answer when all earlier records are
    committed."""

    event: Asked
    group_id: str
    member_id: str
    """The member that sent the request; empty if the records concern several members."""
    records: tuple[GroupLogRecord, ...] = ()
    response: MembershipResponse
    is_conversion: bool = False
    """Whether the group changes its kind: then the records are written in one batch."""


Effect = Answer | PersistGroup | Retire | MemberExpired | Decided


class GroupEffects:
    """The effects of the present step."""

    def __init__(self, group_id: str, write_ids: Iterator[int]) -> None:
        self._group_id = group_id
        self._write_ids = write_ids
        self._effects: list[Effect] = []

    def answer(self, request_id: RequestId, response: MembershipResponse) -> None:
        self._effects.append(Answer(request_id=request_id, response=response))

    def persist(self, metadata: GroupMetadataValue) -> WriteId:
        write_id = WriteId(next(self._write_ids))
        self._effects.append(PersistGroup(group_id=self._group_id, write_id=write_id, metadata=metadata))
        return write_id

    def drain(self) -> list[Effect]:
        """Remove and return the effects so far, in order."""
        effects, self._effects = self._effects, []
        return effects
