"""Decisions on in-sync replicas: a leader's proposals, and replicas that leave at their broker's request (pure).

The order of the checks and the codes are Kafka's.

Every proposal that is carried out raises the partition epoch, also a proposal of the present state: from then on late
copies of earlier proposals get INVALID_UPDATE_VERSION (decision 0025). Kafka's controller writes nothing in that case.

Replicas that leave (decision 0027):
1. A replica that is LOST has lost, or may have lost, records that it has acknowledged. The replica is removed from the
   in-sync replicas, the eligible leaders and the last known leaders, even if it is the last replica there: only an
   election that is known to be unclean may elect the replica. The leader is the present leader, else the first other
   replica that is in sync, else the first eligible replica; without any such replica the partition has no leader.
2. A replica that is STALLED has every record, and cannot store more. The replica leaves if another replica that is in
   sync or eligible is alive and can lead; otherwise the replica stays, since no other copy could take its place.
3. When a replica is LOST, the leader gets a new epoch, even if the leader stays the same: a fetch that the replica sent
   before the loss acknowledges records that are lost now, and must not bring the replica back in sync.
4. A stalled replica that leaves while the high watermark cannot advance becomes eligible (KIP-966).
"""

from collections import Counter
from dataclasses import replace

from tailrace.metadata.commands import AlterPartition, InSyncChange, InSyncOutcome, LeaveReason, PartitionsAltered
from tailrace.metadata.deciding.assignments import finished
from tailrace.metadata.deciding.state_changes import change_record, found_partition, with_in_sync
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.image_draft import ImageCircumstances
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch
from tailrace.model.machines import Decision
from tailrace.model.partitions import PartitionState, unclean_epoch_after


