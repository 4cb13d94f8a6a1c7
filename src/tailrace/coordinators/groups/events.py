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
"""One write of a group's metadata. Never used twice by one coordinator: a group may be deleted and come back, and what
was written for the first of that name must not be taken for the second's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAsked:
    request_id: RequestId
    request: JoinGroupRequest
    client_id: str
    client_host: str
    must_know_its_id: bool
    """A new member is first given an id and joins again with it (KIP-394): JoinGroup v4 and later."""
    may_skip_assignment: bool
    """The client understands that it leads and yet need not assign (KIP-814): JoinGroup v9 and later."""


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
    """The members to remove stand in `request.members`, whatever the version."""

    request_id: RequestId
    request: LeaveGroupRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """A member in good standing has committed offsets, which shows that it lives."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCommitted:
    write_id: WriteId


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFailed:
    """The metadata is not committed, or not in time."""

    write_id: WriteId
    code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """This coordinator is not active any more; every waiting member gets NOT_COORDINATOR."""

    code: ErrorCode = ErrorCode.NOT_COORDINATOR


Asked = JoinAsked | SyncAsked | HeartbeatAsked | LeaveAsked
Event = Asked | OffsetsCommitted | MetadataCommitted | MetadataFailed | Tick | Abandoned
MembershipResponse = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Send this; the request is done. Every request gets exactly one."""

    request_id: RequestId
    response: MembershipResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistGroup:
    """Commit this generation, then come back with MetadataCommitted or MetadataFailed."""

    group_id: str
    write_id: WriteId
    metadata: GroupMetadataValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Write these tombstones: an empty consumer group of that name makes room for a classic one."""

    records: tuple[GroupLogRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExpired:
    """The time of a consumer group's member is over: have it removed."""

    group_id: str
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Commit these records of a consumer group, and answer then; or when what is on its way is committed, for none."""

    event: Asked
    group_id: str
    member_id: str
    """The member that sent the request; empty for several."""
    records: tuple[GroupLogRecord, ...] = ()
    response: MembershipResponse
    is_conversion: bool = False
    """The records are written together or not at all."""


Effect = Answer | PersistGroup | Retire | MemberExpired | Decided


class GroupEffects:
    """The effects of the step that is under way."""

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
        """The effects so far, in order; the box is empty afterwards."""
        effects, self._effects = self._effects, []
        return effects
