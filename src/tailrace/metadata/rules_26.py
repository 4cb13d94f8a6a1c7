"""Who leads when a broker goes or comes back, in clusters of metadata.version 26: with eligible leaders (KIP-966).

1. A broker that goes leaves the in-sync replicas, even as the last of them.
2. Below min.insync.replicas the high watermark stands still, so whoever leaves then still has everything below it: it
   is *eligible*, unless it comes back saying that it may have lost something.
3. The leader is the present one, else the first in-sync replica in order of preference; with none in sync, the first
   eligible one; with none of those either, the last known leader, and if the topic allows it, any replica that is
   alive. The last two may have lost acknowledged records: the partition is recovering until its leader says otherwise.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState

Replicas = tuple[BrokerId, ...]
MayLead = Callable[[BrokerId], bool]


class _Circumstances(Protocol):
    def is_alive(self, broker_id: BrokerId, /) -> bool: ...

    def min_in_sync_replicas(self, topic_id: TopicId, /) -> int: ...

    def allows_unclean_election(self, topic_id: TopicId, /) -> bool: ...


def departure(
    broker_id: BrokerId, state: PartitionState, circumstances: _Circumstances, /, *, unclean: bool
) -> PartitionState | None:
    """The state without this broker; if it is `unclean`, not even as an eligible leader."""
    is_lost = unclean and broker_id in state.eligible_leader_replicas
    if broker_id not in state.in_sync_replicas and broker_id != state.leader and not is_lost:
        return None
    return settled(
        state,
        tuple(replica for replica in state.in_sync_replicas if replica != broker_id),
        min_in_sync=circumstances.min_in_sync_replicas(state.topic_id),
        may_lead=lambda replica: replica != broker_id and circumstances.is_alive(replica),
        unclean_election=circumstances.allows_unclean_election(state.topic_id),
        lost=(broker_id,) if unclean else (),
    )


def arrival(broker_id: BrokerId, state: PartitionState, circumstances: _Circumstances, /) -> PartitionState | None:
    """A leader for what had none, if this broker is one that can be elected."""
    if state.leader != NO_LEADER or broker_id not in state.replicas:
        return None
    after = settled(
        state,
        state.in_sync_replicas,
        min_in_sync=circumstances.min_in_sync_replicas(state.topic_id),
        may_lead=lambda replica: replica == broker_id or circumstances.is_alive(replica),
        unclean_election=circumstances.allows_unclean_election(state.topic_id),
    )
    return None if after.leader == NO_LEADER else after


def settled(
    state: PartitionState,
    in_sync: Replicas,
    *,
    min_in_sync: int,
    may_lead: MayLead,
    unclean_election: bool,
    lost: Replicas = (),
) -> PartitionState:
    """The state with these in-sync replicas, and with the leader that they make. Both epochs rise as they must."""
    after = _elected(
        replace(
            state,
            in_sync_replicas=in_sync,
            eligible_leader_replicas=_eligible(state, in_sync, lost),
            partition_epoch=state.partition_epoch + 1,
        ),
        may_lead,
        unclean_election,
    )
    if after.leader != state.leader:
        after = replace(after, leader_epoch=LeaderEpoch(state.leader_epoch + 1))
    if len(after.in_sync_replicas) >= min(min_in_sync, len(state.replicas)):
        return replace(after, eligible_leader_replicas=(), last_known_leaders=())
    if after.leader == NO_LEADER and not after.in_sync_replicas and state.leader != NO_LEADER:
        return replace(after, last_known_leaders=(state.leader,))
    return after


def _eligible(state: PartitionState, in_sync: Replicas, lost: Replicas) -> Replicas:
    complete = {*state.in_sync_replicas, *state.eligible_leader_replicas}.difference(in_sync, lost)
    return tuple(replica for replica in state.replicas if replica in complete)


def _elected(state: PartitionState, may_lead: MayLead, unclean_election: bool) -> PartitionState:
    in_sync, eligible = state.in_sync_replicas, state.eligible_leader_replicas
    if state.leader in in_sync and may_lead(state.leader):
        return state
    if in_sync:
        # If all of them are down they are waited for: they have what the eligible ones have, and perhaps more.
        return replace(state, leader=_first(state, in_sync, may_lead))
    chosen = _first(state, eligible, may_lead)
    if chosen != NO_LEADER:
        rest = tuple(replica for replica in eligible if replica != chosen)
        return replace(state, leader=chosen, in_sync_replicas=(chosen,), eligible_leader_replicas=rest)
    if not eligible:
        chosen = _first(state, state.last_known_leaders, may_lead)
    if chosen == NO_LEADER and unclean_election:
        chosen = _first(state, state.replicas, may_lead)
    if chosen == NO_LEADER:
        return replace(state, leader=NO_LEADER)
    return replace(
        state,
        leader=chosen,
        in_sync_replicas=(chosen,),
        eligible_leader_replicas=(),
        last_known_leaders=(),
        is_recovering=True,
    )


def _first(state: PartitionState, candidates: Iterable[BrokerId], may_lead: MayLead) -> BrokerId:
    among = frozenset(candidates)
    return next((replica for replica in state.replicas if replica in among and may_lead(replica)), NO_LEADER)
