"""Elections when a broker goes or comes back, from metadata.version 26 on: with eligible leaders (KIP-966).

1. A broker that goes leaves the in-sync replicas, even as the last of them.
2. While fewer replicas than min.insync.replicas are in sync, the high watermark does not advance. A replica that leaves
   the in-sync replicas then has every record below the high watermark: the replica is *eligible*, until it comes back
   and reports that it may have lost records.
3. The leader is the present leader, else the first in-sync replica in order of preference; with no replica in sync, the
   first eligible replica; with no eligible replica either, the last known leader, and if the topic allows it, any
   replica that is alive. The last known leader, or any other live replica, may have lost acknowledged records: the
   partition is recovering until its leader reports the end of the recovery.

`derive` relies on these promises, which the rules of later versions must keep, too:

1. The rules read only these parts of a partition: its replicas, the replicas in sync, eligible and last known, its
   leader, and whether it is recovering. Partitions that are equal in these parts, under the same settings, get equal
   results.
2. The other parts stay unchanged; the partition epoch rises by 1, and the leader epoch with each change of leader.
3. A departure changes only partitions in which the broker leads, is in sync or, in an unclean departure, is eligible.
   An arrival changes only partitions without a leader.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, accepts_loss_after, unclean_epoch_after

Replicas = tuple[BrokerId, ...]
MayLead = Callable[[BrokerId], bool]


class Circumstances(Protocol):
    """The state that rules may read besides the partition: only the replicated image before the record."""

    def is_alive(self, broker_id: BrokerId, /) -> bool:
        """Whether this broker may lead."""
        ...

    def min_in_sync_replicas(self, topic_id: TopicId, /) -> int:
        """The setting of the topic, else of the cluster, else 1. The value may be larger than the number of the topic's
        replicas."""
        ...

    def allows_unclean_election(self, topic_id: TopicId, /) -> bool:
        """The setting `unclean.leader.election.enable` of the topic, else of the cluster."""
        ...


def departure(
    broker_id: BrokerId, state: PartitionState, circumstances: Circumstances, /, *, unclean: bool
) -> PartitionState | None:
    """The state without this broker, or None if the state does not change. `unclean`: the broker may have lost
    acknowledged records, and is not eligible either."""
    is_lost = unclean and broker_id in state.eligible_leader_replicas
    if broker_id not in state.in_sync_replicas and broker_id != state.leader and not is_lost:
        return None
    return with_in_sync(
        state,
        tuple(replica for replica in state.in_sync_replicas if replica != broker_id),
        min_in_sync=circumstances.min_in_sync_replicas(state.topic_id),
        may_lead=lambda replica: replica != broker_id and circumstances.is_alive(replica),
        unclean_election=circumstances.allows_unclean_election(state.topic_id),
        lost=(broker_id,) if unclean else (),
    )


def arrival(broker_id: BrokerId, state: PartitionState, circumstances: Circumstances, /) -> PartitionState | None:
    """The state with a leader, for a partition without a leader; None if no leader can be elected with this broker."""
    if state.leader != NO_LEADER or broker_id not in state.replicas:
        return None
    after = with_in_sync(
        state,
        state.in_sync_replicas,
        min_in_sync=circumstances.min_in_sync_replicas(state.topic_id),
        may_lead=lambda replica: replica == broker_id or circumstances.is_alive(replica),
        unclean_election=circumstances.allows_unclean_election(state.topic_id),
    )
    return None if after.leader == NO_LEADER else after


def with_in_sync(
    state: PartitionState,
    in_sync: Replicas,
    *,
    min_in_sync: int,
    may_lead: MayLead,
    unclean_election: bool,
    lost: Replicas = (),
) -> PartitionState:
    """The state with these in-sync replicas, and with the leader that follows from them. Both epochs rise as promise 2
    says."""
    found = _elected(state, in_sync, _eligible(state, in_sync, lost), may_lead, unclean_election)
    eligible, last_known = found.eligible, found.last_known
    if len(found.in_sync) >= min(min_in_sync, len(state.replicas)):
        eligible, last_known = (), ()
    elif found.leader == NO_LEADER and not found.in_sync and state.leader != NO_LEADER:
        last_known = (state.leader,)
    return next_state(state, Election(found.leader, found.in_sync, eligible, last_known, found.is_recovering))


def next_state(state: PartitionState, election: "Election") -> PartitionState:
    """The state after this election. Both epochs rise as promise 2 says."""
    leader, in_sync, eligible, last_known, is_recovering = election
    leader_epoch = state.leader_epoch if leader == state.leader else LeaderEpoch(state.leader_epoch + 1)
    # Written in full: `replace` costs several times as much, and there are as many states as a broker has partitions.
    return PartitionState(
        topic_id=state.topic_id,
        replicas=state.replicas,
        in_sync_replicas=in_sync,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=state.partition_epoch + 1,
        eligible_leader_replicas=eligible,
        last_known_leaders=last_known,
        adding_replicas=state.adding_replicas,
        removing_replicas=state.removing_replicas,
        is_recovering=is_recovering,
        unclean_epoch=unclean_epoch_after(state, leader, leader_epoch, is_recovering=is_recovering),
        accepts_loss=accepts_loss_after(state, leader, is_recovering=is_recovering),
        directories=state.directories,
    )


class Election(NamedTuple):
    """The leader, and the replicas that follow from the leader."""

    leader: BrokerId
    in_sync: Replicas
    eligible: Replicas
    last_known: Replicas
    is_recovering: bool


def _eligible(state: PartitionState, in_sync: Replicas, lost: Replicas) -> Replicas:
    complete = state.in_sync_replicas + state.eligible_leader_replicas
    gone = in_sync + lost
    return tuple([replica for replica in state.replicas if replica in complete and replica not in gone])


def _elected(
    state: PartitionState, in_sync: Replicas, eligible: Replicas, may_lead: MayLead, unclean_election: bool
) -> Election:
    last_known, is_recovering = state.last_known_leaders, state.is_recovering
    if state.leader in in_sync and may_lead(state.leader):
        return Election(state.leader, in_sync, eligible, last_known, is_recovering)
    if in_sync:
        # Wait even if all in-sync replicas are down: an in-sync replica has every record of an eligible replica,
        # perhaps more.
        return Election(_first(state, in_sync, may_lead), in_sync, eligible, last_known, is_recovering)
    chosen = _first(state, eligible, may_lead)
    if chosen != NO_LEADER:
        rest = tuple(replica for replica in eligible if replica != chosen)
        return Election(chosen, (chosen,), rest, last_known, is_recovering)
    if not eligible:
        chosen = _first(state, last_known, may_lead)
    if chosen == NO_LEADER and unclean_election:
        chosen = _first(state, state.replicas, may_lead)
    if chosen == NO_LEADER:
        return Election(NO_LEADER, (), eligible, last_known, is_recovering)
    return Election(chosen, (chosen,), (), (), is_recovering=True)


def _first(state: PartitionState, candidates: Replicas, may_lead: MayLead) -> BrokerId:
    for replica in state.replicas:
        if replica in candidates and may_lead(replica):
            return replica
    return NO_LEADER
