"""Replicas move: what is asked for, what it comes to, and when it is done (KIP-455, pure).

While replicas move, a partition has the old and the new ones. When all that are added are in sync, those that are to go
are dropped, in the same change of in-sync replicas that made it so.
"""

from collections import Counter
from dataclasses import replace

from tailrace.metadata.deciding.state_changes import change_record, with_in_sync
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.partition_commands import (
    AlterReassignments,
    PartitionOutcome,
    Reassignment,
    ReassignmentsAltered,
)
from tailrace.metadata.records import UNASSIGNED_DIRECTORY, MetadataRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.machines import Decision
from tailrace.model.partitions import PartitionState, TopicPartition

Replicas = tuple[BrokerId, ...]


class Reassignments:
    """One AlterReassignments command on its way to a decision."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def decide(self, command: AlterReassignments) -> Decision[MetadataRecord, ReassignmentsAltered]:
        """Records of what begins, changes or ends, and an outcome for every partition."""
        records: list[MetadataRecord] = []
        outcomes = []
        times_named = Counter(wanted.topic_partition for wanted in command.reassignments)
        for wanted in command.reassignments:
            error = None
            try:
                if times_named[wanted.topic_partition] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{wanted.topic_partition} is named twice")
                records += self._move(wanted, keeps_factor=not command.allows_replication_factor_change)
            except KafkaError as refusal:
                error = refusal
            outcomes.append(PartitionOutcome(topic_partition=wanted.topic_partition, error=error))
        return Decision(records=tuple(records), response=ReassignmentsAltered(outcomes=tuple(outcomes)))

    def _move(self, wanted: Reassignment, *, keeps_factor: bool) -> list[MetadataRecord]:
        state = self._image.partition(*wanted.topic_partition)
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {wanted.topic_partition}")
        if wanted.replicas is None:
            base, in_sync = _cancelled(wanted.topic_partition, state)
        else:
            self._check(wanted.topic_partition, state, wanted.replicas, keeps_factor=keeps_factor)
            base, in_sync = finished(_begun(state, wanted.replicas), state.in_sync_replicas)
        after = with_in_sync(self._image, base, in_sync)
        if _same(state, after):
            return []
        return [change_record(wanted.topic_partition.partition, state, after)]

    def _check(self, where: TopicPartition, state: PartitionState, target: Replicas, *, keeps_factor: bool) -> None:
        if not target or len(set(target)) < len(target):
            raise _invalid(f"{where}: {list(target)} are not distinct brokers")
        unknown = [broker_id for broker_id in target if broker_id not in self._image.brokers]
        if unknown:
            raise _invalid(f"{where}: brokers {unknown} are not registered")
        factor = len(set(state.replicas) - set(state.removing_replicas))  # of a move under way, what it leads to
        if keeps_factor and len(target) != factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{where} has {factor} replicas and would have {len(target)}, which the request forbids",
            )


def finished(state: PartitionState, in_sync: Replicas) -> tuple[PartitionState, Replicas]:
    """The partition and its in-sync replicas without those to be removed, if nothing is missing; else as they are."""
    if not state.adding_replicas and not state.removing_replicas:
        return state, in_sync
    remaining = tuple(replica for replica in in_sync if replica not in state.removing_replicas)
    if not remaining or not set(state.adding_replicas) <= set(remaining):
        return state, in_sync
    replicas = tuple(replica for replica in state.replicas if replica not in state.removing_replicas)
    return _with_replicas(state, replicas), remaining


def _begun(state: PartitionState, target: Replicas) -> PartitionState:
    settled = set(state.replicas) - set(state.adding_replicas)
    removing = tuple(replica for replica in state.replicas if replica not in target)
    adding = tuple(replica for replica in target if replica not in settled)
    return _with_replicas(state, target + removing, adding=adding, removing=removing)


def _cancelled(where: TopicPartition, state: PartitionState) -> tuple[PartitionState, Replicas]:
    if not state.adding_replicas and not state.removing_replicas:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"no replicas of {where} are being moved")
    kept = tuple(replica for replica in state.replicas if replica not in state.adding_replicas)
    in_sync = tuple(replica for replica in state.in_sync_replicas if replica in kept)
    complete = state.in_sync_replicas or state.eligible_leader_replicas
    if not kept or (complete and not set(complete) & set(kept)):
        raise _invalid(f"{where}: of the replicas before the move none has all that is committed; it can only go on")
    return _with_replicas(state, kept), in_sync


def _with_replicas(
    state: PartitionState, replicas: Replicas, *, adding: Replicas = (), removing: Replicas = ()
) -> PartitionState:
    places = dict(zip(state.replicas, state.directories, strict=True)) if state.directories else {}
    return replace(
        state,
        replicas=replicas,
        adding_replicas=adding,
        removing_replicas=removing,
        directories=tuple(places.get(replica, UNASSIGNED_DIRECTORY) for replica in replicas) if places else (),
    )


def _same(before: PartitionState, after: PartitionState) -> bool:
    return before == replace(after, partition_epoch=before.partition_epoch)


def _invalid(fault: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
