"""Groups: their list, members and assignments, committed offsets and lag."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tailrace.client.admin.topics import existing_topics
from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.errors import check, code_of, several
from tailrace.client.group.classic_member import decode_assignment
from tailrace.client.group.committed_offsets import OffsetAndMetadata, commit_group_offsets, fetch_group_offsets
from tailrace.client.group.range_progress import KeyProgress, fetch_progress
from tailrace.client.offsets import LATEST, list_offsets
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Address, Connection
from tailrace.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from tailrace.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupDetails,
    ListGroupsRequest,
    ListGroupsResponse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list. State and type are empty from a server that is too old to report these fields."""

    group: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


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


_REFUSALS = {
    ErrorCode.NON_EMPTY_GROUP: "group {!r} has members; stop them first (`tailrace groups describe --members`)",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no group {!r} (`tailrace groups list` shows which there are)",
}
"""The texts of these errors: the response has none."""


async def list_groups(router: Router) -> list[GroupListing]:
    """Groups of every broker, by name."""

    async def attempt() -> list[GroupListing]:
        await router.refresh(())
        listings: dict[str, GroupListing] = {}
        for node_id in router.view.brokers:
            connection = await router.node_connection(node_id)
            response = await router.ask(connection, ListGroupsRequest(), ListGroupsResponse)
            check(response.error_code, f"the groups of node {node_id}")
            for group in response.groups:
                listings[group.group_id] = GroupListing(
                    group=group.group_id,
                    protocol_type=group.protocol_type,
                    state=group.group_state,
                    type=group.group_type,
                )
        return [listings[name] for name in sorted(listings)]

    return await router.retry(attempt)


async def describe_groups(router: Router, groups: Iterable[str]) -> list[GroupDescription]:
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
    if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
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
                assignment=tuple(
                    TopicPartition(topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ),
            )
            for member in described.members
        ),
        details=described.details[0] if described.details else None,
    )


async def delete_groups(router: Router, groups: Iterable[str]) -> None:
    """Delete groups without members, with their offsets. Raises the first group's KafkaError."""
    for group in several(groups):
        await _delete(router, group)


async def _delete(router: Router, group: str) -> None:

    async def ask(connection: Connection) -> None:
        response = await router.ask(connection, DeleteGroupsRequest(groups_names=(group,)), DeleteGroupsResponse)
        for result in response.results:
            check(
                result.error_code,
                _REFUSALS.get(code_of(result.error_code), "group {!r} cannot be deleted").format(group),
            )

    await router.ask_coordinator(group, ask)


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
    if protocol_type == "consumer" and member.member_assignment:
        try:
            assignment = decode_assignment(member.member_assignment)
        except KafkaError as fault:
            if fault.code is not ErrorCode.INVALID_REQUEST:
                raise
            # A private format of another client: the group is described without the assignment.
    return DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
    )


async def group_offsets(
    router: Router, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The group's committed offsets, of these partitions or of every partition; a partition without a committed offset
    is left out."""
    return await fetch_group_offsets(router, group, partitions)


async def group_progress(router: Router, group: str) -> dict[TopicPartition, KeyProgress]:
    """The group's progress, with the ranges of offsets and key hashes that are done beyond its offsets (KIP-X)."""
    return await fetch_progress(router, group)


async def commit_offsets(
    router: Router,
    group: str,
    committed: Mapping[TopicPartition, OffsetAndMetadata | int],
    *,
    timeout_ms: int | None = None,
) -> None:
    """Set the offsets of a group without members, from outside. Raises KafkaError, also for a group in use.

    `timeout_ms` bounds the whole call, also where a node does not answer.
    """
    offsets_of = {
        partition: OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        for partition, offset in committed.items()
    }
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            await commit_group_offsets(router, group, offsets_of, timeout_ms=timeout_ms)
    except TimeoutError:
        detail = f"the coordinator of group {group!r} did not take its offsets within {timeout_ms} ms"
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail) from None


async def group_lag(router: Router, group: str) -> dict[TopicPartition, tuple[OffsetAndMetadata, int]]:
    """For each partition with a committed offset: that offset, and the end of the log for readers."""
    committed = await group_offsets(router, group)
    if not committed:
        return {}
    names = sorted({partition.topic for partition in committed})
    known = {topic.name: len(topic.partitions) for topic in await existing_topics(router, names)}
    alive = [partition for partition in committed if partition.partition < known.get(partition.topic, 0)]
    ends = await list_offsets(router, dict.fromkeys(alive, LATEST)) if alive else {}
    return {partition: (committed[partition], ends[partition].offset) for partition in sorted(ends)}
