"""InitProducerId (22, KIP-98), DescribeProducers (61, KIP-664), AllocateProducerIds (67): identities of producers."""

from tailrace.protocol.schema import Int16, Int32, Int64, field, message, struct


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
class ActiveProducer:
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
    active_producers: tuple[ActiveProducer, ...]


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


@message(api_key=22, versions="0-5", flexible="2+")
class InitProducerIdRequest:
    """Asks for a producer id; a transactional id gets its own with the next epoch. v3 adds what it had (KIP-360)."""

    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = field(versions="3+", default=-1)
    producer_epoch: Int16 = field(versions="3+", default=-1)


@message(api_key=22, versions="0-5", flexible="2+")
class InitProducerIdResponse:
    """The producer id and epoch to stamp on batches."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest:
    """A broker asks the controller for producer ids to give away (KIP-730)."""

    broker_id: Int32
    broker_epoch: Int64 = -1


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    """A block of producer ids that no other broker will get."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = -1
    producer_id_len: Int32 = 0
