"""ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69): the coordinator assigns the partitions (KIP-848)."""

from collections.abc import Iterable
from typing import Final

from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer.assignors import DEFAULT_ASSIGNOR
from tailrace.coordinators.groups.consumer.group import ConsumerGroup, ConsumerMember
from tailrace.coordinators.groups.consumer.heartbeat import JOINING, ConsumerHeartbeat, check_heartbeat
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerMember,
    DescribedTopicPartitions,
)
from tailrace.protocol.messages.groups import GroupDetails
from tailrace.server.context import RequestContext
from tailrace.server.errors import refused_part
from tailrace.server.groups.groups import details_of, operations_on_group
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.groups.topic_patterns import OnResolved, TopicPatterns, too_busy
from tailrace.server.ports import ServerConnection
from tailrace.server.slices import Stepwise, mapped

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
"""Member types."""
_MOST_RESOLUTIONS: Final = 8
"""The most heartbeats of a connection that wait for their regular expressions. A member has at most one such heartbeat
under way."""


MAX_VIEW_PARTITIONS: Final = 20_000
"""The most partitions of all views that one member subscribes to: the names of views are short, and the assignment of
their partitions is much work."""


class ConsumerGroupHeartbeatHandler:
    """Answers when the changes by the heartbeat are committed. A regular expression is resolved first."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators
        self._resolutions = _Resolutions(coordinators.patterns)

    def handle(self, request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> None:
        coordinators, version = self._coordinators, context.api_version
        if not coordinators.config.has_consumer_groups:
            detail = "group.coordinator.rebalance.protocols leaves consumer groups (KIP-848) out"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
        try:
            check_heartbeat(request, version, max_bytes=coordinators.config.group_max_metadata_bytes)
        except KafkaError as refusal:
            if "group.max.metadata.bytes" in refusal.detail:
                coordinators.size_refusals.write("request=ConsumerGroupHeartbeat %s", refusal.detail)
            raise
        self._check_views(request.subscribed_topic_names or ())
        host = coordinators.host_of(request.group_id, check_limit=request.member_epoch == JOINING)

        answer = context.answering(request, lambda response: response)
        command = ConsumerHeartbeat(
            request=request,
            client_id=context.client_id or "",
            client_host=context.identity.host,
            principal=context.identity.principal if context.has_authorizer else "",
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

    Otherwise the requests of a client that has gone would be resolved before the requests of its next connection.
    """

    def __init__(self, patterns: TopicPatterns) -> None:
        self._patterns = patterns
        self._by_connection: dict[ServerConnection, dict[OnResolved, str]] = {}

    def begin(self, expression: str, connection: ServerConnection, on_resolved: OnResolved) -> None:
        """Begin to resolve an expression. Raises the errors of `TopicPatterns.resolve`, and
        COORDINATOR_LOAD_IN_PROGRESS (14) if too many heartbeats of a connection wait."""
        waiting = self._by_connection.get(connection)
        if waiting is None:
            # A callback for each connection, not for each request.
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
        operations_on = operations_on_group(context, is_asked=request.include_authorized_operations)
        groups = yield from mapped(
            lambda group_id: self._describe(group_id, operations_on(group_id), with_details=request.include_details),
            dict.fromkeys(request.group_ids),  # without repetitions, as in DescribeGroups
        )
        return ConsumerGroupDescribeResponse(groups=groups)

    def _describe(self, group_id: str, operations: int, *, with_details: bool) -> DescribedConsumerGroup:
        try:
            host = self._coordinators.host_of(group_id)
            group = host.machine.reports.consumer_group(group_id)
        except KafkaError as refusal:
            return refused_part(DescribedConsumerGroup, refusal, group_id=group_id)
        details: tuple[GroupDetails, ...] = ()
        if with_details:
            details = (details_of(host.insight(group_id), max_ranges=self._coordinators.ranged_offsets.max_rectangles),)
        return DescribedConsumerGroup(
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch or 0,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor(DEFAULT_ASSIGNOR),
            members=tuple(self._member(group, member) for member in group.members.values()),
            authorized_operations=operations,
            details=details,
        )

    def _member(self, group: ConsumerGroup, member: ConsumerMember) -> DescribedConsumerMember:
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
            assignment=self._named(member.assigned),
            target_assignment=self._named(group.targets.get(member.member_id, NOTHING)),
            member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
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
