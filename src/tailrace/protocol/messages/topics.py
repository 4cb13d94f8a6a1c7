"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37), DeleteRecords (21)."""

from tailrace.protocol.schema import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid, field, message, struct


@struct
class CreatableReplicaAssignment:
    """The brokers for one partition, the preferred leader first."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


@struct
class CreatableTopicConfig:
    """A setting of the new topic."""

    name: str
    value: str | None


@struct
class CreatableTopic:
    """A topic to create. -1 partitions or replicas: as many as in `assignments`, else the cluster's default."""

    name: str
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    """Creates topics, or only checks whether it could."""

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 60000
    validate_only: bool = False


@struct
class CreatableTopicConfigs:
    """A setting that the new topic has."""

    name: str = field(versions="5+", default="")
    value: str | None = field(versions="5+", default="")
    read_only: bool = field(versions="5+", default=False)
    config_source: Int8 = field(versions="5+", default=-1)
    is_sensitive: bool = field(versions="5+", default=False)


@struct
class CreatableTopicResult:
    """A topic: its id (v7), its partitions and settings (v5), or the error."""

    name: str
    topic_id: Uuid = field(versions="7+", default=ZERO_UUID)
    error_code: Int16 = 0
    error_message: str | None
    topic_config_error_code: Int16 = field(versions="5+", tag=0, default=0)
    num_partitions: Int32 = field(versions="5+", default=-1)
    replication_factor: Int16 = field(versions="5+", default=-1)
    configs: tuple[CreatableTopicConfigs, ...] | None = field(versions="5+", default=())


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """The outcome for each topic."""

    throttle_time_ms: Int32 = 0
    topics: tuple[CreatableTopicResult, ...]


@struct
class DeleteTopicState:
    """A topic to delete, by name or by id."""

    name: str | None = field(versions="6+", default=None)
    topic_id: Uuid = field(versions="6+", default=ZERO_UUID)


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    """Deletes topics. v6 can name them by id (KIP-516)."""

    topics: tuple[DeleteTopicState, ...] = field(versions="6+", default=())
    topic_names: tuple[str, ...] = field(versions="1-5", default=())
    timeout_ms: Int32


@struct
class DeletableTopicResult:
    """The outcome of the deletion of one topic."""

    name: str | None = field(nullable="6+")
    topic_id: Uuid = field(versions="6+", default=ZERO_UUID)
    error_code: Int16 = 0
    error_message: str | None = field(versions="5+", default=None)


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """The outcome for each topic."""

    throttle_time_ms: Int32 = 0
    responses: tuple[DeletableTopicResult, ...]


@struct
class CreatePartitionsAssignment:
    """The brokers for one new partition, the preferred leader first."""

    broker_ids: tuple[Int32, ...]


@struct
class CreatePartitionsTopic:
    """A topic and its new number of partitions; null assignments leave the placement to the cluster."""

    name: str
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """Adds partitions to topics (KIP-195), or only checks whether it could."""

    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32
    validate_only: bool


@struct
class CreatePartitionsTopicResult:
    """Whether one topic has the partitions."""

    name: str
    error_code: Int16 = 0
    error_message: str | None = None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """The outcome for each topic. v3 may answer error 89 (KIP-599)."""

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...]


@struct
class DeleteRecordsPartition:
    """A partition and the offset below which everything goes; -1 stands for the high watermark."""

    partition_index: Int32
    offset: Int64


@struct
class DeleteRecordsTopic:
    """A topic with its partitions."""

    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Moves the log start of partitions that this broker leads."""

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


@struct
class DeleteRecordsPartitionResult:
    """The first offset that is left in every replica, -1 with an error."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16 = 0


@struct
class DeleteRecordsTopicResult:
    """A topic with its partitions."""

    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """Partition by partition, where the log starts now."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
