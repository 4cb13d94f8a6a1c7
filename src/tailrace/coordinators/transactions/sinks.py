"""The sinks of a partition of `__transaction_state`: their rules (decision 0063).

1. A batch is committed by one decision, which is one record batch: every member PrepareCommit, the other transactions
   of batches up to this one PrepareAbort, and the sink's record. Transactions that do not fit are swept later.
2. A member commits only by the decision of its batch, and only if its batch is above the sink's last batch. So an
   attempt that is not in the decision of its batch never commits.
3. A run that another run has followed commits nothing and begins nothing.

Decisions read the committed state. While a record of a sink is staged, the next commit of the sink gets 51, and a
member that the record would fence gets 51, too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tailrace.coordinators.transactions.commands import CommitSink, SinkCommitted, SinkMemberIdentity
from tailrace.coordinators.transactions.records import CoordinatorRecord, SinkRecord, TransactionRecord, most_bytes
from tailrace.coordinators.transactions.sink import LONGEST_ORIGIN, NO_BATCH, Sink
from tailrace.coordinators.transactions.transaction import Transaction, TransactionState, concurrent
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.sinks import (
    LAST_BATCH,
    RowsDigest,
    SinkMember,
    check_run,
    check_sink,
    find_member,
    is_reserved_for_sinks,
    parse_member,
    sink_key,
)

MOST_DECISION_BYTES: Final = 1_000_000
"""The bytes of the records of one decision: a record batch may have 1,048,588 (max.message.bytes)."""
MOST_MEMBERS: Final = MOST_DECISION_BYTES // 200
"""The most members of a commit. More members never fit into a decision: the commit is refused without a check of each
member."""

SinkDecision = Decision[CoordinatorRecord, SinkCommitted]


class Sinks:
    """The sinks and the decisions about sinks. Times in ms since 1970."""

    def __init__(
        self, transactions: Mapping[str, Transaction], pending: Mapping[str, CoordinatorRecord], *, expiration_ms: int
    ) -> None:
        """`transactions` are the partition's committed transactions, `pending` its staged records, both by key."""
        self._transactions = transactions
        self._pending = pending
        self._expiration_ms = expiration_ms
        self._sinks: dict[str, Sink] = {}
        self.members: Final = SinkMembers()

    @property
    def known(self) -> Mapping[str, Sink]:
        """The committed sinks by sink id. Read only."""
        return self._sinks

    def apply(self, record: SinkRecord) -> None:
        """Apply one committed record."""
        if record.sink is None:
            self._sinks.pop(record.sink_id, None)
        else:
            self._sinks[record.sink_id] = record.sink

    def last_batch(self, sink_id: str) -> int:
        """The last batch that is decided; NO_BATCH for a new sink."""
        sink = self._sinks.get(sink_id)
        return NO_BATCH if sink is None else sink.last_batch

    def is_complete(self, sink_id: str, batch: int) -> bool:
        """Whether every transaction that was committed in the batches up to this batch has its markers."""
        return self.members.is_complete(sink_id, batch)

    # Commits

    def commit(self, command: CommitSink, now_ms: int) -> SinkDecision:
        """Decide a batch, or find that it was decided before.

        Raises KafkaError INVALID_REQUEST (42), CONCURRENT_TRANSACTIONS (51), PRODUCER_FENCED (90) for a run that was
        followed, DUPLICATE_RESOURCE (92) for another origin, OUT_OF_ORDER_SEQUENCE_NUMBER (45) for a batch before the
        last batch in a new run and for the last batch with other rows, MESSAGE_TOO_LARGE (10); for a member
        INVALID_PRODUCER_ID_MAPPING (49), PRODUCER_FENCED (90), INVALID_TXN_STATE (48).
        """
        _check_request(command)
        if sink_key(command.sink_id) in self._pending:
            raise concurrent(sink_key(command.sink_id))
        sink = self._sinks.get(command.sink_id)
        if sink is not None:
            _check_writer(sink, command)
            if command.batch < sink.last_batch:
                if command.run != sink.run:
                    raise _too_early(command.sink_id, sink, command.batch)
                return Decision(records=(), response=SinkCommitted(is_repetition=True))
            if command.batch == sink.last_batch:
                _check_rows(sink, command)
                return self._again(sink, command, now_ms)
        members = [self._committed(identity, now_ms) for identity in command.members]
        following = _following(sink, command, now_ms)
        records: list[CoordinatorRecord] = [*members, SinkRecord(sink_id=command.sink_id, sink=following)]
        size_bytes = sum(map(most_bytes, records))
        if size_bytes > MOST_DECISION_BYTES:
            raise _too_many(command)
        records += self._ended(command.sink_id, following, members, size_bytes, now_ms)
        return Decision(records=tuple(records), response=SinkCommitted(is_repetition=False))

    def _again(self, sink: Sink, command: CommitSink, now_ms: int) -> SinkDecision:
        """The decision on the last batch when it comes again: its open members are aborted; a new run becomes the
        current run."""
        following = _following(sink, command, now_ms)
        records: list[CoordinatorRecord] = []
        if (following.run, following.origin) != (sink.run, sink.origin):
            records.append(SinkRecord(sink_id=command.sink_id, sink=following))
        records += self._ended(command.sink_id, following, (), sum(map(most_bytes, records)), now_ms)
        return Decision(records=tuple(records), response=SinkCommitted(is_repetition=True))

    def _committed(self, identity: SinkMemberIdentity, now_ms: int) -> TransactionRecord:
        """The decision to commit one member. Raises KafkaError if it cannot be committed."""
        name = identity.transactional_id
        if name in self._pending:
            raise concurrent(name)
        transaction = self._transactions.get(name)
        if transaction is None or transaction.producer_id != identity.producer_id:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{name!r} with producer {identity.producer_id} is unknown: it has timed out, or was aborted",
            )
        if transaction.producer_epoch != identity.producer_epoch:
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"epoch {identity.producer_epoch} of {name!r} is fenced: it has timed out, or another producer has it",
            )
        if transaction.state is not TransactionState.ONGOING:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"{name!r} is {transaction.state.label}: it has no open transaction"
            )
        return TransactionRecord(transactional_id=name, transaction=transaction.sealed(is_commit=True, now_ms=now_ms))

    # Ends of members that no decision commits

    def swept(self, sink_id: str, now_ms: int) -> tuple[TransactionRecord, ...]:
        """The ends of members that can never commit, as many as fit one record batch."""
        sink = self._sinks.get(sink_id)
        return () if sink is None else tuple(self._ended(sink_id, sink, (), 0, now_ms))

    def _ended(
        self, sink_id: str, sink: Sink, committed: Iterable[TransactionRecord], size_bytes: int, now_ms: int
    ) -> Iterator[TransactionRecord]:
        """The ends of members that can never commit after the sink has this state: an abort, or a deletion for members
        that have not begun. As many ends as fit beside `size_bytes`."""
        kept = {record.transactional_id for record in committed}
        for name, member in self.members.of(sink_id).items():
            transaction = self._transactions[name]
            if name in kept or name in self._pending or transaction.state.is_prepared or not _is_over(sink, member):
                continue
            aborted = None if transaction.state.is_idle else transaction.sealed(is_commit=False, now_ms=now_ms)
            record = TransactionRecord(transactional_id=name, transaction=aborted)
            size_bytes += most_bytes(record)
            if size_bytes > MOST_DECISION_BYTES:
                return
            yield record

    # Producers

    def check_initialize(self, transactional_id: str) -> None:
        """Check that this transactional id may be initialized. Only ids of a sink's members can be refused.

        Raises KafkaError INVALID_REQUEST (42) for a malformed id, CONCURRENT_TRANSACTIONS (51); PRODUCER_FENCED (90) if
        its run was followed, DUPLICATE_SEQUENCE_NUMBER (46) if its batch is decided already,
        OUT_OF_ORDER_SEQUENCE_NUMBER (45) if the batch of a new run is before the last batch.
        """
        if not is_reserved_for_sinks(transactional_id):
            return
        member = parse_member(transactional_id)
        sink = self._sinks.get(member.sink)
        if sink is not None and _is_over(sink, member):
            if sink.has_followed(member.run):
                raise _followed(member.sink, sink, member.run)
            if member.run != sink.run and member.batch < sink.last_batch:
                raise _too_early(member.sink, sink, member.batch)
            raise KafkaError(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER, f"batch {member.batch} of sink {member.sink!r} is decided already"
            )
        self._check_staged(member)

    def check_run_is_current(self, sink_id: str, run: str) -> None:
        """Raises KafkaError PRODUCER_FENCED (90) if another run has followed this run."""
        sink = self._sinks.get(sink_id)
        if sink is not None and sink.has_followed(run):
            raise _followed(sink_id, sink, run)

    def check_writes(self, transactional_id: str) -> None:
        """Check that this transactional id may still write. Only ids of a sink's members can be refused.

        Raises KafkaError PRODUCER_FENCED (90) if its batch is decided or its run was followed, CONCURRENT_TRANSACTIONS
        (51) if a staged record is about to decide the batch or to replace the run.
        """
        member = find_member(transactional_id)
        if member is None:
            return
        sink = self._sinks.get(member.sink)
        if sink is not None and _is_over(sink, member):
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED,
                f"{transactional_id!r} is fenced: its batch is decided, or another run has followed its run",
            )
        self._check_staged(member)

    def _check_staged(self, member: SinkMember) -> None:
        staged = self._pending.get(sink_key(member.sink))
        if isinstance(staged, SinkRecord) and staged.sink is not None and _is_over(staged.sink, member):
            raise concurrent(sink_key(member.sink))

    # Expiry

    def is_unused(self, sink_id: str, now_ms: int) -> bool:
        """Whether the sink has had no commit for `transactional.id.expiration.ms`, and has no member."""
        sink = self._sinks.get(sink_id)
        if sink is None or self.members.of(sink_id) or sink_key(sink_id) in self._pending:
            return False
        return now_ms - sink.updated_at_ms >= self._expiration_ms

    def unused(self, now_ms: int) -> list[str]:
        """The sinks that have had no commit for too long."""
        return [sink_id for sink_id in self._sinks if self.is_unused(sink_id, now_ms)]


