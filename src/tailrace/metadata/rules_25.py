"""Elections when a broker goes or comes back, in clusters of metadata.version 25 (4.0-IV3). Not to be edited.

1. A broker that goes leaves the in-sync replicas, and the next of them in order of preference leads.
2. The last in-sync replica stays one, since it holds all that was acknowledged: such a partition waits for it.
"""

from dataclasses import replace
from typing import Protocol

from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, accepts_loss_after, unclean_epoch_after


class _Circumstances25(Protocol):
    def is_alive(self, broker_id: BrokerId, /) -> bool: ...


def departure(
    broker_id: BrokerId, state: PartitionState, circumstances: _Circumstances25, /, *, unclean: bool
) -> PartitionState | None:
    """The state without this broker. Whether it stopped cleanly makes no difference."""
    if broker_id not in state.in_sync_replicas:
        return None
    if len(state.in_sync_replicas) == 1:
        return _next_state(state, NO_LEADER, state.in_sync_replicas) if state.leader == broker_id else None
    in_sync = tuple(replica for replica in state.in_sync_replicas if replica != broker_id)
    leader = state.leader
    if leader == broker_id:
        candidates = (r for r in state.replicas if r in in_sync and circumstances.is_alive(r))
        leader = next(candidates, NO_LEADER)
    return _next_state(state, leader, in_sync)


def arrival(broker_id: BrokerId, state: PartitionState, circumstances: _Circumstances25, /) -> PartitionState | None:
    """The broker leads again what waited for it, in a new epoch."""
    if state.leader != NO_LEADER or broker_id not in state.in_sync_replicas:
        return None
    return _next_state(state, broker_id, state.in_sync_replicas)


def _next_state(state: PartitionState, leader: BrokerId, in_sync: tuple[BrokerId, ...]) -> PartitionState:
    changed = leader != state.leader
    leader_epoch = LeaderEpoch(state.leader_epoch + 1) if changed else state.leader_epoch
    return replace(
        state,
        leader=leader,
        in_sync_replicas=in_sync,
        leader_epoch=leader_epoch,
        partition_epoch=state.partition_epoch + 1,
        unclean_epoch=unclean_epoch_after(state, leader, leader_epoch, is_recovering=state.is_recovering),
        accepts_loss=accepts_loss_after(state, leader, is_recovering=state.is_recovering),
    )
