"""Partitions as callers name them: a TopicPartition, or a pair `("orders", 0)`, which is as good. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import TypeGuard, TypeVar

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, fault_of
from tailrace.model.partitions import TopicPartition

T = TypeVar("T")

Pair = tuple[str, int]
"""The name of a partition; a TopicPartition is a pair too."""

ByPartition = Mapping[TopicPartition, T] | Mapping[Pair, T]
"""Values by partition. Two types, since the key of a Mapping is invariant for type checkers."""


def is_pair(given: Pair | Iterable[Pair]) -> TypeGuard[Pair]:
    """Whether this is the name of a single partition, not several names."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)


def partition_named(given: object) -> TopicPartition:
    """The partition. Raises TypeError, with the right form, for anything but a pair of a text and a whole number."""
    if isinstance(given, TopicPartition):
        return given
    if isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], str):
        try:
            return TopicPartition(given[0], index(given[1]))
        except TypeError:
            pass
    raise TypeError(f"a partition is a TopicPartition, or a pair such as ('orders', 0), not {given!r}")


def partitions_named(given: Iterable[object]) -> list[TopicPartition]:
    """The partitions, in their order. Raises TypeError, also for the name of a single partition."""
    if isinstance(given, (TopicPartition, str)):
        single = (given, 0) if isinstance(given, str) else given
        raise TypeError(f"this takes several partitions: say [{single!r}] for a single partition")
    return [partition_named(name) for name in given]


def by_partition(given: ByPartition[T]) -> dict[TopicPartition, T]:
    """The values by partition. Raises TypeError."""
    if not isinstance(given, Mapping):
        raise TypeError(f"this takes a mapping such as {{('orders', 0): 7}}, not {type(given).__name__}")
    return {partition_named(name): value for name, value in given.items()}


def ranges_by_partition(
    given: ByPartition[Sequence[KeyRange]] | Iterable[Pair],
) -> dict[TopicPartition, Sequence[KeyRange]]:
    """The key ranges by partition; no ranges for partitions that are named alone. Raises TypeError, and KafkaError
    INVALID_REQUEST for malformed ranges."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(partitions_named(given), ())
    wanted = by_partition(given)
    for name, ranges in wanted.items():
        if (fault := fault_of(ranges)) is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}: {fault}")
    return wanted