def _check_request(command: CommitSink) -> None:
    check_sink(command.sink_id)
    check_run(command.run)
    if not 0 <= command.batch <= LAST_BATCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"batch {command.batch} is not a number from 0 on")
    if command.origin is not None and len(command.origin) > LONGEST_ORIGIN:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"an origin has at most {LONGEST_ORIGIN} characters")
    if len(command.members) > MOST_MEMBERS:
        raise _too_many(command)
    attempts: dict[int, int] = {}
    for identity in command.members:
        member = parse_member(identity.transactional_id)
        if member[:3] != (command.sink_id, command.run, command.batch):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{identity.transactional_id!r} is not of batch {command.batch} of run {command.run!r} of sink "
                f"{command.sink_id!r}",
            )
        if member.task in attempts:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"task {member.task} is named twice, with the attempts {attempts[member.task]} and {member.attempt}: "
                "its records would be repeated",
            )
        attempts[member.task] = member.attempt


def _check_writer(sink: Sink, command: CommitSink) -> None:
    if sink.has_followed(command.run):
        raise _followed(command.sink_id, sink, command.run)
    is_other = command.origin is not None and sink.origin is not None and command.origin != sink.origin
    if is_other and not command.takes_over:
        raise KafkaError(
            ErrorCode.DUPLICATE_RESOURCE,
            f"sink {command.sink_id!r} is written from {sink.origin!r}, not from {command.origin!r}: a second writer, "
            "as on a copied checkpoint, needs a sink id of its own; a writer that was moved says that it takes over",
        )


