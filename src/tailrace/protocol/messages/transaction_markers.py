"""WriteTxnMarkers (27): a transaction's coordinator has its end written into the partitions it reached (KIP-98)."""

from tailrace.protocol.schema import Int16, Int32, Int64, message, struct


@struct
class WritableTxnMarkerTopic:
    """A topic and the partitions that get a marker."""

    name: str
    partition_indexes: tuple[Int32, ...]


@struct
class WritableTxnMarker:
    """The end of one producer's transaction, and where it is to be written."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: bool
    """True: committed, False: aborted."""
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: Int32
    """Of the partition of `__transaction_state`: a coordinator that was followed by another is refused."""


@message(api_key=27, versions="1", flexible="1+")
class WriteTxnMarkersRequest:
    """Has markers written to the leaders of partitions."""

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


@message(api_key=27, versions="1", flexible="1+")
class WriteTxnMarkersResponse:
    """Producer by producer, partition by partition, whether the marker is there for good."""

    markers: tuple[WritableTxnMarkerResult, ...]
