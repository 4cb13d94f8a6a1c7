"""The partitions that get another owner with a new assignment, in words for the history of a group. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from tailrace.model.errors import MalformedMessage
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    decode_prefixed,
)

Owned = Mapping[str, Iterable[TopicPartition]]
"""The partitions of each member, by its id."""

MOST_MOVES: Final = 8
"""The most pairs of members that are named."""
MOST_PARTITIONS: Final = 10_000
"""The moves of a group with more partitions are not looked for: that would take as long as the assignment."""
MOST_BYTES: Final = 64 << 10
"""Assignments of a classic group with more bytes, for about as many partitions, are not decoded."""


def moves_in_words(before: Owned, after: Owned) -> str:
    """The partitions that get another owner, such as `; b gets orders 0-2,5 of a`; empty without such a partition.

    A partition whose former owner is not in the group any more, or that had no owner, is named without `of`.
    """
    owners = {partition: member for member, partitions in before.items() for partition in partitions}
    moves: dict[tuple[str, str], list[TopicPartition]] = defaultdict(list)
    for member, partitions in after.items():
        for partition in partitions:
            former = owners.get(partition, "")
            if former != member:
                moves[member, former].append(partition)
    told = [
        f"{member} gets {_in_short(moved)}" + (f" of {former}" if former else "")
        for (member, former), moved in sorted(moves.items())[:MOST_MOVES]
    ]
    if len(moves) > len(told):
        told.append(f"and {len(moves) - len(told)} more")
    return "".join(f"; {words}" for words in told)


def _in_short(partitions: Iterable[TopicPartition]) -> str:
    """The partitions with each topic once: `orders 0-2,5`."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        numbers[topic].append(number)
    return ", ".join(f"{topic} {_runs(found)}" for topic, found in numbers.items())


def _runs(numbers: list[int]) -> str:
    starts = [numbers[0], *(later for earlier, later in pairwise(numbers) if later != earlier + 1)]
    ends = [*(earlier for earlier, later in pairwise(numbers) if later != earlier + 1), numbers[-1]]
    return ",".join(f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))


def moves_of_classic(protocol_type: str | None, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """The moves between the assignments of a classic group, in words; empty if the group is not one of consumers, or
    the assignments are too large or not in the consumers' own form."""
    if protocol_type != PROTOCOL_TYPE or sum(map(len, (*before.values(), *after.values()))) > MOST_BYTES:
        return ""
    try:
        return moves_in_words(_decoded(before), _decoded(after))
    except MalformedMessage:
        return ""


def _decoded(assignments: Mapping[str, bytes]) -> dict[str, list[TopicPartition]]:
    return {
        member: [
            TopicPartition(topic.topic, number)
            for topic in decode_prefixed(ConsumerProtocolAssignment, assignment).assigned_partitions
            for number in topic.partitions
        ]
        for member, assignment in assignments.items()
        if assignment
    }
