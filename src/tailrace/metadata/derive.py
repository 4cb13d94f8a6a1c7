"""Changes of partitions when a broker goes or comes back: derived on every node, never written to the log.

Fencing a broker is one record. Every replica derives the same partition changes from record and image alone, in the
order (topic id, partition). The record has the count and the checksum of the result. A replica with another result
stops: its rules differ from the leader's rules.

The rules belong to a metadata.version: `rules_26` is valid from version 26 on, and is never edited once a release has
written that version. A change of rule is a new module under a new version, which the finalized version in the image
selects.

The work can be done in steps of about a millisecond, between which the caller may do other work: the image never
changes.
"""

from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from heapq import merge
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

from tailrace.metadata import rules_26
from tailrace.metadata.rules_26 import Circumstances, Election, next_state
from tailrace.model.ids import NO_LEADER, BrokerId, TopicId
from tailrace.model.partitions import PartitionState

T = TypeVar("T")

SLICE: Final = 500
"""Partitions that are looked at in one step."""
_RUN: Final = 2_000
"""Changes that are put in order in one step."""
_MOST_REMEMBERED: Final = 20_000


class PartitionChange(NamedTuple):
    """The new state of one partition."""

    topic_id: TopicId
    partition: int
    state: PartitionState


class Derived(NamedTuple):
    """The changes that follow from a record, in order, and their checksum."""

    changes: tuple[PartitionChange, ...]
    crc: int


NOTHING: Final = Derived((), 0)

Partitions = Iterable[tuple[TopicId, int, PartitionState]]
Steps = Generator[None, None, T]
"""Work in slices: each `next` does a slice; the generator returns the result."""


def departure_steps(
    broker_id: BrokerId, partitions: Partitions, circumstances: Circumstances, *, unclean: bool = False
) -> Steps[Derived]:
    """The changes of the partitions that a fenced broker must give up, in steps."""

    def concerns(state: PartitionState) -> bool:
        return (
            broker_id in state.in_sync_replicas
            or broker_id == state.leader
            or (unclean and broker_id in state.eligible_leader_replicas)
        )

    def rule(state: PartitionState) -> PartitionState | None:
        return rules_26.departure(broker_id, state, circumstances, unclean=unclean)

    return _derive(partitions, concerns, _Outcomes(rule, circumstances).of)


def arrival_steps(broker_id: BrokerId, partitions: Partitions, circumstances: Circumstances) -> Steps[Derived]:
    """The changes of the partitions without a leader that this broker may now lead, in steps."""

    def concerns(state: PartitionState) -> bool:
        return state.leader == NO_LEADER

    def rule(state: PartitionState) -> PartitionState | None:
        return rules_26.arrival(broker_id, state, circumstances)

    return _derive(partitions, concerns, _Outcomes(rule, circumstances).of)


class _Outcomes:
    """The results of a rule, computed once for all partitions that are alike: a cluster has few kinds of partitions."""

    def __init__(self, rule: Callable[[PartitionState], PartitionState | None], circumstances: Circumstances) -> None:
        self._rule = rule
        self._min_in_sync = circumstances.min_in_sync_replicas
        self._unclean_election = circumstances.allows_unclean_election
        self._known: dict[object, PartitionState | None] = {}

    def of(self, state: PartitionState) -> PartitionState | None:
        topic_id = state.topic_id
        kind = (
            state.replicas,
            state.in_sync_replicas,
            state.leader,
            state.eligible_leader_replicas,
            state.last_known_leaders,
            state.is_recovering,
            self._min_in_sync(topic_id),
            self._unclean_election(topic_id),
        )
        try:
            alike = self._known[kind]
        except KeyError:
            after = self._rule(state)
            if len(self._known) < _MOST_REMEMBERED:
                self._known[kind] = after
            return after
        if alike is None:
            return None
        return next_state(
            state,
            Election(
                alike.leader,
                alike.in_sync_replicas,
                alike.eligible_leader_replicas,
                alike.last_known_leaders,
                alike.is_recovering,
            ),
        )


def _derive(
    partitions: Partitions,
    concerns: Callable[[PartitionState], bool],
    outcome: Callable[[PartitionState], PartitionState | None],
) -> Steps[Derived]:
    runs: list[list[PartitionChange]] = [[]]
    remaining = iter(partitions)
    while part := tuple(islice(remaining, SLICE)):
        for topic_id, number, state in part:
            if concerns(state) and (changed := outcome(state)) is not None:
                runs[-1].append(PartitionChange(topic_id, number, changed))
        if len(runs[-1]) >= _RUN:
            runs[-1].sort()
            runs.append([])
        yield
    runs[-1].sort()
    return (yield from _put_together(runs))


def _put_together(runs: list[list[PartitionChange]]) -> Steps[Derived]:
    ordered = merge(*runs) if len(runs) > 1 else iter(runs[0])
    changes: list[PartitionChange] = []
    crc = 0
    while part := tuple(islice(ordered, SLICE)):
        crc = checksum(part, crc)
        changes += part
        yield
    return Derived(tuple(changes), crc)


def checksum(changes: Iterable[PartitionChange], crc: int = 0) -> int:
    """A CRC-32 over the content of the changes; `crc` is the checksum of earlier changes."""
    return crc32(b"".join(map(_entry, changes)), crc)


def _entry(change: PartitionChange) -> bytes:
    topic_id, partition, state = change
    in_sync, eligible, last = state.in_sync_replicas, state.eligible_leader_replicas, state.last_known_leaders
    rest: tuple[int, ...] = in_sync
    if eligible or last or state.is_recovering:
        # Counted only if set: so the checksum of an ordinary partition stays as in logs of earlier releases.
        rest = (*in_sync, int(state.is_recovering), len(eligible), *eligible, len(last), *last)
    pack = _packer(len(rest))
    return pack(topic_id, partition, state.leader, state.leader_epoch, state.partition_epoch, len(in_sync), *rest)


@lru_cache(maxsize=64)
def _packer(rest: int) -> Callable[..., bytes]:
    return Struct(f">16siiiii{rest}I").pack
