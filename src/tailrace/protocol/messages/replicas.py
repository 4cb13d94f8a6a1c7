"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46): leaders and places of replicas.

AlterPartition (56): a leader says which replicas are in sync (KIP-497). v2 topic ids, v3 broker epochs (KIP-903).
"""

from tailrace.protocol.schema import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid, field, message, struct


@struct
class ElectLeadersTopic:
    """A topic and the partitions that shall have another leader."""

    topic: str
    partitions: tuple[Int32, ...]
    desired_leaders: tuple[Int32, ...] = field(versions="2+", tag=10000, default=())
    """In the order of the partitions, the replicas that are to lead although records are missing there (KIP-966); -1:
    any."""


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """Asks for elections; null partitions: every partition. Type 0 elects the first replica, 1 any live one
    (KIP-460)."""

    election_type: Int8 = field(versions="1+", default=0)
    topic_partitions: tuple[ElectLeadersTopic, ...] | None
    timeout_ms: Int32 = 60_000


@struct
class PartitionResult:
    """The result of an election."""

    partition_id: Int32
    error_code: Int16 = 0
    error_message: str | None


@struct
class ReplicaElectionResult:
    """A topic with its partitions."""

    topic: str
    partition_result: tuple[PartitionResult, ...]


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """The outcome for each partition. v1 adds an error for the whole."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(versions="1+", default=0)
    replica_election_results: tuple[ReplicaElectionResult, ...]


@struct
class ReassignablePartition:
    """A partition and its future brokers; null cancels a move under way."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None = None


@struct
class ReassignableTopic:
    """A topic with its partitions."""

    name: str
    partitions: tuple[ReassignablePartition, ...]


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """Moves replicas from broker to broker (KIP-455). v1 may forbid another number of them (KIP-860)."""

    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: bool = field(versions="1+", default=True)
    topics: tuple[ReassignableTopic, ...]


@struct
class ReassignablePartitionResponse:
    """Whether a move has begun or been taken back."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: str | None


@struct
class ReassignableTopicResponse:
    """A topic with its partitions."""

    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """The outcome for each partition."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: bool = field(versions="1+", default=True)
    error_code: Int16 = 0
    error_message: str | None
    responses: tuple[ReassignableTopicResponse, ...]


@struct
class ListPartitionReassignmentsTopic:
    """A topic and the partitions asked for."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """Asks which replicas are being moved; null topics: every topic."""

    timeout_ms: Int32 = 60_000
    topics: tuple[ListPartitionReassignmentsTopic, ...] | None = None


@struct
class OngoingPartitionReassignment:
    """The replicas of a partition, with the replicas that come and the replicas that go."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


@struct
class OngoingTopicReassignment:
    """A topic with its partitions."""

    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """The moves that are under way."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None
    topics: tuple[OngoingTopicReassignment, ...]


@struct
class InSyncBroker:
    """A replica, and its registration that the leader knows; -1 if unknown."""

    broker_id: Int32 = field(versions="3+", default=0)
    broker_epoch: Int64 = field(versions="3+", default=-1)


@struct
class AlterPartitionData:
    """The in-sync replicas that a leader proposes, based on its state of the partition."""

    partition_index: Int32
    leader_epoch: Int32
    new_isr: tuple[Int32, ...] = field(versions="0-2", default=())
    new_isr_with_epochs: tuple[InSyncBroker, ...] = field(versions="3+", default=())
    leader_recovery_state: Int8 = field(versions="1+", default=0)
    """1 while the leader recovers from an unclean election (KIP-704)."""
    partition_epoch: Int32
    leaving: Int8 = field(versions="0+", tag=10000, default=0)
    """Ours: the replica that asks leaves, leader or not: 1 since records are lost there, 2 since the replica cannot
    store."""


@struct
class AlterPartitionTopic:
    """A topic with its partitions."""

    topic_id: Uuid
    partitions: tuple[AlterPartitionData, ...]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest:
    """A broker's proposal for the in-sync replicas of partitions that it leads."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: tuple[AlterPartitionTopic, ...]
    wants_end_offset: bool = field(versions="0+", tag=10000, default=False)
    """Ours: asks for the offset up to which a reader must have applied the metadata log to see the change."""
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this broker (`model.proofs`)."""


@struct
class AlteredPartition:
    """The partition's present state, or the reason why nothing has changed."""

    partition_index: Int32
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...] = ()
    leader_recovery_state: Int8 = field(versions="1+", default=0)
    partition_epoch: Int32


@struct
class AlteredTopic:
    """A topic with its partitions."""

    topic_id: Uuid
    partitions: tuple[AlteredPartition, ...]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse:
    """The controller's decision for each partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: tuple[AlteredTopic, ...]
    metadata_end_offset: Int64 = field(versions="0+", tag=10000, default=-1)
    """Ours: the offset of the metadata log below which lies everything that the answer is based on. Only if the request
    asked for the offset."""
