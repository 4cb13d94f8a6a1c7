"""The transactions of one producer: the calls that are allowed now, and the requests to the coordinator. Pure.

    uninitialized --> initializing --> ready --> in transaction --> committing --> ready
                                                   |    |               |
                                                   |    +---------> abortable error
                                                   |                    |
                                                   +------------> aborting --> ready

A fatal error can follow every state, and no state follows a fatal error.

1. A transaction is committed only if every record of the transaction is written: a failed record is an abortable error.
2. No record is sent of a transaction that cannot be committed any more.
3. Before transaction.version 2 a partition is sent records only when the coordinator has added it, and the epoch of the
   producer lasts. After a numbered batch that failed or was dropped, which leaves a gap, the abort is followed by the
   next epoch (KIP-360). From version 2 on a batch adds its partition, and each end brings the next epoch (KIP-890).
4. The coordinator is asked to end a transaction only if it knows the transaction: before version 2 it refuses the end
   of any other transaction. A request to add partitions that had no answer is repeated before the abort.
5. A phase outlasts a call that was cut short: the same call goes on with the phase.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple, NoReturn

from tailrace.client.errors import AbortableTransactionError, FatalTransactionError, ProducerFenced
from tailrace.client.transactions.verdicts import TransactionCall, TransactionVerdict, verdict_of
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

EPOCH_OF_EACH = 2
"""The transaction.version from which each transaction has an epoch of its own (KIP-890)."""


class Identity(NamedTuple):
    """The identity of an idempotent producer, or of a transactional producer."""

    producer_id: int
    producer_epoch: int
    is_transactional: bool = False
    """Whether its batches belong to transactions."""


class TransactionPhase(Enum):
    """The phases of a producer."""

    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING = auto()
    ABORTING = auto()
    HANDING_OVER = auto()
    HANDED_OVER = auto()
    """Another process ends the transaction; this producer has done its part."""
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


class EndStep(Enum):
    """The next thing to do at the end of a transaction."""

    ADD_AGAIN = auto()
    """Repeat the additions that had no answer, to learn whether the coordinator knows of the transaction."""
    END = auto()
    RENEW = auto()
    """Ask for the next epoch."""
    DONE = auto()


_WAY_OUT = {
    TransactionPhase.UNINITIALIZED: "call init_transactions() first",
    TransactionPhase.INITIALIZING: "init_transactions() did not finish: call it again",
    TransactionPhase.READY: "no transaction is open: call begin_transaction() first",
    TransactionPhase.IN_TRANSACTION: "a transaction is open: commit or abort it first",
    TransactionPhase.COMMITTING: "commit_transaction() did not finish: call it again",
    TransactionPhase.ABORTING: "abort_transaction() did not finish: call it again",
    TransactionPhase.HANDING_OVER: "hand_over_transaction() did not finish: call it again, or abort",
    TransactionPhase.HANDED_OVER: "its transaction was handed over: make another producer",
}
_OPEN = frozenset((TransactionPhase.IN_TRANSACTION, TransactionPhase.HANDING_OVER, TransactionPhase.ABORTABLE_ERROR))
_WRITING = frozenset((TransactionPhase.IN_TRANSACTION, TransactionPhase.COMMITTING, TransactionPhase.HANDING_OVER))
"""The phases in which a failed record makes an abort necessary."""
_DOOMED = frozenset((TransactionPhase.ABORTABLE_ERROR, TransactionPhase.ABORTING, TransactionPhase.FATAL_ERROR))


class ProducerTransaction:
    """The state of a producer with this transactional id."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.phase = TransactionPhase.UNINITIALIZED
        self.identity: Identity | None = None
        self.version = 0
        """The cluster's transaction.version, in which the open transaction began."""
        self._next_version = 0
        self._fault: KafkaError | None = None
        """The first error of the transaction, or the error that ended the producer."""
        self._partitions: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._unanswered: set[TopicPartition] = set()
        self._unanswered_group: str | None = None
        self._is_known = False
        """Whether the coordinator knows the transaction; in version 2 also if it may know the transaction."""
        self._is_ended = False
        self._needs_epoch = False

    # the calls of the application

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open that the application has to end, and its end has not begun."""
        return self.phase in _OPEN

    @property
    def is_doomed(self) -> bool:
        """Whether no record of the transaction may be sent any more."""
        return self.phase in _DOOMED

    def begin_initialization(self) -> None:
        """Begin to ask for the first identity. Raises KafkaError INVALID_TXN_STATE when the producer has an
        identity."""
        if self.phase not in (TransactionPhase.UNINITIALIZED, TransactionPhase.INITIALIZING):
            self._refuse("init_transactions", "it is called once, when the producer has been made")
        self.phase = TransactionPhase.INITIALIZING

    def begin(self) -> None:
        """Open a transaction."""
        if self.phase is not TransactionPhase.READY:
            self._refuse("begin_transaction")
        self.phase = TransactionPhase.IN_TRANSACTION

    def check_send(self, call: str = "send") -> None:
        """Refuse this call unless a transaction is open that takes records and offsets."""
        if self.phase is not TransactionPhase.IN_TRANSACTION:
            self._refuse(call)

    def begin_commit(self) -> None:
        """Take no more records; also goes on with a commit that was cut short."""
        if self.phase not in (TransactionPhase.IN_TRANSACTION, TransactionPhase.COMMITTING):
            self._refuse("commit_transaction")
        self.phase = TransactionPhase.COMMITTING

    def check_commit(self) -> None:
        """Refuse the commit if a record has failed since it began."""
        if self.phase is not TransactionPhase.COMMITTING:
            self._refuse("commit_transaction")

    def begin_hand_over(self) -> None:
        """Take no more records; also goes on with a call that was cut short."""
        if self.phase not in (TransactionPhase.IN_TRANSACTION, TransactionPhase.HANDING_OVER):
            self._refuse("hand_over_transaction")
        self.phase = TransactionPhase.HANDING_OVER

    def hand_over(self) -> Identity | None:
        """Leave the end to another process. Returns the identity for that process; None if the coordinator knows of no
        transaction.

        Refused if a record has failed since it began.
        """
        if self.phase is not TransactionPhase.HANDING_OVER:
            self._refuse("hand_over_transaction")
        self.phase = TransactionPhase.HANDED_OVER
        return self.identity if self._is_known else None

    def begin_abort(self) -> None:
        """Drop unsent records; also goes on with an abort that was cut short."""
        if self.phase not in _OPEN and self.phase is not TransactionPhase.ABORTING:
            self._refuse("abort_transaction")
        self.phase = TransactionPhase.ABORTING
        self._wanted.clear()

    def _refuse(self, call: str, way_out: str = "") -> NoReturn:
        raise self.refusal(call, way_out)

    def refusal(self, call: str, way_out: str = "") -> KafkaError:
        """The exception for a call that the phase does not allow."""
        if self._fault is not None:
            return self.error()
        detail = f"{call}() of transactional.id {self.transactional_id!r}: {way_out or _WAY_OUT[self.phase]}"
        return KafkaError(ErrorCode.INVALID_TXN_STATE, detail)

    def error(self) -> KafkaError:
        """A new exception for the error that the transaction has met, or with which the producer ended.

        For records that are dropped by an abort without an error it is OPERATION_NOT_ATTEMPTED.
        """
        if self._fault is None:
            return KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "dropped: their transaction was aborted")
        return type(self._fault)(self._fault.code, self._fault.detail)

    # partitions and groups of the transaction

    def admits(self, partition: TopicPartition) -> bool:
        """Whether a batch may be sent to this partition now; if not, the partition is wanted."""
        if partition in self._partitions:
            return True
        if self.version >= EPOCH_OF_EACH:
            self._partitions.add(partition)
            self._is_known = True
            return True
        if partition not in self._unanswered:
            self._wanted.add(partition)
        return False

    @property
    def has_wanted(self) -> bool:
        """Whether there are partitions to ask the coordinator for."""
        return bool(self._wanted or self._unanswered) and not self.is_doomed

    def take_wanted(self) -> frozenset[TopicPartition]:
        """The partitions to ask for now."""
        self._unanswered |= self._wanted
        self._wanted.clear()
        return frozenset(self._unanswered)

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the coordinator has added these partitions."""
        self._partitions.update(partitions)
        self._unanswered.difference_update(partitions)
        self._is_known = True

    @property
    def must_add_group(self) -> bool:
        """Whether the coordinator has to add a group before its offsets are sent: before version 2."""
        return self.version < EPOCH_OF_EACH

    def begin_group(self, group: str) -> None:
        """Note that the request to add this group is about to be sent; in version 2, the request with the group's
        offsets."""
        self.check_send("send_offsets_to_transaction")
        if self.must_add_group:
            self._unanswered_group = group
        else:
            self._is_known = True

    def group_added(self) -> None:
        """Note that the coordinator has added the group of `begin_group`."""
        self._unanswered_group = None
        self._is_known = True

    def cut_short(self, detail: str) -> None:
        """Refuse a commit from now on: the call that sends offsets was cut short, and the transaction may not have the
        offsets."""
        if self.phase is TransactionPhase.IN_TRANSACTION:
            self._doom(
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"send_offsets_to_transaction() did not finish: {detail}")
            )

    # errors

    def batch_failed(self, fault: KafkaError, *, is_numbered: bool) -> None:
        """Note that a record or batch of the transaction is not written, or perhaps not written."""
        self._needs_epoch |= is_numbered
        if self.phase in _WRITING:
            self._judge(TransactionCall.RECORDS, fault)
        elif verdict_of(TransactionCall.RECORDS, fault.code) is TransactionVerdict.FENCED:
            self.give_up(fault, fenced=True)

    def refused(self, call: TransactionCall, fault: KafkaError) -> KafkaError | None:
        """Note the last answer to this request. Returns the error for the application; None if the abort goes on."""
        if self._judge(call, fault) is TransactionVerdict.RETRY:
            if call not in (TransactionCall.GROUP, TransactionCall.OFFSETS) or self.phase is TransactionPhase.ABORTING:
                return KafkaError(fault.code, f"{fault.detail}; {_WAY_OUT[self.phase]}")
            self.cut_short(str(fault))
            return self.error()
        return None if self.phase is TransactionPhase.ABORTING else self.error()

    def _judge(self, call: TransactionCall, fault: KafkaError) -> TransactionVerdict:
        verdict = verdict_of(call, fault.code)
        if self.phase is TransactionPhase.ABORTING and fault.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            verdict = TransactionVerdict.ABORT  # a topic that was deleted: its partition will never be added
        if verdict is TransactionVerdict.FENCED:
            self.give_up(fault, fenced=True)
        elif verdict is TransactionVerdict.FATAL:
            self.give_up(fault)
        elif verdict is TransactionVerdict.ABORT:
            self._needs_epoch |= fault.code is ErrorCode.UNKNOWN_PRODUCER_ID
            self._doom(fault)
        return verdict

    def _doom(self, fault: KafkaError) -> None:
        if self.phase is TransactionPhase.ABORTING:
            # The coordinator does not take the end: the next epoch ends whatever is open.
            self._is_ended = self._needs_epoch = True
            return
        detail = f"{fault.detail}: the transaction can only be aborted, call abort_transaction()"
        self._fault = AbortableTransactionError(fault.code, detail)
        self.phase = TransactionPhase.ABORTABLE_ERROR

    def give_up(self, fault: KafkaError, *, fenced: bool = False) -> None:
        """End the producer with this fault: it cannot go on."""
        if self.phase is TransactionPhase.FATAL_ERROR:
            return
        self.phase = TransactionPhase.FATAL_ERROR
        if fenced:
            reason = f"another producer with transactional.id {self.transactional_id!r} has begun, or its transaction"
            detail = f"{reason} was open for longer than transaction.timeout.ms: close this producer ({fault.detail})"
            self._fault = ProducerFenced(ErrorCode.PRODUCER_FENCED, detail)
            return
        detail = f"transactional.id {self.transactional_id!r} cannot go on: {fault.detail}: close this producer"
        self._fault = FatalTransactionError(fault.code, detail)

    # identity, and the end

    def renewed(self, identity: Identity, *, version: int) -> None:
        """Take the identity that the coordinator has given. `version`: the cluster's transaction.version."""
        self.identity = identity
        self._needs_epoch = False
        self._next_version = version

    def next_step(self) -> EndStep:
        """The next step of an end, when all records are written or dropped."""
        if self._is_known and not self._is_ended:
            return EndStep.END
        if not self._is_ended and (self._unanswered or self._unanswered_group is not None):
            return EndStep.ADD_AGAIN
        return EndStep.RENEW if self._needs_epoch else EndStep.DONE

    @property
    def unanswered_group(self) -> str | None:
        """The group that was to be added, without an answer yet."""
        return self._unanswered_group

    def ended(self, next_identity: Identity | None, *, version: int) -> None:
        """Note that the coordinator has decided the end. `next_identity`: the identity of the next transaction, in
        version 2."""
        self._is_ended = True
        if next_identity is not None:
            self.identity = next_identity
        # Another version begins with another epoch: batches of the older kind may still be on their way under this
        # epoch.
        is_stale = next_identity is None and (self._needs_epoch or self.version >= EPOCH_OF_EACH)
        self._needs_epoch = is_stale or version != self.version
        self._next_version = version

    def finish(self) -> None:
        """End the call, which has no step left: the next transaction may begin."""
        self.phase = TransactionPhase.READY
        self.version = self._next_version
        self._fault = None
        self._partitions.clear()
        self._wanted.clear()
        self._unanswered.clear()
        self._unanswered_group = None
        self._is_known = self._is_ended = self._needs_epoch = False
