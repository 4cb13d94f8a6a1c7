"""DescribeProducers (61): the active producers of a partition (KIP-664)."""

from tailrace.protocol.schema import Int16, Int32, Int64, message, struct


@struct
class DescribedPartitions:
    """A topic and the partitions that are asked for."""

    name: str
    partition_indexes: tuple[Int32, ...]


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    """Asks for the producers of partitions that this broker leads."""

    topics: tuple[DescribedPartitions, ...]


@struct
class ProducerState:
    """A producer with an id: its last batch, and where its open transaction begins."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


@struct
class PartitionProducers:
    """The producers of one partition, or the error."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...]


@struct
class TopicProducers:
    """A topic with its partitions."""

    name: str
    partitions: tuple[PartitionProducers, ...]


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    """The producers, partition by partition."""

    throttle_time_ms: Int32 = 0
    topics: tuple[TopicProducers, ...]
