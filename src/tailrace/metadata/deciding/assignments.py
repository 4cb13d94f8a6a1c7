"""Assignments of replicas: to other brokers (reassignments, KIP-455), and to log directories (KIP-858). Pure.

While replicas move, a partition has the old and the new replicas. The change of in-sync replicas by which all added
replicas are in sync also removes the old replicas.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from tailrace.metadata.commands import (
    AlterReassignments,
    AssignDirectories,
    DirectoriesAssigned,
    DirectoryAssignment,
    PartitionOutcome,
    Reassignment,
    ReassignmentsAltered,
)
from tailrace.metadata.deciding.state_changes import change_record, found_partition, with_in_sync
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import UNASSIGNED_DIRECTORY
from tailrace.metadata.views import view_refusal
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.machines import Decision
from tailrace.model.partitions import PartitionState, TopicPartition

Replicas = tuple[BrokerId, ...]


class Reassignments:
    """The decision on an AlterReassignments command."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def decide(self, command: AlterReassignments) -> Decision[MetadataRecord, ReassignmentsAltered]:
        """Records of the reassignments that begin, change or end, and an outcome for every partition."""
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
                error = refusal.without_frames()
            outcomes.append(PartitionOutcome(topic_partition=wanted.topic_partition, error=error))
        return Decision(records=tuple(records), response=ReassignmentsAltered(outcomes=tuple(outcomes)))

    def _move(self, wanted: Reassignment, *, keeps_factor: bool) -> list[MetadataRecord]:
        state = self._image.partition(*wanted.topic_partition)
        if state is None:
            raise view_refusal(self._image, wanted.topic_partition.topic) or KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {wanted.topic_partition}"
            )
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
        factor = len(set(state.replicas) - set(state.removing_replicas))  # during a move, the target's factor
        if keeps_factor and len(target) != factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{where} has {factor} replicas and would have {len(target)}, which the request forbids",
            )


def finished(state: PartitionState, in_sync: Replicas) -> tuple[PartitionState, Replicas]:
    """The partition and its in-sync replicas: without the replicas to remove, if all added replicas are in sync; else
    unchanged."""
    if not state.adding_replicas and not state.removing_replicas:
        return state, in_sync
    remaining = tuple(replica for replica in in_sync if replica not in state.removing_replicas)
    if not remaining or not set(state.adding_replicas) <= set(remaining):
        return state, in_sync
    replicas = tuple(replica for replica in state.replicas if replica not in state.removing_replicas)
    return _with_replicas(state, replicas), remaining


def _begun(state: PartitionState, target: Replicas) -> PartitionState:
    staying = set(state.replicas) - set(state.adding_replicas)
    removing = tuple(replica for replica in state.replicas if replica not in target)
    adding = tuple(replica for replica in target if replica not in staying)
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


class DirectoryAssignments:
    """The decision on an AssignDirectories command."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._changed: dict[tuple[TopicId, int], PartitionState] = {}

    def decide(self, command: AssignDirectories) -> Decision[MetadataRecord, DirectoriesAssigned]:
        """A record per partition that changes. If the command names two directories for one replica, the later counts,
        as in Kafka."""
        errors: list[KafkaError | None] = []
        for assignment in command.assignments:
            try:
                self._assign(command.broker_id, assignment)
            except KafkaError as refusal:
                errors.append(refusal)
            else:
                errors.append(None)
        return Decision(records=tuple(self._records()), response=DirectoriesAssigned(errors=tuple(errors)))

    def _records(self) -> Iterable[MetadataRecord]:
        for (topic_id, number), after in self._changed.items():
            _, before = found_partition(self._image, topic_id, number)
            if after != before:
                yield change_record(number, before, after)

    def _assign(self, broker_id: BrokerId, assignment: DirectoryAssignment) -> None:
        where = (assignment.topic_id, assignment.partition)
        state = self._changed.get(where) or found_partition(self._image, *where)[1]
        if broker_id not in state.replicas:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} has no replica of partition {where[1]}"
            )
        directories = list(state.directories or (UNASSIGNED_DIRECTORY,) * len(state.replicas))
        directories[state.replicas.index(broker_id)] = assignment.directory_id
        self._changed[where] = replace(state, directories=tuple(directories))
