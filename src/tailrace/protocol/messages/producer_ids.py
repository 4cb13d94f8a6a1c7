"""InitProducerId (22): an identity for an idempotent or transactional producer (KIP-98); AllocateProducerIds (67)."""

from tailrace.protocol.schema import Int16, Int32, Int64, field, message


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