class InSyncChanges:
    """The decision on an AlterPartition command."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def decide(self, command: AlterPartition) -> Decision[MetadataRecord, PartitionsAltered]:
        """Records of the changes that are made, and an outcome for every proposal."""
        records: list[MetadataRecord] = []
        outcomes = []
        times_named = Counter((change.topic_id, change.partition) for change in command.changes)
        for change in command.changes:
            result: PartitionState | KafkaError
            try:
                if times_named[change.topic_id, change.partition] > 1:
                    raise _invalid(f"partition {change.partition} of one topic is named twice")
                result = self._change(command.broker_id, change, records)
            except KafkaError as refusal:
                result = refusal.without_frames()
            outcomes.append(InSyncOutcome(topic_id=change.topic_id, partition=change.partition, result=result))
        return Decision(records=tuple(records), response=PartitionsAltered(outcomes=tuple(outcomes)))

    def _change(self, leader: BrokerId, change: InSyncChange, records: list[MetadataRecord]) -> PartitionState:
        where, state = found_partition(self._image, change.topic_id, change.partition)
        _check_epochs(where, change, state)
        if change.leaving is not None:
            return self._leave(where, leader, change, state, records)
        _check_leader(where, leader, change, state)
        in_sync = tuple(replica.broker_id for replica in change.in_sync_replicas)
        if in_sync == state.in_sync_replicas and change.is_recovering == state.is_recovering:
            self._check_registrations(where, change, must_be_alive=False)  # replicas in sync need not be alive
            records.append(change_record(change.partition, state, state))
            return replace(state, partition_epoch=state.partition_epoch + 1)
        self._check_members(where, leader, change, state)
        base, remaining = finished(replace(state, is_recovering=change.is_recovering), in_sync)
        after = with_in_sync(self._image, base, remaining)
        records.append(change_record(change.partition, state, after))
        if after.leader != leader:
            raise KafkaError(
                ErrorCode.NEW_LEADER_ELECTED, f"the change is made, and broker {after.leader} leads from now on"
            )
        return after

    def _leave(
        self,
        where: str,
        broker_id: BrokerId,
        change: InSyncChange,
        state: PartitionState,
        records: list[MetadataRecord],
    ) -> PartitionState:
        assert change.leaving is not None
        if broker_id not in state.replicas:
            raise _invalid(f"{where}: broker {broker_id} is not among its replicas {list(state.replicas)}")
        if change.in_sync_replicas or change.is_recovering:
            raise _invalid(f"{where}: a replica that leaves proposes nothing else")
        if change.partition_epoch < state.partition_epoch:
            raise _old_partition_epoch(where, change, state)
        after = without_replica(self._image, broker_id, state, change.leaving)
        if after is not state:
            records.append(change_record(change.partition, state, after))
        return after

    def _check_members(self, where: str, leader: BrokerId, change: InSyncChange, state: PartitionState) -> None:
        proposed = [replica.broker_id for replica in change.in_sync_replicas]
        if len(set(proposed)) < len(proposed) or not set(proposed) <= set(state.replicas):
            raise _invalid(f"{where}: {proposed} are not distinct replicas out of {list(state.replicas)}")
        if leader not in proposed:
            raise _invalid(f"{where}: its leader {leader} is not among the in-sync replicas {proposed}")
        if change.is_recovering and len(proposed) > 1:
            raise _invalid(f"{where}: while its leader recovers, no other replica can be in sync")
        if change.is_recovering and not state.is_recovering:
            raise _invalid(f"{where} has recovered and cannot recover again without an election")
        self._check_registrations(where, change, must_be_alive=True)

    def _check_registrations(self, where: str, change: InSyncChange, *, must_be_alive: bool) -> None:
        for replica in change.in_sync_replicas:
            broker = self._image.brokers.get(replica.broker_id)
            is_current = broker is not None and replica.broker_epoch in (-1, broker.broker_epoch)
            if broker is None or not is_current or (must_be_alive and not broker.is_alive):
                raise KafkaError(
                    ErrorCode.INELIGIBLE_REPLICA,
                    f"{where}: broker {replica.broker_id} is fenced, shuts down or has been registered again",
                )


def _check_epochs(where: str, change: InSyncChange, state: PartitionState) -> None:
    if change.leader_epoch > state.leader_epoch or change.partition_epoch > state.partition_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, f"{where}: the sender knows more than this controller")
    if change.leader_epoch < state.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH, f"{where} is in leader epoch {state.leader_epoch}, not {change.leader_epoch}"
        )


def _check_leader(where: str, leader: BrokerId, change: InSyncChange, state: PartitionState) -> None:
    if leader != state.leader:
        raise _invalid(f"{where} is led by broker {state.leader}, not {leader}")
    if change.partition_epoch < state.partition_epoch:
        raise _old_partition_epoch(where, change, state)


def _old_partition_epoch(where: str, change: InSyncChange, state: PartitionState) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"{where} is in partition epoch {state.partition_epoch}, not {change.partition_epoch}",
    )


def _invalid(fault: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, fault)


def is_wanted(broker_id: BrokerId, state: PartitionState, leaving: LeaveReason) -> bool:
    """Whether leaving for this reason changes the state: the replica leads, is in sync or, if it is LOST, is eligible
    or a last known leader."""
    if broker_id == state.leader or broker_id in state.in_sync_replicas:
        return True
    is_candidate = broker_id in state.eligible_leader_replicas or broker_id in state.last_known_leaders
    return leaving is LeaveReason.LOST and is_candidate


def without_replica(
    image: ClusterImage, broker_id: BrokerId, state: PartitionState, leaving: LeaveReason
) -> PartitionState:
    """The state without this replica.

    If the partition does not count on the replica, the sets of replicas stay as they are; the leader epoch still rises
    if a lost replica leaves a partition with a leader, which may count old fetches of the replica. Raises KafkaError
    ELIGIBLE_LEADERS_NOT_AVAILABLE (83) for a stalled replica if no other replica could lead in its place.
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
    # If the lost replica led, it must not become the last known leader: it has no records that it could bring back.
    after = replace(after, last_known_leaders=_without(after.last_known_leaders, broker_id))
    return after if after.leader != state.leader or after.leader == NO_LEADER else _in_new_epoch(state, after)


def _in_new_epoch(state: PartitionState, after: PartitionState | None = None) -> PartitionState:
    """The state `after` with the same leader in a new epoch: the leader refuses fetches of the epoch before."""
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
