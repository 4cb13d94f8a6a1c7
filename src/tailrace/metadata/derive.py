"""What follows for partitions when a broker goes or comes back, worked out and never written to the log.

Fencing a broker is one record. Every replica derives the same partition changes from it, from the image alone, in the
order (topic id, partition). The record carries the count and the checksum of the result, and a replica whose own result
differs stops: it runs other rules than the leader.

The rules belong to a metadata.version. These are those of 4.0-IV3; a change of rule is a new function under a new
version, and these stay as they are.
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState


class PartitionChange(NamedTuple):
    """The new state of one partition."""

    topic_id: TopicId
    partition: int
    state: PartitionState


Partitions = Iterable[tuple[TopicId, int, PartitionState]]


def on_departure(
    broker_id: BrokerId, partitions: Partitions, is_alive: Callable[[BrokerId], bool]
) -> tuple[PartitionChange, ...]:
    """The partitions a fenced broker must give up: it leaves the in-sync replicas, and the next of them leads.

    The last in-sync replica stays one, since it holds all that was acknowledged: such a partition waits for it.
    """
    return _changes(partitions, lambda state: _without(broker_id, state, is_alive))


def on_arrival(broker_id: BrokerId, partitions: Partitions) -> tuple[PartitionChange, ...]:
    """The partitions without a leader for which this broker was waited for: it leads them, in a new epoch."""
    return _changes(partitions, lambda state: _led_again_by(broker_id, state))


def _changes(
    partitions: Partitions, rule: Callable[[PartitionState], PartitionState | None]
) -> tuple[PartitionChange, ...]:
    changes = [
        PartitionChange(topic_id, partition, changed)
        for topic_id, partition, state in partitions
        if (changed := rule(state)) is not None
    ]
    changes.sort(key=lambda change: (change.topic_id, change.partition))
    return tuple(changes)


def _without(broker_id: BrokerId, state: PartitionState, is_alive: Callable[[BrokerId], bool]) -> PartitionState | None:
    if broker_id not in state.in_sync_replicas:
        return None
    if len(state.in_sync_replicas) == 1:
        return _next_state(state, NO_LEADER, state.in_sync_replicas) if state.leader == broker_id else None
    in_sync = tuple(replica for replica in state.in_sync_replicas if replica != broker_id)
    leader = state.leader
    if leader == broker_id:
        candidates = (replica for replica in state.replicas if replica in in_sync and is_alive(replica))
        leader = next(candidates, NO_LEADER)
    return _next_state(state, leader, in_sync)


def _led_again_by(broker_id: BrokerId, state: PartitionState) -> PartitionState | None:
    if state.leader != NO_LEADER or broker_id not in state.in_sync_replicas:
        return None
    return _next_state(state, broker_id, state.in_sync_replicas)


def _next_state(state: PartitionState, leader: BrokerId, in_sync: tuple[BrokerId, ...]) -> PartitionState:
    changed = leader != state.leader
    return PartitionState(
        topic_id=state.topic_id,
        replicas=state.replicas,
        leader=leader,
        in_sync_replicas=in_sync,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1) if changed else state.leader_epoch,
        partition_epoch=state.partition_epoch + 1,
    )


_ENTRY = Struct(">16siiiii")


def checksum(changes: Iterable[PartitionChange]) -> int:
    """A CRC-32 over all that the changes say."""
    crc = 0
    for topic_id, partition, state in changes:
        in_sync = state.in_sync_replicas
        crc = crc32(
            _ENTRY.pack(topic_id, partition, state.leader, state.leader_epoch, state.partition_epoch, len(in_sync)),
            crc,
        )
        crc = crc32(b"".join(replica.to_bytes(4, "big") for replica in in_sync), crc)
    return crc
