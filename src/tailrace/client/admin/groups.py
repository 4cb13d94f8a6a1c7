"""Groups: their deletion, committed offsets and lag."""

import asyncio
from collections.abc import Iterable

from tailrace.client.admin.topics import existing_topics
from tailrace.client.errors import check, code_of
from tailrace.client.group.committed_offsets import OffsetAndMetadata, commit_group_offsets, fetch_group_offsets
from tailrace.client.group.range_progress import KeyProgress, fetch_progress
from tailrace.client.names import Names, several
from tailrace.client.offsets import LATEST, list_offsets
from tailrace.client.partition_names import ByPartition, Pair, by_partition, partitions_named
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse
from tailrace.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

_REFUSALS = {
    ErrorCode.NON_EMPTY_GROUP: "group {!r} has members; stop them first (`tailrace groups describe --members`)",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no group {!r} (`tailrace groups list` shows which there are)",
}
"""The texts of these errors: the response has none."""


async def delete_groups(router: Router, groups: Names) -> None:
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


async def group_offsets(
    router: Router, group: str, partitions: Iterable[Pair] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The group's committed offsets, of these partitions or of every partition; a partition without a committed offset
    is left out."""
    wanted = None if partitions is None else partitions_named(partitions)
    return await fetch_group_offsets(router, group, wanted)


async def group_progress(router: Router, group: str) -> dict[TopicPartition, KeyProgress]:
    """The group's progress, with the ranges of offsets and key hashes that are done beyond its offsets (KIP-X)."""
    return await fetch_progress(router, group)


async def commit_offsets(
    router: Router,
    group: str,
    offsets: ByPartition[OffsetAndMetadata | int],
    *,
    timeout_ms: int | None = None,
) -> None:
    """Set the offsets of a group without members, from outside. Raises KafkaError, also for a group in use.

    `timeout_ms` bounds the whole call, also where a node does not answer.
    """
    offsets_of = {
        partition: OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        for partition, offset in by_partition(offsets).items()
    }
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            await commit_group_offsets(router, group, offsets_of, timeout_ms=timeout_ms)
    except TimeoutError:
        detail = (
            f"the coordinator of group {group!r} did not take its offsets within {timeout_ms} ms; {router.situation()}"
        )
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail) from None


async def delete_offsets(router: Router, group: str, partitions: Iterable[Pair]) -> None:
    """Delete the group's committed offsets in these partitions (KIP-496). Raises the first partition's KafkaError.

    GROUP_SUBSCRIBED_TO_TOPIC for a topic that a member of the group reads.
    """
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for partition in partitions_named(partitions):
        topics.setdefault(partition.topic, []).append(OffsetDeleteRequestPartition(partition_index=partition.partition))
    if not topics:
        return
    request = OffsetDeleteRequest(
        group_id=group,
        topics=tuple(OffsetDeleteRequestTopic(name=name, partitions=tuple(each)) for name, each in topics.items()),
    )

    async def ask(connection: Connection) -> None:
        response = await router.ask(connection, request, OffsetDeleteResponse)
        check(response.error_code, f"the offsets of group {group!r} cannot be deleted")
        for topic in response.topics:
            for answer in topic.partitions:
                where = TopicPartition(topic.name, answer.partition_index)
                check(answer.error_code, f"the offset of group {group!r} in {where} cannot be deleted")

    await router.ask_coordinator(group, ask)


async def group_lag(router: Router, group: str) -> dict[TopicPartition, tuple[OffsetAndMetadata, int]]:
    """By partition a pair: the committed offset of the group, and the end of the log for readers, an offset.

    The lag in records is `end - committed.offset`: the sum over all partitions is the lag of the group. A partition
    without a committed offset, or of a deleted topic, is left out; a group without offsets, also a group that does not
    exist, has an empty result. Raises KafkaError when a coordinator or a leader does not answer for
    default_api_timeout_ms.

        lag = sum(end - committed.offset for committed, end in admin.group_lag("billing").values())
    """
    committed = await group_offsets(router, group)
    if not committed:
        return {}
    names = sorted({partition.topic for partition in committed})
    known = {topic.name: len(topic.partitions) for topic in await existing_topics(router, names)}
    alive = [partition for partition in committed if partition.partition < known.get(partition.topic, 0)]
    ends = await list_offsets(router, dict.fromkeys(alive, LATEST)) if alive else {}
    return {partition: (committed[partition], ends[partition].offset) for partition in sorted(ends)}
