"""KafkaErrors from the error codes of servers of any version, and of the clients' own."""

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition


class LogTruncation(KafkaError):
    """Records that a consumer has read were lost in an unclean election, and the consumer has no reset policy
    (KIP-320).

    `offset` is the consumer's position, `epoch` the leader epoch of the last record before the position. From
    `diverging_offset` on the log has other records or no records; None: unknown.
    """

    def __init__(
        self, topic_partition: TopicPartition, *, offset: int, epoch: int, diverging_offset: int | None
    ) -> None:
        where = "at an unknown offset" if diverging_offset is None else f"from offset {diverging_offset} on"
        detail = (
            f"{topic_partition}: the log was truncated, it differs {where} from what was read up to offset {offset} "
            f"(epoch {epoch}): seek to go on, since auto.offset.reset is none"
        )
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, detail)
        self.topic_partition = topic_partition
        self.offset = offset
        self.epoch = epoch
        self.diverging_offset = diverging_offset


class RecordDeserializationError(KafkaError):
    """A deserializer has refused a record, which stays the next record of its partition: the next poll raises again.

    To go on behind the record: `consumer.seek(error.topic_partition, error.offset + 1)`. `key` and `value` are the
    bytes of the record, for a topic of dead letters; `__cause__` is the exception of the deserializer.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        offset: int,
        field: str,
        *,
        key: bytes | None,
        value: bytes | None,
        cause: BaseException,
    ) -> None:
        detail = (
            f"{topic_partition}: {field}_deserializer cannot read the record at offset {offset}"
            f" ({type(cause).__name__}: {cause}); seek to offset {offset + 1} to go on behind it"
        )
        super().__init__(ErrorCode.INVALID_RECORD, detail)
        self.topic_partition = topic_partition
        self.offset = offset
        self.key = key
        self.value = value


class AbortableTransactionError(KafkaError):
    """The open transaction cannot be committed: call `abort_transaction`, and go on with the next transaction.

    `code` is the code of the error that the transaction met.
    """


class FatalTransactionError(KafkaError):
    """A transactional producer cannot go on: close it. Another producer with its transactional id may.

    The `init_transactions` of the other producer aborts a transaction that is open.
    """


class ProducerFenced(FatalTransactionError):
    """Another producer with this transactional id has begun, or the transaction was open beyond its time-out.

    Close this producer, and make another one only if no other process is to have the transactional id.
    """


class ClosedClient(KafkaError):
    """A call of a client that is closed. A retry does not help."""

    def __init__(self, client: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, f"this {client} is closed: make another one")


def code_of(number: int) -> ErrorCode:
    """The code of this number; UNKNOWN_SERVER_ERROR for a code of a newer server."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(number: int, detail: str) -> None:
    """Raise KafkaError for this error code, unless it is 0."""
    if not number:
        return
    code = code_of(number)
    if number == ErrorCode.UNKNOWN_SERVER_ERROR:
        detail = f"{detail}: the broker has failed at it, and its own log says why"
    elif code is ErrorCode.UNKNOWN_SERVER_ERROR:
        detail = f"{detail}: the broker says error {number}, which is newer than this client"
    raise KafkaError(code, detail)
