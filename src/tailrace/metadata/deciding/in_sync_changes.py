"""The outcome of a leader's proposal of in-sync replicas, and of a replica's word that it leaves (pure).

The order of the checks and the codes are Kafka's.

Every proposal that is carried out raises the partition epoch, also one of what is so already: late copies of whatever
was proposed in the epoch before are INVALID_UPDATE_VERSION from then on (decision 0025). Kafka's controller writes
nothing in that case.
"""

from collections import Counter
from dataclasses import replace

from tailrace.metadata.deciding.leaving_replicas import without_replica
from tailrace.metadata.deciding.reassignments import finished
from tailrace.metadata.deciding.state_changes import change_record, with_in_sync
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.partition_commands import AlterPartition, InSyncChange, InSyncOutcome, PartitionsAltered
from tailrace.metadata.records import MetadataRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, format_topic_id
from tailrace.model.machines import Decision
from tailrace.model.partitions import PartitionState


class InSyncChanges:
    """One AlterPartition command on its way to a decision."""

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
                result = refusal
            outcomes.append(InSyncOutcome(topic_id=change.topic_id, partition=change.partition, result=result))
        return Decision(records=tuple(records), response=PartitionsAltered(outcomes=tuple(outcomes)))

    def _change(self, leader: BrokerId, change: InSyncChange, records: list[MetadataRecord]) -> PartitionState:
        where, state = self._partition(change)
        _check_epochs(where, change, state)
        if change.leaving is not None:
            return self._leave(where, leader, change, state, records)
        _check_leader(where, leader, change, state)
        in_sync = tuple(replica.broker_id for replica in change.in_sync_replicas)
        if in_sync == state.in_sync_replicas and change.is_recovering == state.is_recovering:
            self._check_registrations(where, change, must_be_alive=False)  # they are in sync, alive or not
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
            raise _invalid(f"{where}: broker {broker_id} is none of its replicas {list(state.replicas)}")
        if change.in_sync_replicas or change.is_recovering:
            raise _invalid(f"{where}: a replica that leaves proposes nothing else")
        if change.partition_epoch < state.partition_epoch:
            raise _old_partition_epoch(where, change, state)
        after = without_replica(self._image, broker_id, state, change.leaving)
        if after is not state:
            records.append(change_record(change.partition, state, after))
        return after

    def _partition(self, change: InSyncChange) -> tuple[str, PartitionState]:
        topic = self._image.topic_by_id(change.topic_id)
        if topic is None:
            shown = format_topic_id(change.topic_id)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {shown}")
        state = topic.partitions.get(change.partition)
        where = f"{topic.name}-{change.partition}"
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {where}")
        return where, state

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
