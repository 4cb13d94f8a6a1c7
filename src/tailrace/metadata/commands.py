"""Commands to the controller about topics, settings and partitions, and its answers, as plain values without a wire
format.

A request that fails as a whole is answered with a KafkaError in place of the response.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tailrace.metadata.image import ConfigResource
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import ElectionType, PartitionState, TopicPartition
from tailrace.model.proofs import NO_SECRET

DEFAULT_COUNT = -1
"""The value in place of a number of partitions or replicas: the cluster chooses the number."""


class ControllerCommand:
    """Base of the commands to the controller; a command has a row in `controller.DECIDERS`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOfBroker(ControllerCommand):
    """A command of a registered broker, in its own name."""

    broker_id: BrokerId
    broker_epoch: int
    secret: bytes = field(default=NO_SECRET, repr=False)
    """Proves that the sender is this broker, if its incarnation id needs that (`model.proofs`)."""


class ControllerResponse:
    """Base of the controller's answers."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAssignment:
    """The replicas that a person wants for one partition, the preferred leader first."""

    partition: int
    broker_ids: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic to create. With assignments, the two counts must be -1."""

    name: str
    num_partitions: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics(ControllerCommand):
    """Create topics; each succeeds or fails by itself."""

    topics: tuple[TopicSpec, ...]
    validate_only: bool = False
    """Whether to answer as if the topics were created, and to create nothing."""
    requested_by: str
    """The client, for the log; empty if not known. The field has the same meaning in the other commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """A topic that was created or, with `validate_only`, would be created."""

    name: str
    topic_id: TopicId
    num_partitions: int
    replication_factor: int
    overrides: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRefused:
    """The reason why a topic was not created."""

    name: str
    error: KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsCreated(ControllerResponse):
    """A result for each name in the request."""

    results: tuple[TopicCreated | TopicRefused, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionIncrease:
    """A topic and the total number of partitions to reach."""

    name: str
    count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None
    """Replicas for each new partition; None: the cluster chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions(ControllerCommand):
    """Add partitions to topics; each succeeds or fails by itself."""

    topics: tuple[PartitionIncrease, ...]
    validate_only: bool = False
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutcome:
    """The outcome of CreatePartitions for one topic; `error` is None if the new partitions were created, or could
    be."""

    name: str
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsCreated(ControllerResponse):
    """An outcome per name in the request."""

    outcomes: tuple[TopicOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReference:
    """A topic by name or by id, never by both."""

    name: str | None = None
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics(ControllerCommand):
    """Delete topics; each succeeds or fails by itself."""

    topics: tuple[TopicReference, ...]
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletion:
    """The outcome for one reference; with name and id if the topic existed."""

    name: str | None
    topic_id: TopicId | None
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted(ControllerResponse):
    """A result per reference, in order."""

    results: tuple[TopicDeletion, ...]


class ConfigOperation(IntEnum):
    """The operation on a setting, as on the wire (KIP-339)."""

    SET = 0
    DELETE = 1
    """Reset the setting to its default."""
    APPEND = 2
    """Add words to a list that does not have them yet."""
    SUBTRACT = 3
    """Take words from a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """The change of one setting. The value is None only for DELETE."""

    name: str
    operation: ConfigOperation = ConfigOperation.SET
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChanges:
    """Changes of the settings of one topic or broker: either every change is made, or none."""

    resource: ConfigResource
    changes: tuple[ConfigChange, ...]
    replaces_all: bool = False
    """Whether settings that are not named are reset to their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs(ControllerCommand):
    """Change settings; each resource succeeds or fails by itself."""

    resources: tuple[ResourceChanges, ...]
    validate_only: bool = False
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigsAltered(ControllerResponse):
    """For each resource in the command, in order, None or the reason why nothing changed."""

    errors: tuple[KafkaError | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncReplica:
    """A replica that a leader proposes as in sync, with the epoch of its registration as the leader knows it; -1 if not
    known."""

    broker_id: BrokerId
    broker_epoch: int = -1


class LeaveReason(IntEnum):
    """The reason for which a replica leaves at its broker's request, as on the wire."""

    LOST = 1
    """The replica has lost, or may have lost, records that it has acknowledged."""
    STALLED = 2
    """The replica has every record, and cannot store more for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncChange:
    """The in-sync replicas that the leader of one partition proposes, based on its state of the partition.

    With `leaving` the sender's replica, leader or not, asks to leave the in-sync replicas; then no in-sync replicas are
    named.
    """

    topic_id: TopicId
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync_replicas: tuple[InSyncReplica, ...]
    is_recovering: bool = False
    leaving: LeaveReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition(CommandOfBroker):
    """A leader proposes in-sync replicas (KIP-497), or a replica leaves; each partition succeeds or fails by itself."""

    changes: tuple[InSyncChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncOutcome:
    """The present state of the partition, or the reason why nothing changed."""

    topic_id: TopicId
    partition: int
    result: PartitionState | KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAltered(ControllerResponse):
    """An outcome per change, in order."""

    outcomes: tuple[InSyncOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders(ControllerCommand):
    """Elect leaders. Without partitions the command is for every partition that needs a leader, and the answer names
    only these partitions."""

    type: ElectionType
    partitions: tuple[TopicPartition, ...] | None = None
    desired_leaders: Mapping[TopicPartition, BrokerId] = field(default_factory=dict)
    """The replicas that an unclean election makes leaders, even if their logs are damaged. For a partition without an
    entry the election takes any live replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The outcome for one partition: whether the request was carried out."""

    topic_partition: TopicPartition
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadersElected(ControllerResponse):
    """An outcome per partition."""

    outcomes: tuple[PartitionOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceLeaders(ControllerCommand):
    """Elect the preferred leaders of brokers for which other brokers lead too many partitions; at most as many as one
    command may elect."""

    allowed_percentage: int
    """The percentage of the partitions with the same preferred leader that other brokers may lead."""
    unfinished: tuple[BrokerId, ...] = ()
    """Brokers whose balance an earlier command has begun. The balance of these brokers goes on, whatever their share is
    by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadersBalanced(ControllerResponse):
    """The result of one `BalanceLeaders`."""

    elected: int
    unfinished: tuple[BrokerId, ...]
    """Brokers for which more preferred leaders remain to be elected. Empty: the balance is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The target replicas of one partition; None cancels a reassignment under way."""

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignments(ControllerCommand):
    """Move replicas (KIP-455); each partition succeeds or fails by itself."""

    reassignments: tuple[Reassignment, ...]
    allows_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentsAltered(ControllerResponse):
    """An outcome per reassignment, in order."""

    outcomes: tuple[PartitionOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryAssignment:
    """A replica of the sending broker is in this directory of that broker."""

    directory_id: bytes
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignDirectories(CommandOfBroker):
    """A broker reports the directories of its replicas (KIP-858); each assignment succeeds or fails by itself."""

    assignments: tuple[DirectoryAssignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoriesAssigned(ControllerResponse):
    """For each assignment, in order, None or the reason why the assignment was not recorded."""

    errors: tuple[KafkaError | None, ...]
