"""Produce (0): append record batches to partitions."""

from tailrace.protocol.schema import ZERO_UUID, Int16, Int32, Int64, Records, Uuid, field, message, struct


@struct
class PartitionProduceData:
    """Exactly one record batch for one partition."""

    index: Int32
    records: Records = None


@struct
class TopicProduceData:
    """Batches for one topic: by name, or from v13 by id (KIP-516)."""

    name: str = field(versions="3-12", default="")
    topic_id: Uuid = field(versions="13+", default=ZERO_UUID)
    partition_data: tuple[PartitionProduceData, ...]


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceRequest:
    """Appends batches; `acks` 0 gets no response. v7 allows zstd, v12 adds partitions to transactions by itself."""

    transactional_id: str | None = None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[TopicProduceData, ...]


@struct
class BatchIndexAndErrorMessage:
    """A record that spoiled its batch (KIP-467)."""

    batch_index: Int32 = field(versions="8+", default=0)
    batch_index_error_message: str | None = field(versions="8+", default=None)


@struct
class LeaderIdAndEpoch:
    """The newer leader, told with error 6 (KIP-951)."""

    leader_id: Int32 = field(versions="10+", default=-1)
    leader_epoch: Int32 = field(versions="10+", default=-1)


@struct
class PartitionProduceResponse:
    """Where the batch is now: `base_offset`, or -1 with an error. v8 adds which records were wrong (KIP-467)."""

    index: Int32
    error_code: Int16 = 0
    base_offset: Int64
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = field(versions="5+", default=-1)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = field(versions="8+", default=())
    error_message: str | None = field(versions="8+", default=None)
    current_leader: LeaderIdAndEpoch = field(versions="10+", tag=0, default=LeaderIdAndEpoch())


@struct
class TopicProduceResponse:
    """Partitions of one topic."""

    name: str = field(versions="3-12", default="")
    topic_id: Uuid = field(versions="13+", default=ZERO_UUID)
    partition_responses: tuple[PartitionProduceResponse, ...]


@struct
class NodeEndpoint:
    """Where a leader listens (KIP-951)."""

    node_id: Int32 = field(versions="10+", default=0)
    host: str = field(versions="10+", default="")
    port: Int32 = field(versions="10+", default=0)
    rack: str | None = field(versions="10+", default=None)


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    """Partition by partition, what became of the batch. v10 adds where new leaders listen (KIP-951)."""

    responses: tuple[TopicProduceResponse, ...]
    throttle_time_ms: Int32 = 0
    node_endpoints: tuple[NodeEndpoint, ...] = field(versions="10+", tag=0, default=())
