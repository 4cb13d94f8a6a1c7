"""Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75): brokers, topics, and leaders of partitions."""

from tailrace.protocol.schema import ZERO_UUID, Int8, Int16, Int32, Uuid, field, message, struct


@struct
class MetadataRequestTopic:
    """A topic by name, or by id with a null name (v12 and later; the field is there from v10)."""

    topic_id: Uuid = field(versions="10+", default=ZERO_UUID)
    name: str | None = field(nullable="10+")


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    """Asks for topics: null asks for every topic, an empty list for no topic; in v0 an empty list asks for every topic.
    v4 may refuse to create topics."""

    topics: tuple[MetadataRequestTopic, ...] | None = field(nullable="1+")
    allow_auto_topic_creation: bool = field(versions="4+", default=True)
    include_cluster_authorized_operations: bool = field(versions="8-10", default=False)
    include_topic_authorized_operations: bool = field(versions="8+", default=False)


@struct
class MetadataResponseBroker:
    """A broker and where it listens. v1 adds its rack."""

    node_id: Int32
    host: str
    port: Int32
    rack: str | None = field(versions="1+", default=None)


@struct
class MetadataResponsePartition:
    """The leader and replicas of a partition. v5 adds offline replicas, v7 the leader epoch (KIP-320)."""

    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = field(versions="7+", default=-1)
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: tuple[Int32, ...] = field(versions="5+", default=())


@struct
class MetadataResponseTopic:
    """A topic and its partitions. v10 adds its id (KIP-516)."""

    error_code: Int16 = 0
    name: str | None = field(nullable="12+")
    topic_id: Uuid = field(versions="10+", default=ZERO_UUID)
    is_internal: bool = field(versions="1+", default=False)
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: Int32 = field(versions="8+", default=-2147483648)


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    """Brokers and topics in the image of this node. v13 adds an error for the whole: rebootstrap (KIP-1102)."""

    throttle_time_ms: Int32 = field(versions="3+", default=0)
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None = field(versions="2+", default=None)
    controller_id: Int32 = field(versions="1+", default=-1)
    topics: tuple[MetadataResponseTopic, ...]
    cluster_authorized_operations: Int32 = field(versions="8-10", default=-2147483648)
    error_code: Int16 = field(versions="13+", default=0)


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """Asks for the cluster's nodes (KIP-700). v1 can ask for controllers (KIP-919), v2 for fenced brokers too."""

    include_cluster_authorized_operations: bool
    endpoint_type: Int8 = field(versions="1+", default=1)
    include_fenced_brokers: bool = field(versions="2+", default=False)


@struct
class DescribeClusterBroker:
    """A node and where it listens."""

    broker_id: Int32
    host: str
    port: Int32
    rack: str | None = None
    is_fenced: bool = field(versions="2+", default=False)


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The cluster's id, controller and nodes."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Int8 = field(versions="1+", default=1)
    cluster_id: str
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterBroker, ...]
    cluster_authorized_operations: Int32 = -2147483648


@struct
class TopicRequest:
    """A topic by name."""

    name: str


@struct
class Cursor:
    """The place at which a list of topics, ordered by name, goes on."""

    topic_name: str
    partition_index: Int32


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """Asks for topics page by page (KIP-966); an empty list asks for every topic."""

    topics: tuple[TopicRequest, ...]
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


@struct
class DescribeTopicPartitionsResponsePartition:
    """The leader and replicas of a partition, and its eligible leader replicas (KIP-966)."""

    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    eligible_leader_replicas: tuple[Int32, ...] | None = None
    last_known_elr: tuple[Int32, ...] | None = None
    offline_replicas: tuple[Int32, ...]


@struct
class DescribeTopicPartitionsResponseTopic:
    """A topic and its partitions on this page."""

    error_code: Int16 = 0
    name: str | None
    topic_id: Uuid
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...]
    topic_authorized_operations: Int32 = -2147483648


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """A page of topics, and the cursor for the next page, if there is a next page."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: Cursor | None = None
