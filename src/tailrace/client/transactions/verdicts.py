"""The meaning of an error code for a transaction, by the request that it answers, as in Kafka's clients. Pure."""

from collections.abc import Mapping
from enum import Enum, auto

from tailrace.model.errors import ErrorCode


class TransactionCall(Enum):
    """The requests of a transactional producer, by their subject."""

    INITIALIZATION = auto()
    PARTITIONS = auto()
    GROUP = auto()
    OFFSETS = auto()
    END = auto()
    RECORDS = auto()


class TransactionVerdict(Enum):
    """The consequence of an error."""

    RETRY = auto()
    """The same request may succeed later."""
    ABORT = auto()
    """The transaction cannot be committed; the producer goes on after its abort."""
    FENCED = auto()
    """Another producer has the transactional id: this producer cannot go on."""
    FATAL = auto()
    """This producer cannot go on."""


_FENCED = frozenset((ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH))
"""INVALID_PRODUCER_EPOCH is the older name of PRODUCER_FENCED at coordinators. From a leader, for a batch, it does not
prove another producer: the coordinator may have raised the epoch on behalf of this producer (KIP-588). The abort that
follows finds out."""

_REFUSED_FOR_GOOD = frozenset(
    (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
)
_ALWAYS_ABORTABLE = frozenset((ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_PRODUCER_ID))

_ABORTABLE: Mapping[TransactionCall, frozenset[ErrorCode]] = {
    TransactionCall.INITIALIZATION: frozenset(),
    TransactionCall.GROUP: frozenset((ErrorCode.GROUP_AUTHORIZATION_FAILED,)),
    TransactionCall.OFFSETS: frozenset(
        (
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.STALE_MEMBER_EPOCH,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        )
    ),
    TransactionCall.END: frozenset(),
}
"""The errors that end only the transaction; every other error ends the producer. `_FATAL` has the calls for records and
partitions."""

_FATAL: Mapping[TransactionCall, frozenset[ErrorCode]] = {
    TransactionCall.PARTITIONS: frozenset((ErrorCode.INVALID_TXN_STATE,)),
    TransactionCall.RECORDS: frozenset(),
}
"""The errors that end the producer; every other error ends only the transaction."""


def verdict_of(call: TransactionCall, code: ErrorCode) -> TransactionVerdict:
    """The consequence of this error. For records: the consequence of a final error, since the sender retries by
    itself."""
    is_about_record = call is TransactionCall.RECORDS
    if code.retriable and not is_about_record:
        return TransactionVerdict.RETRY
    if code is ErrorCode.PRODUCER_FENCED or (code in _FENCED and not is_about_record):
        return TransactionVerdict.FENCED
    if code in _REFUSED_FOR_GOOD:
        return TransactionVerdict.FATAL
    if call is not TransactionCall.INITIALIZATION and code in _ALWAYS_ABORTABLE:
        return TransactionVerdict.ABORT
    if call in _FATAL:
        return TransactionVerdict.FATAL if code in _FATAL[call] else TransactionVerdict.ABORT
    return TransactionVerdict.ABORT if code in _ABORTABLE[call] else TransactionVerdict.FATAL
