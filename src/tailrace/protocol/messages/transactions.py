"""Requests of a transactional producer to its coordinator (KIP-98, KIP-890), and of tools about transactions (KIP-664).

WriteTxnMarkers (27): the coordinator lets leaders write the end of a transaction into the partitions of the
transaction. InitProducerId (22, KIP-98), DescribeProducers (61, KIP-664), AllocateProducerIds (67): identities of
producers.
"""

from collections.abc import Iterable
from itertools import groupby

from tailrace.model.partitions import TopicPartition
from tailrace.protocol.schema import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid, field, message, struct


@struct
class AddPartitionsToTxnTopic:
    """Partitions of one topic."""

    name: str
    partitions: tuple[Int32, ...]


def topics_to_add(partitions: Iterable[TopicPartition]) -> tuple[AddPartitionsToTxnTopic, ...]:
    """The partitions in the form of a request."""
    by_topic = groupby(sorted(partitions), key=lambda partition: partition.topic)
    return tuple(
        AddPartitionsToTxnTopic(name=topic, partitions=tuple(partition.partition for partition in group))
        for topic, group in by_topic
    )


@struct
class AddPartitionsToTxnTransaction:
    """A transaction, and the partitions that a broker wants to add to the transaction, or to find in it."""

    transactional_id: str = field(versions="4+", default="")
    producer_id: Int64 = field(versions="4+", default=0)
    producer_epoch: Int16 = field(versions="4+", default=0)
    verify_only: bool = field(versions="4+", default=False)
    topics: tuple[AddPartitionsToTxnTopic, ...] = field(versions="4+", default=())


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """Adds partitions to a transaction before the producer writes there; from v4 a broker's request, for many
    transactions."""

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = field(versions="4+", default=())
    v3_and_below_transactional_id: str = field(versions="0-3", default="")
    v3_and_below_producer_id: Int64 = field(versions="0-3", default=0)
    v3_and_below_producer_epoch: Int16 = field(versions="0-3", default=0)
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = field(versions="0-3", default=())


@struct
class AddPartitionsToTxnPartitionResult:
    """Whether one partition is in the transaction."""

    partition_index: Int32
    partition_error_code: Int16 = 0


@struct
class AddPartitionsToTxnTopicResult:
    """Partitions of one topic."""

    name: str
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


@struct
class AddPartitionsToTxnResult:
    """The results of one transaction."""

    transactional_id: str = field(versions="4+", default="")
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = field(versions="4+", default=())


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """The outcome for each partition. A client's request adds all partitions, or no partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(versions="4+", default=0)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = field(versions="4+", default=())
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = field(versions="0-3", default=())


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Adds the partition that keeps a group's offsets to a transaction."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """Whether the offsets of the group are part of the transaction."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    """Commits or aborts a transaction; v5 asks for the epoch of the next transaction (KIP-890)."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    """Decided: from now on nothing can keep the transaction from ending like this."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = field(versions="5+", default=-1)
    producer_epoch: Int16 = field(versions="5+", default=-1)


@struct
class TxnOffsetCommitRequestPartition:
    """The next offset to read, and from v2 the epoch of the record before it (KIP-320)."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = field(versions="2+", default=-1)
    committed_metadata: str | None


@struct
class TxnOffsetCommitRequestTopic:
    """Partitions of one topic."""

    name: str
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitRequest:
    """Offsets of a group, committed with the transaction. v3 adds the consumer's member id (KIP-447)."""

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = field(versions="3+", default=-1)
    member_id: str = field(versions="3+", default="")
    group_instance_id: str | None = field(versions="3+", default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


@struct
class TxnOffsetCommitResponsePartition:
    """Whether one offset waits for the end of the transaction."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class TxnOffsetCommitResponseTopic:
    """Partitions of one topic."""

    name: str
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitResponse:
    """Partition by partition, whether its offset waits for the end of the transaction."""

    throttle_time_ms: Int32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...]


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Asks for transactions by their transactional ids."""

    transactional_ids: tuple[str, ...]


@struct
class DescribedTransactionTopic:
    """Partitions of one topic."""

    topic: str
    partitions: tuple[Int32, ...]


@struct
class DescribedTransaction:
    """A transactional id with its present transaction; without a transaction there are no partitions and no start."""

    error_code: Int16 = 0
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[DescribedTransactionTopic, ...]


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """The transactions of the ids that were asked for."""

    throttle_time_ms: Int32 = 0
    transaction_states: tuple[DescribedTransaction, ...]


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """Asks for the transactional ids that this broker coordinates. An empty filter lets everything pass."""

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Int64 = field(versions="1+", default=-1)
    """Only transactions that have been open for longer, in ms (KIP-994); -1: every transaction."""
    transactional_id_pattern: str | None = field(versions="2+", default=None)
    """Only transactional ids that match this regular expression (KIP-1152)."""


@struct
class ListedTransaction:
    """A transactional id in short."""

    transactional_id: str
    producer_id: Int64
    transaction_state: str


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactional ids of this broker, and which of the states asked for do not exist."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListedTransaction, ...]


@struct
class WritableTxnMarkerTopic:
    """A topic and the partitions that get a marker."""

    name: str
    partition_indexes: tuple[Int32, ...]


@struct
class WritableTxnMarker:
    """The end of one producer's transaction, and the partitions that get the marker."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: bool
    """True: committed, False: aborted."""
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: Int32
    """The leader epoch of the partition of `__transaction_state`: a former coordinator is refused."""
    transaction_version: Int8 = field(versions="2+", default=0)
    """The transaction.version of the producer: with 2 the marker's epoch is above the epoch of the transaction."""
    decision_offset: Int64 = field(versions="2+", tag=10_000, default=-1)
    """Ours, for older producers: the place of the decision among the decisions of this coordinator epoch; -1 for
    none."""


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    """Asks leaders of partitions to write markers. v2 tells the generation of the producer (KIP-1228)."""

    markers: tuple[WritableTxnMarker, ...]


@struct
class WritableTxnMarkerPartitionResult:
    """The result for one partition."""

    partition_index: Int32
    error_code: Int16


@struct
class WritableTxnMarkerTopicResult:
    """A topic with its partitions."""

    name: str
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


@struct
class WritableTxnMarkerResult:
    """The result for one producer."""

    producer_id: Int64
    topics: tuple[WritableTxnMarkerTopicResult, ...]


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """Producer by producer, partition by partition, whether the marker is there for good."""

    markers: tuple[WritableTxnMarkerResult, ...]


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
    """Asks for a producer id; a transactional id gets its own with the next epoch. v3 adds the present id (KIP-360)."""

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
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this broker (`model.proofs`)."""


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    """A block of producer ids that no other broker will get."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = -1
    producer_id_len: Int32 = 0
