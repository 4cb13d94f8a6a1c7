"""New committed offsets for a group without members."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tailrace.client.admin.groups import commit_offsets, group_offsets
from tailrace.client.admin.present_members import refuse_members
from tailrace.client.admin.topics import existing_topics
from tailrace.client.group.described_groups import describe_groups
from tailrace.client.offsets import EARLIEST, LATEST, list_offsets
from tailrace.client.partition_names import Pair, partitions_named
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition


class OffsetReset(NamedTuple):
    """The committed offset of a partition before a reset (None without an offset), and the new offset."""

    before: int | None
    after: int


async def reset_offsets(
    router: Router,
    group: str,
    partitions: Iterable[Pair] | None = None,
    *,
    to: int | None = None,
    offset: int | None = None,
    shift_by: int | None = None,
    dry_run: bool = False,
) -> dict[TopicPartition, OffsetReset]:
    """Move the group's offsets in these partitions, by default in every existing partition with an offset.

    Give one of three: `to` is LATEST, EARLIEST, or a time in ms, for its first record or else the end; `offset` is the
    same offset everywhere; `shift_by` a number of offsets from the committed offset. An offset outside of the log
    becomes its nearer end. With `dry_run` nothing is committed.

    Raises KafkaError: NON_EMPTY_GROUP for a group with members, which would commit their own positions again;
    GROUP_ID_NOT_FOUND without any offset; INVALID_REQUEST for a shift where there is no offset, and for a call
    with none of the three arguments, or several.
    """
    if sum(way is not None for way in (to, offset, shift_by)) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a reset of offsets takes one of `to`, `offset` and `shift_by`")
    if not dry_run:
        await _check_empty(router, group)
    committed = {partition: found.offset for partition, found in (await group_offsets(router, group)).items()}
    named = None if partitions is None else partitions_named(partitions)
    chosen = await _alive(router, group, committed) if named is None else sorted(set(named))
    first = await _offsets(router, chosen, EARLIEST)
    end = await _offsets(router, chosen, LATEST)
    if offset is not None:
        wanted = dict.fromkeys(chosen, offset)
    elif shift_by is not None:
        wanted = {partition: _known(committed, group, partition) + shift_by for partition in chosen}
    else:
        assert to is not None, "checked"
        found = first if to == EARLIEST else end if to == LATEST else await _offsets(router, chosen, to)
        wanted = {partition: at if at >= 0 else end[partition] for partition, at in found.items()}
    resets = {
        partition: OffsetReset(committed.get(partition), min(max(wanted[partition], first[partition]), end[partition]))
        for partition in chosen
    }
    if not dry_run:
        await commit_offsets(router, group, {partition: reset.after for partition, reset in resets.items()})
    return resets


async def _check_empty(router: Router, group: str) -> None:
    try:
        (description,) = await describe_groups(router, [group])
    except KafkaError as fault:
        if fault.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    refuse_members(description)


async def _alive(router: Router, group: str, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions with a committed offset that still exist."""
    names = sorted({partition.topic for partition in committed})
    counts = {topic.name: len(topic.partitions) for topic in await existing_topics(router, names)}
    alive = [partition for partition in sorted(committed) if partition.partition < counts.get(partition.topic, 0)]
    if not alive:
        detail = f"group {group!r} has no offsets yet: name the topics with --topic"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
    return alive


async def _offsets(router: Router, partitions: Iterable[TopicPartition], spec: int) -> dict[TopicPartition, int]:
    found = await list_offsets(router, dict.fromkeys(partitions, spec))
    return {partition: listed.offset for partition, listed in found.items()}


def _known(committed: Mapping[TopicPartition, int], group: str, partition: TopicPartition) -> int:
    if partition not in committed:
        detail = f"group {group!r} has no offset in {partition} that could be shifted"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    return committed[partition]
