"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14): membership in a classic consumer group.

Requests of older versions are converted here, so that the groups get requests only in their newest form: JoinGroup v0
has one timeout for both purposes; v4 a new member gets an id and joins again with it (KIP-394); v5 static members
(KIP-345); v7 the protocol may be null; v9 the answer may tell the leader to skip the assignment (KIP-814). SyncGroup v5
must name the protocol (KIP-559). LeaveGroup v3 removes many members; before v3 the result for the only member is the
whole answer.
"""

from typing import Final

from tailrace.coordinators.groups.events import (
    HeartbeatAsked,
    JoinAsked,
    LeaveAsked,
    MembershipResponse,
    SyncAsked,
)
from tailrace.coordinators.groups.group import size_of
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
)
from tailrace.protocol.schema import replace
from tailrace.server.context import RequestContext
from tailrace.server.groups.host import GroupCoordinatorService

_FIRST_JOIN_WITH_GIVEN_ID = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL = 7
_FIRST_JOIN_WITHOUT_ASSIGNING = 9
_FIRST_SYNC_WITH_PROTOCOL = 5
_FIRST_LEAVE_OF_MANY = 3

_LONGEST_SHOWN = 255
_LONGEST_NAME = 8182
"""Characters of up to four bytes. A member id is such a name with 37 bytes more, and a string in the group's record has
at most 32,767 bytes."""


class JoinGroupHandler:
    """Answers when the rebalance is complete, or at once with an error or an id."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: JoinGroupRequest, context: RequestContext) -> None:
        coordinators = self._coordinators
        host = coordinators.host_of(request.group_id, check_limit=True)
        _check_names(request, context.client_id or "")
        if request.rebalance_timeout_ms <= 0:
            request = replace(request, rebalance_timeout_ms=request.session_timeout_ms)
        version = context.api_version

        def respond(response: MembershipResponse) -> None:
            assert isinstance(response, JoinGroupResponse)
            if response.protocol_name is None and version < _FIRST_JOIN_WITH_NULL_PROTOCOL:
                response = replace(response, protocol_name="")
            _log_refused_size(coordinators, request, response, size_of(request.protocols))
            context.respond(response)

        host.ask(
            request.group_id,
            lambda request_id: JoinAsked(
                request_id=request_id,
                request=request,
                client_id=context.client_id or "",
                client_host=context.identity.host,
                must_know_its_id=version >= _FIRST_JOIN_WITH_GIVEN_ID,
                may_skip_assignment=version >= _FIRST_JOIN_WITHOUT_ASSIGNING,
            ),
            respond,
        )


def _check_names(request: JoinGroupRequest, client_id: str) -> None:
    names = (client_id, request.group_instance_id or "", request.protocol_type, *(p.name for p in request.protocols))
    if max(map(len, names)) > _LONGEST_NAME:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a name in the request has more than {_LONGEST_NAME} characters")


_OF_SIZE: Final = (ErrorCode.INVALID_REQUEST, ErrorCode.GROUP_MAX_SIZE_REACHED)


def _log_refused_size(
    coordinators: GroupCoordinatorService,
    request: JoinGroupRequest | SyncGroupRequest,
    response: MembershipResponse,
    size_bytes: int,
) -> None:
    """Log the settings because of which the request was refused, if there are such settings: the client shows only the
    code."""
    if response.error_code not in _OF_SIZE:
        return
    config = coordinators.config
    coordinators.size_refusals.write(
        "request=%s group=%r member=%r code=%s bytes=%d"
        " group.max.metadata.bytes=%d (all members: %d) group.max.size=%d",
        type(request).__name__.removesuffix("Request"),
        request.group_id[:_LONGEST_SHOWN],
        request.member_id[:_LONGEST_SHOWN],
        ErrorCode(response.error_code).name,
        size_bytes,
        config.group_max_metadata_bytes,
        config.group_max_total_metadata_bytes,
        config.group_max_size,
    )


class SyncGroupHandler:
    """Answers when the leader's assignment is committed."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: SyncGroupRequest, context: RequestContext) -> None:
        names_protocol = request.protocol_type is not None and request.protocol_name is not None
        if context.api_version >= _FIRST_SYNC_WITH_PROTOCOL and not names_protocol:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol's type and name are missing")
        coordinators = self._coordinators

        def respond(response: MembershipResponse) -> None:
            size_bytes = sum(len(given.assignment) for given in request.assignments)
            _log_refused_size(coordinators, request, response, size_bytes)
            context.respond(response)

        coordinators.host_of(request.group_id).ask(
            request.group_id, lambda request_id: SyncAsked(request_id=request_id, request=request), respond
        )


class HeartbeatHandler:
    """Keeps a member's session alive; the answer reports a rebalance."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: HeartbeatRequest, context: RequestContext) -> None:
        self._coordinators.host_of(request.group_id).ask(
            request.group_id,
            lambda request_id: HeartbeatAsked(request_id=request_id, request=request),
            context.respond,
        )


class LeaveGroupHandler:
    """Removes members."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: LeaveGroupRequest, context: RequestContext) -> None:
        names_one_member = context.api_version < _FIRST_LEAVE_OF_MANY
        if names_one_member:
            request = replace(request, members=(MemberIdentity(member_id=request.member_id),))

        def respond(response: MembershipResponse) -> None:
            assert isinstance(response, LeaveGroupResponse)
            if names_one_member:
                response = LeaveGroupResponse(error_code=response.members[0].error_code)
            context.respond(response)

        self._coordinators.host_of(request.group_id).ask(
            request.group_id, lambda request_id: LeaveAsked(request_id=request_id, request=request), respond
        )
