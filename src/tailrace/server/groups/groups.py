"""DescribeGroups (15), ListGroups (16), DeleteGroups (42): groups as an administrator sees them.

DescribeGroups: v3 authorized operations; v4 instance ids; v6 a missing group gets error 69; before v6 it is shown in
state Dead. With the extension of `protocol.messages.groups` the answer has the history of the group and the progress of
its members. ListGroups: v4 states and a filter for states, v5 types. The answer lists the groups that this broker
coordinates. DeleteGroups: 68 for a group with members, 69 for a missing group; the answer waits until the deletion is
committed.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from tailrace.coordinators.groups.commands import DeleteGroup
from tailrace.coordinators.groups.group import GroupState
from tailrace.coordinators.groups.reports import GroupInsight
from tailrace.model.access import SecuredResource, SecuredType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupDetails,
    GroupEventDetails,
    ListGroupsRequest,
    ListGroupsResponse,
    PartitionProgress,
    TopicProgress,
)
from tailrace.protocol.schema import replace
from tailrace.server.context import RequestContext
from tailrace.server.errors import refused_part
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.slices import STEP, Stepwise, mapped

NOT_ASKED: Final = -(2**31)

_FIRST_DESCRIBE_WITH_MISSING_GROUP = 6


class DescribeGroupsHandler:
    """Answers for each group by itself."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: DescribeGroupsRequest, context: RequestContext) -> Stepwise[DescribeGroupsResponse]:
        operations_on = operations_on_group(context, is_asked=request.include_authorized_operations)
        groups = yield from mapped(
            lambda group_id: self._describe(
                group_id, context.api_version, operations_on(group_id), with_details=request.include_details
            ),
            dict.fromkeys(request.groups),  # without repetitions: a description may be much longer than a name
        )
        return DescribeGroupsResponse(groups=groups)

    def _describe(self, group_id: str, version: int, operations: int, *, with_details: bool) -> DescribedGroup:
        try:
            host = self._coordinators.host_of(group_id)
            group = host.machine.reports.describe(group_id)
        except KafkaError as refusal:
            return _undescribed(group_id, refusal, version)
        details: tuple[GroupDetails, ...] = ()
        if with_details:
            details = (details_of(host.insight(group_id), max_ranges=self._coordinators.ranged_offsets.max_rectangles),)
        return replace(group, authorized_operations=operations, details=details)


def operations_on_group(context: RequestContext, *, is_asked: bool) -> Callable[[str], int]:
    """The operations of the client on a group, as bits (KIP-430); NOT_ASKED if the client has not asked."""
    if not is_asked:
        return lambda _: NOT_ASKED
    return lambda group_id: context.operations_on(SecuredResource(SecuredType.GROUP, group_id))


def _undescribed(group_id: str, refusal: KafkaError, version: int) -> DescribedGroup:
    is_missing = refusal.code is ErrorCode.GROUP_ID_NOT_FOUND
    state = GroupState.DEAD if is_missing else ""
    undescribed = refused_part(DescribedGroup, refusal, group_id=group_id, group_state=state)
    if is_missing and version < _FIRST_DESCRIBE_WITH_MISSING_GROUP:
        return replace(undescribed, error_code=ErrorCode.NONE, error_message=None)
    return undescribed


def details_of(insight: GroupInsight, *, max_ranges: int) -> GroupDetails:
    """The extension of the answer for one group."""
    return GroupDetails(
        now_ms=insight.wall_ms,
        events=tuple(
            GroupEventDetails(
                kind=event.kind,
                member_id=event.member_id,
                reason=event.reason,
                first_ms_ago=insight.now_ms - event.first_at_ms,
                last_ms_ago=insight.now_ms - event.last_at_ms,
                count=event.count,
            )
            for event in insight.events
        ),
        members=insight.liveness,
        topics=_topics(insight),
        max_ranges=max_ranges,
    )


def _topics(insight: GroupInsight) -> tuple[TopicProgress, ...]:
    topics: dict[str, list[PartitionProgress]] = defaultdict(list)
    for (topic, partition), progress in insight.progress.items():
        topics[topic].append(
            PartitionProgress(
                partition_index=partition,
                offset=progress.offset,
                moved_at_ms=progress.moved_at_ms,
                earlier_offset=progress.earlier_offset,
                earlier_at_ms=progress.earlier_at_ms,
            )
        )
    return tuple(TopicProgress(name=name, partitions=tuple(partitions)) for name, partitions in topics.items())


class ListGroupsHandler:
    """Answers for all coordinators of this broker, or with an error while a coordinator is loading."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: ListGroupsRequest, context: RequestContext) -> Stepwise[ListGroupsResponse]:
        states = {state.lower() for state in request.states_filter}
        types = {group_type.lower() for group_type in request.types_filter}
        overviews = [group for host in self._coordinators.active_hosts() for group in host.machine.reports.overview()]
        wanted = (
            group
            for group in sorted(overviews, key=lambda group: group.group_id)
            if (not states or group.group_state.lower() in states) and (not types or group.group_type in types)
        )
        groups = yield from mapped(lambda group: group, wanted)
        return ListGroupsResponse(groups=groups)


OnDeleted = Callable[[str, tuple[ErrorCode, ...] | KafkaError], None]


class DeleteGroupsHandler:
    """Deletes groups, each by itself."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: DeleteGroupsRequest, context: RequestContext) -> Stepwise[DeleteGroupsResponse | None]:
        names = tuple(dict.fromkeys(request.groups_names))
        if not names:
            return DeleteGroupsResponse(results=())
        results: dict[str, ErrorCode] = {}

        def on_deleted(group_id: str, outcome: tuple[ErrorCode, ...] | KafkaError) -> None:
            results[group_id] = outcome.code if isinstance(outcome, KafkaError) else ErrorCode.NONE
            if len(results) == len(names):
                context.respond(
                    DeleteGroupsResponse(
                        results=tuple(DeletableGroupResult(group_id=name, error_code=results[name]) for name in names)
                    )
                )

        for number, name in enumerate(names, 1):
            if not number % STEP:
                yield
            self._delete(name, on_deleted)
        return None

    def _delete(self, group_id: str, on_deleted: OnDeleted) -> None:
        try:
            host = self._coordinators.host_of(group_id)
            host.submit(DeleteGroup(group_id=group_id), lambda outcome: on_deleted(group_id, outcome))
        except KafkaError as refusal:
            on_deleted(group_id, refusal)
