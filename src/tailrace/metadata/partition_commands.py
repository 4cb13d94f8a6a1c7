"""Commands of leaders and administrators to the controller about existing partitions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import ElectionType, PartitionState, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncReplica:
    """A replica that a leader wants in sync, and the registration it knows of it; -1 if it knows none."""

    broker_id: BrokerId
    broker_epoch: int = -1


class LeaveReason(IntEnum):
    """The reason for which a replica leaves at its broker's request, as on the wire."""

    LOST = 1
    """It lacks, or may lack, something that it has acknowledged."""
    STALLED = 2
    """It has everything, and cannot store more for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncChange:
    """The in-sync replicas that the leader of one partition proposes, on what it knows of the partition.

    Or, with `leaving`, that the replica which asks leaves, leader or not; no in-sync replicas are named then.
    """

    topic_id: TopicId
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync_replicas: tuple[InSyncReplica, ...]
    is_recovering: bool = False
    leaving: LeaveReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """A leader proposes in-sync replicas (KIP-497), or a replica leaves; each partition succeeds or fails by itself."""

    broker_id: BrokerId
    broker_epoch: int
    changes: tuple[InSyncChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncOutcome:
    """The state of the partition now, or why it stays as it is."""

    topic_id: TopicId
    partition: int
    result: PartitionState | KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAltered:
    """One outcome per change, in order."""

    outcomes: tuple[InSyncOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Elect leaders. No partitions: all of the cluster that need it, and only those are answered."""

    type: ElectionType
    partitions: tuple[TopicPartition, ...] | None = None
    desired_leaders: Mapping[TopicPartition, BrokerId] = field(default_factory=dict)
    """Of an unclean election: the replicas that are to lead, whose damage is accepted. Of others any live one leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """Whether one partition is as it was wanted."""

    topic_partition: TopicPartition
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadersElected:
    """One outcome per partition."""

    outcomes: tuple[PartitionOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The target replicas of one partition; None cancels a reassignment that is going on."""

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignments:
    """Move replicas (KIP-455); each partition succeeds or fails by itself."""

    reassignments: tuple[Reassignment, ...]
    allows_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentsAltered:
    """One outcome per reassignment, in order."""

    outcomes: tuple[PartitionOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryAssignment:
    """A replica of the broker that asks is in this directory of it."""

    directory_id: bytes
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignDirectories:
    """A broker tells where its replicas are (KIP-858); each succeeds or fails by itself."""

    broker_id: BrokerId
    broker_epoch: int
    assignments: tuple[DirectoryAssignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoriesAssigned:
    """For each assignment, in order, None or why the replica is where it was."""

    errors: tuple[KafkaError | None, ...]


PartitionCommand = AlterPartition | ElectLeaders | AlterReassignments | AssignDirectories
PartitionResponse = PartitionsAltered | LeadersElected | ReassignmentsAltered | DirectoriesAssigned
