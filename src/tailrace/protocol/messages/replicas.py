"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46)."""

from tailrace.protocol.schema import Int8, Int16, Int32, field, message, struct


@struct
class ElectLeadersTopic:
    """A topic and those of its partitions that shall have another leader."""

    topic: str
    partitions: tuple[Int32, ...]
    desired_leaders: tuple[Int32, ...] = field(versions="2+", tag=10000, default=())
    """In the order of the partitions, the replicas that are to lead with all that they lack (KIP-966); -1: any."""


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """Asks for elections; null partitions mean all. Type 0 elects the first replica, 1 any live one (KIP-460)."""

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
    """Partition by partition, what became of it. v1 adds an error for the whole."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(versions="1+", default=0)
    replica_election_results: tuple[ReplicaElectionResult, ...]


@struct
class ReassignablePartition:
    """A partition and the brokers that shall have it; null takes back a move that goes on."""

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
    """Partition by partition, what became of it."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: bool = field(versions="1+", default=True)
    error_code: Int16 = 0
    error_message: str | None
    responses: tuple[ReassignableTopicResponse, ...]


@struct
class ListPartitionReassignmentsTopic:
    """A topic and those of its partitions that are asked for."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """Asks which replicas are being moved; null topics mean all."""

    timeout_ms: Int32 = 60_000
    topics: tuple[ListPartitionReassignmentsTopic, ...] | None = None


@struct
class OngoingPartitionReassignment:
    """The replicas of a partition, with those that come and those that go."""

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
    """All moves that go on."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None
    topics: tuple[OngoingTopicReassignment, ...]