def _following(sink: Sink | None, command: CommitSink, now_ms: int) -> Sink:
    """The sink after the command. A batch without members counts as a batch without rows, even if its writer states no
    rows: a batch that was given up, and comes again with rows, is refused."""
    rows = RowsDigest() if command.rows is None and not command.members else command.rows
    if sink is None:
        return Sink(last_batch=command.batch, run=command.run, origin=command.origin, rows=rows, updated_at_ms=now_ms)
    return sink.advanced(batch=command.batch, run=command.run, origin=command.origin, rows=rows, now_ms=now_ms)


def _check_rows(sink: Sink, command: CommitSink) -> None:
    """Refuse a repeated batch with other rows: its writer has lost progress, and the other rows would be skipped in
    silence."""
    if sink.rows is None or command.rows is None or not command.rows.differs_from(sink.rows):
        return
    raise KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"sink {command.sink_id!r} has batch {command.batch} with {sink.rows.row_count} rows, and it comes again with "
        f"other rows, {command.rows.row_count} of them: nothing of it is committed",
    )


def _is_over(sink: Sink, member: SinkMember) -> bool:
    """Whether the member can never commit."""
    return member.batch <= sink.last_batch or sink.has_followed(member.run)


def _followed(sink_id: str, sink: Sink, run: str) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED, f"run {run!r} of sink {sink_id!r} is fenced: run {sink.run!r} has followed it"
    )


