"""ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69): the coordinator assigns the partitions (KIP-848)."""

from collections.abc import Iterable
from typing import Final

from tailrace.coordinators.groups.consumer.assignment import Assignment
from tailrace.coordinators.groups.consumer.heartbeat import JOINING, ConsumerHeartbeat, check_heartbeat
from tailrace.coordinators.groups.reports import ConsumerGroupDescription, ConsumerMemberDescription
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerMember,
    DescribedTopicPartitions,
)
from tailrace.protocol.messages.groups import GroupDetails
from tailrace.server.context import RequestContext
from tailrace.server.groups.groups import ALL_GROUP_OPERATIONS, NOT_ASKED, details_of
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.groups.topic_patterns import OnResolved, TopicPatterns, too_busy
from tailrace.server.ports import ServerConnection
from tailrace.server.slices import Stepwise, mapped

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
"""Member types."""
_MOST_RESOLUTIONS: Final = 8
"""The most heartbeats of one connection that wait for their regular expressions. A member sends one at a time."""


MAX_VIEW_PARTITIONS: Final = 20_000
"""Partitions of all views that one member subscribes to: their names are short, and their assignment is much work."""


class ConsumerGroupHeartbeatHandler:
    """Answers when the changes by the heartbeat are committed. A regular expression is resolved first."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators
        self._resolutions = _Resolutions(coordinators.patterns)

    def handle(self, request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> None:
        coordinators, version = self._coordinators, context.api_version
        try:
            check_heartbeat(request, version, max_bytes=coordinators.config.group_max_metadata_bytes)
        except KafkaError as refusal:
            if "group.max.metadata.bytes" in refusal.detail:
                coordinators.size_refusals.write("request=ConsumerGroupHeartbeat %s", refusal.detail)
            raise
        self._check_views(request.subscribed_topic_names or ())
        host = coordinators.host_of(request.group_id, check_limit=request.member_epoch == JOINING)

        def answer(outcome: ConsumerGroupHeartbeatResponse | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                context.refuse(request, outcome)
            else:
                context.respond(outcome)

        command = ConsumerHeartbeat(
            request=request,
            client_id=context.client_id or "",
            client_host=context.identity.host,
        )

        def resolved(fault: KafkaError | None) -> None:
            if fault is not None:
                answer(fault)
            else:
                host.heartbeat(command, answer)

        if request.subscribed_topic_regex:
            self._resolutions.begin(request.subscribed_topic_regex, context.connection, resolved)
        else:
            host.heartbeat(command, answer)

    def _check_views(self, names: Iterable[str]) -> None:
        """Raises KafkaError INVALID_REQUEST (42) for views with too many partitions together."""
        image, views = self._coordinators.image, self._coordinators.views
        found = (views.named(image, name) for name in dict.fromkeys(names))
        partitions = sum(len(view.partitions) for view in found if view is not None)
        if partitions > MAX_VIEW_PARTITIONS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"views with {partitions} partitions; a member may subscribe to {MAX_VIEW_PARTITIONS} of views",
            )


class _Resolutions:
    """Heartbeats that wait for their regular expressions; dropped when their connections close.

    Otherwise the requests of a client that has gone would be resolved before those of its next connection.
    """

    def __init__(self, patterns: TopicPatterns) -> None:
        self._patterns = patterns
        self._by_connection: dict[ServerConnection, dict[OnResolved, str]] = {}

    def begin(self, expression: str, connection: ServerConnection, on_resolved: OnResolved) -> None:
        """Raises as `TopicPatterns.resolve`, and COORDINATOR_LOAD_IN_PROGRESS (14) if too many of a connection wait."""
        waiting = self._by_connection.get(connection)
        if waiting is None:
            # One callback per connection, not one per request.
            waiting = self._by_connection[connection] = {}
            connection.on_close(lambda: self._closed(connection))

        if len(waiting) >= _MOST_RESOLUTIONS:
            raise too_busy()

        def resolved(fault: KafkaError | None) -> None:
            waiting.pop(resolved, None)
            on_resolved(fault)

        waiting[resolved] = expression
        try:
            self._patterns.resolve(expression, resolved)
        except KafkaError:
            waiting.pop(resolved, None)
            raise

    def _closed(self, connection: ServerConnection) -> None:
        for resolved, expression in self._by_connection.pop(connection, {}).items():
            self._patterns.forget(expression, resolved)


class ConsumerGroupDescribeHandler:
    """Answers for each group by itself, from its committed state."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext
    ) -> Stepwise[ConsumerGroupDescribeResponse]:
        operations = ALL_GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
        groups = yield from mapped(
            lambda group_id: self._describe(group_id, operations, with_details=request.include_details),
            dict.fromkeys(request.group_ids),  # each once, as with DescribeGroups
        )
        return ConsumerGroupDescribeResponse(groups=groups)

    def _describe(self, group_id: str, operations: int, *, with_details: bool) -> DescribedConsumerGroup:
        try:
            host = self._coordinators.host_of(group_id)
            description = host.machine.reports.describe_consumer_group(group_id)
        except KafkaError as refusal:
            return undescribed(group_id, refusal.code, refusal.detail)
        details = (
            (details_of(host.insight(group_id), max_ranges=self._coordinators.shared_offsets.max_rectangles),)
            if with_details
            else ()
        )
        return self._described(description, operations, details)

    def _described(
        self, description: ConsumerGroupDescription, operations: int, details: tuple[GroupDetails, ...]
    ) -> DescribedConsumerGroup:
        return DescribedConsumerGroup(
            group_id=description.group_id,
            group_state=description.state,
            group_epoch=description.epoch,
            assignment_epoch=description.target_epoch,
            assignor_name=description.assignor,
            members=tuple(self._member(member) for member in description.members),
            authorized_operations=operations,
            details=details,
        )

    def _member(self, member: ConsumerMemberDescription) -> DescribedConsumerMember:
        wants = member.subscription
        return DescribedConsumerMember(
            member_id=member.member_id,
            instance_id=wants.instance_id,
            rack_id=wants.rack_id,
            member_epoch=member.epoch,
            client_id=wants.client_id,
            client_host=wants.client_host,
            subscribed_topic_names=wants.subscribed_topic_names,
            subscribed_topic_regex=wants.subscribed_topic_regex,
            assignment=self._named(member.assignment),
            target_assignment=self._named(member.target),
            member_type=_CONSUMER_MEMBER if wants.classic_member_metadata is None else _CLASSIC_MEMBER,
        )

    def _named(self, assignment: Assignment) -> DescribedAssignment:
        """The assignment with names of topics; deleted topics are left out."""
        image, views = self._coordinators.image, self._coordinators.views
        return DescribedAssignment(
            topic_partitions=tuple(
                DescribedTopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=partitions)
                for topic_id, partitions in assignment
                if (topic := views.topic_by_id(image, topic_id)) is not None
            )
        )


def undescribed(group_id: str, code: ErrorCode, why: str | None) -> DescribedConsumerGroup:
    """A group that cannot be described."""
    return DescribedConsumerGroup(
        error_code=code,
        error_message=why,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )
