"""Replicas that leave at their broker's request: in-sync replicas, eligible ones and leader without them (pure).

1. A replica that is LOST lacks, or may lack, something that it has acknowledged. It leaves the in-sync replicas, the
   eligible and the last known leaders, even as the last of them: nothing may elect it but an election that is known to
   be unclean. The leader is the present one, else the first of the others that are in sync, else the first eligible
   one; with none of these the partition has no leader.
2. A replica that is STALLED has everything, and cannot store more. It leaves if another one that is in sync or eligible
   is alive and can lead; otherwise it stays what it is, since no other copy could take its place.
3. With each replica that is LOST the leader begins a new epoch, the same leader too: a fetch that left
   before the loss says of records that they are there, and must not bring the replica back.
4. As for eligible leaders (KIP-966): a replica that leaves while the high watermark stands still is eligible.
"""

from dataclasses import replace

from tailrace.metadata.deciding.state_changes import ImageCircumstances, with_in_sync
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.partition_commands import LeaveReason
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, unclean_epoch_after


def is_wanted(broker_id: BrokerId, state: PartitionState, leaving: LeaveReason) -> bool:
    """Whether the cluster counts on this replica in a way that ends when it leaves like this."""
    if broker_id == state.leader or broker_id in state.in_sync_replicas:
        return True
    is_candidate = broker_id in state.eligible_leader_replicas or broker_id in state.last_known_leaders
    return leaving is LeaveReason.LOST and is_candidate


def without_replica(
    image: ClusterImage, broker_id: BrokerId, state: PartitionState, leaving: LeaveReason
) -> PartitionState:
    """The state without this replica; the same one if nothing counts on it, and no leader could by its old fetches.

    Raises KafkaError ELIGIBLE_LEADERS_NOT_AVAILABLE (83) for a stalled one that no other could stand in for.
    """
    if not is_wanted(broker_id, state, leaving):
        return state if leaving is LeaveReason.STALLED or state.leader == NO_LEADER else _in_new_epoch(state)
    circumstances = ImageCircumstances(image)

    def may_lead(replica: BrokerId) -> bool:
        return replica != broker_id and circumstances.is_alive(replica)

    remaining = _without(state.in_sync_replicas, broker_id)
    if leaving is LeaveReason.STALLED:
        if not any(map(may_lead, (*remaining, *state.eligible_leader_replicas))):
            raise KafkaError(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                f"of the replicas {list(state.replicas)} none but broker {broker_id} is alive and complete; it stays",
            )
        in_sync = remaining if any(map(may_lead, remaining)) else ()
        return with_in_sync(image, state, in_sync, may_lead=may_lead)
    after = with_in_sync(
        image,
        replace(
            state,
            in_sync_replicas=remaining,
            eligible_leader_replicas=_without(state.eligible_leader_replicas, broker_id),
            last_known_leaders=_without(state.last_known_leaders, broker_id),
        ),
        remaining,
        may_lead=may_lead,
    )
    # Where it led, there is nothing that a last known leader could bring back.
    after = replace(after, last_known_leaders=_without(after.last_known_leaders, broker_id))
    return after if after.leader != state.leader or after.leader == NO_LEADER else _in_new_epoch(state, after)


def _in_new_epoch(state: PartitionState, after: PartitionState | None = None) -> PartitionState:
    """With the same leader in a new epoch: it refuses fetches of the epoch before."""
    return replace(
        after or state,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        partition_epoch=state.partition_epoch + 1,
        unclean_epoch=unclean_epoch_after(
            state, state.leader, state.leader_epoch + 1, is_recovering=(after or state).is_recovering
        ),
    )


def _without(replicas: tuple[BrokerId, ...], broker_id: BrokerId) -> tuple[BrokerId, ...]:
    return tuple(replica for replica in replicas if replica != broker_id)