def _too_early(sink_id: str, sink: Sink, batch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"sink {sink_id!r} has taken batches up to {sink.last_batch}, and a new run offers batch {batch}: use the "
        "checkpoint that the sink was written with, or another sink id for a new checkpoint",
    )


def _too_many(command: CommitSink) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the {len(command.members)} members of batch {command.batch} of sink {command.sink_id!r} and their partitions "
        f"do not fit one record batch of {MOST_DECISION_BYTES} bytes: write the batch with fewer tasks",
    )


_NO_MEMBERS: Mapping[str, SinkMember] = {}


class SinkMembers:
    """The members of sinks among the transactional ids, as committed: an index, kept as the ids change."""

    def __init__(self) -> None:
        self._by_sink: dict[str, dict[str, SinkMember]] = {}
        self._committing: dict[str, Counter[int]] = {}
        """For each sink, the number of members in PrepareCommit by batch."""

    def changed(self, transactional_id: str, before: Transaction | None, after: Transaction | None) -> None:
        """Update the index for a changed transactional id. None: the log does not have the id."""
        member = find_member(transactional_id)
        if member is None:
            return
        if after is None:
            of_sink = self._by_sink.get(member.sink, {})
            of_sink.pop(transactional_id, None)
            if not of_sink:
                self._by_sink.pop(member.sink, None)
        else:
            self._by_sink.setdefault(member.sink, {})[transactional_id] = member
        step = _is_committing(after) - _is_committing(before)
        if step:
            self._count(member, step)

    def _count(self, member: SinkMember, step: int) -> None:
        counts = self._committing.setdefault(member.sink, Counter())
        counts[member.batch] += step
        if not counts[member.batch]:
            del counts[member.batch]
        if not counts:
            del self._committing[member.sink]

    @property
    def sinks(self) -> Iterable[str]:
        """The sinks that have members."""
        return self._by_sink.keys()

    def of(self, sink_id: str) -> Mapping[str, SinkMember]:
        """The members of a sink, by transactional id. Read only."""
        return self._by_sink.get(sink_id, _NO_MEMBERS)

    def is_complete(self, sink_id: str, batch: int) -> bool:
        """Whether all members of the batches up to this batch that are committed have their markers."""
        return all(later > batch for later in self._committing.get(sink_id, ()))


def _is_committing(transaction: Transaction | None) -> bool:
    return transaction is not None and transaction.state is TransactionState.PREPARE_COMMIT
