"""Groups as their coordinators describe them: classic groups and groups of KIP-848, each by a request of its own."""

from dataclasses import dataclass

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.errors import check
from tailrace.client.group.classic_member import decode_assignment, decode_subscription
from tailrace.client.names import Names, several
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Address, Connection
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
)
from tailrace.protocol.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupDetails,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] = ()
    """The partitions that the member is to have (KIP-848). Empty for a member of a classic group."""
    topics: frozenset[str] = frozenset()
    """The names of topics to which the member subscribes. Empty for a member of a classic group that rebalances."""
    epoch: int | None = None
    """The member epoch (KIP-848); None for a member of a classic group, whose generation no server tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members."""

    group: str
    state: str
    protocol_type: str
    assignor: str
    coordinator_id: int
    coordinator: str
    """The address of the coordinator, HOST:PORT."""
    members: tuple[DescribedMember, ...]
    details: GroupDetails | None = None
    """The latest events and the heartbeats of the members: from a Tailrace coordinator only."""


async def describe_groups(router: Router, groups: Names) -> list[GroupDescription]:
    """The groups with their members and assignments.

    Raises KafkaError(GROUP_ID_NOT_FOUND) for a group that does not exist; brokers before 3.8 describe it as Dead.
    """
    return [await _describe(router, group) for group in several(groups)]


async def _describe(router: Router, group: str) -> GroupDescription:
    """A group, classic or of KIP-848: each kind has its own request."""

    async def ask(connection: Connection) -> GroupDescription:
        if connection.offers(ConsumerGroupDescribeRequest):
            found = await _consumer_group(router, connection, group)
            if found is not None:
                return found
        response = await router.ask(
            connection, DescribeGroupsRequest(groups=(group,), include_details=True), DescribeGroupsResponse
        )
        described = response.groups[0]
        check(described.error_code, described.error_message or f"group {group!r} cannot be described")
        return _description(described, await router.coordinator(group))

    return await router.ask_coordinator(group, ask)


async def _consumer_group(router: Router, connection: Connection, group: str) -> GroupDescription | None:
    """The group, or None for a group that is not of KIP-848."""
    response = await router.ask(
        connection,
        ConsumerGroupDescribeRequest(group_ids=(group,), include_details=True),
        ConsumerGroupDescribeResponse,
    )
    described = response.groups[0]
    if described.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None  # Apache Kafka refuses the request where its settings leave KIP-848 out
    check(described.error_code, described.error_message or f"group {group!r} cannot be described")
    coordinator = await router.coordinator(group)
    return GroupDescription(
        group=described.group_id,
        state=described.group_state,
        protocol_type="consumer",
        assignor=described.assignor_name,
        coordinator_id=coordinator.node_id,
        coordinator=str(Address(coordinator.host, coordinator.port)),
        members=tuple(
            DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_partitions(member.assignment),
                target=_partitions(member.target_assignment),
                topics=frozenset(member.subscribed_topic_names),
                epoch=member.member_epoch,
            )
            for member in described.members
        ),
        details=described.details[0] if described.details else None,
    )


def _partitions(assignment: DescribedAssignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def _description(described: DescribedGroup, coordinator: BrokerAddress) -> GroupDescription:
    return GroupDescription(
        group=described.group_id,
        state=described.group_state,
        protocol_type=described.protocol_type,
        assignor=described.protocol_data,
        coordinator_id=coordinator.node_id,
        coordinator=str(Address(coordinator.host, coordinator.port)),
        members=tuple(_member(member, described.protocol_type) for member in described.members),
        details=described.details[0] if described.details else None,
    )


def _member(member: DescribedGroupMember, protocol_type: str) -> DescribedMember:
    assignment: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if protocol_type == "consumer":
        try:
            assignment = decode_assignment(member.member_assignment)
            topics = decode_subscription(member.member_metadata) if member.member_metadata else ()
        except KafkaError as fault:
            if fault.code is not ErrorCode.INVALID_REQUEST:
                raise
            # A private format of another client: the group is described without what cannot be read.
    return DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
        topics=frozenset(topics),
    )
