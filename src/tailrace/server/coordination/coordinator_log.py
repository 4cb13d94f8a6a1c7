"""The log of one coordinator partition, for its host: the load of the log, appends, and the wait for the commit of
appends.

1. A load gives committed records only, in order (`load`). A damaged log goes offline, so that another replica leads the
   partition and has the coordinator.
2. An append has two reports: a report to the machine when the append is complete (committed, or not in the log), and a
   report to the caller, at the latest when `offsets.commit.timeout.ms` is over.
3. `when_committed` holds an answer back until all earlier appends are complete. If an append has failed, the answer may
   depend on records that are not in the log, and is replaced by an error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.control import EndTransactionMarker
from tailrace.replication.outcomes import Appended
from tailrace.replication.partition import Partition
from tailrace.replication.verification import UNVERIFIED, Verification
from tailrace.server.coordination.load import Decode, Load, OnMarker
from tailrace.server.ports import Clock
from tailrace.server.waiters import Deadlines

R = TypeVar("R")

KeyValue = tuple[bytes, bytes | None]
Outcome = Callable[[KafkaError | None], None]
"""Called once: with None for success, or with the error that the client is to see."""

_BATCH_BYTES = 512 * 1024
"""An append is divided into batches of about this size; Kafka's max.message.bytes is 1 MiB."""

_COORDINATOR_CODES = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    # Errors of batches in a transaction: the producer gets these codes unchanged.
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}


class InTransaction(NamedTuple):
    """The transaction that an append is part of."""

    producer_id: int
    producer_epoch: int
    verification: Verification | None = UNVERIFIED
    """The transaction coordinator's confirmation that the partition is in the transaction."""


IN_NONE = InTransaction(-1, -1)
"""The value for an append outside of transactions."""


def coordinator_error(error: KafkaError) -> KafkaError:
    """The error for a client whose coordinator could not write: the client retries, or looks for another
    coordinator."""
    return KafkaError(_COORDINATOR_CODES.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), error.detail)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A callback, called once: with the outcome, or by `expire` when the deadline has passed."""

    outcome: Outcome | None

    def complete(self, error: KafkaError | None) -> None:
        outcome, self.outcome = self.outcome, None
        if outcome is not None:
            outcome(error)

    def expire(self) -> None:
        self.complete(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the records were not committed in time"))


@dataclass(slots=True, eq=False)
class _Write:
    """An append that is not complete."""

    batches_left: int
    waiting: list[_Waiting]
    """First the callback of the append, then the callbacks of `when_committed` that wait for all appends up to this
    append."""
    error: KafkaError | None = None


class CoordinatorLog(Generic[R]):
    """`R` are the machine's records. Appends are reported to `on_committed` and `on_discarded`, which the host sets."""

    on_committed: Callable[[Sequence[R]], None]
    on_discarded: Callable[[Sequence[R]], None]

    def __init__(
        self,
        partition: Partition,
        *,
        encode: Callable[[R], KeyValue],
        decode: Decode[R],
        on_marker: OnMarker = lambda producer_id, marker: None,
        clock: Clock,
        deadlines: Deadlines,
        timeout_ms: int,
    ) -> None:
        """`encode` makes a log record of a machine's record; `decode` is its inverse, called with the producer in whose
        transaction the log record was written, or -1, and None for a record to skip. `on_marker` is called with each
        end of a transaction in a replay. An answer waits at most `timeout_ms` for its records.
        """
        self.partition = partition
        self.clock = clock
        self._encode = encode
        self._decode = decode
        self._on_marker = on_marker
        self._deadlines = deadlines
        self._timeout_ms = timeout_ms
        self._writes: dict[_Write, None] = {}
        """The appends that are not complete, oldest first."""
        self._load: Load[R] | None = None
        self._is_closed = False

    def load(
        self, apply: Callable[[R], object], on_done: Callable[[], None], on_failed: Callable[[KafkaError], None]
    ) -> None:
        """Call `apply` with every record that the log has now, as soon as the record is committed; never before `load`
        has returned."""

        self._load = Load(
            self.partition,
            clock=self.clock,
            decode=self._decode,
            apply=apply,
            on_marker=self._on_marker,
            on_done=on_done,
            on_failed=on_failed,
        )
        self._load.begin()

    @property
    def loaded_from(self) -> int:
        """The offset from which the load reads the log: behind a checkpoint, or the log start."""
        assert self._load is not None, "nothing was loaded"
        return self._load.from_offset

    def append(
        self, records: Sequence[R], outcome: Outcome, *, within: InTransaction = IN_NONE, is_atomic: bool = False
    ) -> None:
        """Append at least one record; no callback is called before `append` has returned.

        `is_atomic`: the records are one batch, so that a truncation of the log keeps the whole batch or none of
        the batch. Raises KafkaError for a record that cannot be encoded.
        """
        encoded = [self._encode(record) for record in records]
        is_one_batch = is_atomic or len(records) == 1
        batches = [(records, encoded)] if is_one_batch else list(_batches(records, encoded))
        write = self._new_write(len(batches), outcome)
        now_ms = self.clock.now_ms()
        for batch, content in batches:
            self.partition.staging.append_records(
                content,
                now_ms=now_ms,
                on_done=partial(self._appended, write, batch),
                producer_id=within.producer_id,
                producer_epoch=within.producer_epoch,
                verification=within.verification,
            )

    def append_marker(
        self,
        marker: EndTransactionMarker,
        records: Sequence[R],
        outcome: Outcome,
        *,
        within: InTransaction,
        transaction_version: int,
    ) -> None:
        """Append the end of a producer's transaction; `records` are its form in the machine.

        No callback is called before `append_marker` has returned.
        """
        self.partition.staging.append_marker(
            marker,
            producer_id=within.producer_id,
            producer_epoch=within.producer_epoch,
            transaction_version=transaction_version,
            now_ms=self.clock.now_ms(),
            on_done=partial(self._appended, self._new_write(1, outcome), records),
        )

    def _new_write(self, batches: int, outcome: Outcome) -> _Write:
        write = _Write(batches, [self._wait(outcome)])
        self._writes[write] = None
        return write

    def _wait(self, outcome: Outcome) -> _Waiting:
        waiting = _Waiting(outcome)
        self._deadlines.add(waiting, self._timeout_ms)
        return waiting

    def _appended(self, write: _Write, batch: Sequence[R], done: Appended | KafkaError) -> None:
        if self._is_closed:
            return
        if isinstance(done, KafkaError):
            write.error = write.error or coordinator_error(done)
            self.on_discarded(batch)
        else:
            self.on_committed(batch)
        write.batches_left -= 1
        if write.batches_left == 0:
            self._complete(write)

    def _complete(self, write: _Write) -> None:
        del self._writes[write]
        waiting = write.waiting
        if write.error is not None:
            # Every answer decided after this write may depend on this write, also an answer that waits for a later
            # write.
            for later in self._writes:
                waiting += later.waiting[1:]
                del later.waiting[1:]
        self._complete_all(waiting, write.error)

    def _complete_all(self, waiting: Iterable[_Waiting], error: KafkaError | None) -> None:
        for each in waiting:
            self._deadlines.remove(each, self._timeout_ms)
            each.complete(error)

    def when_committed(self, outcome: Outcome) -> None:
        """Call `outcome` when every append so far is complete, perhaps at once."""
        if self._writes:
            # The callback gets a deadline of its own: the deadline of the write may have passed.
            next(reversed(self._writes)).waiting.append(self._wait(outcome))
        else:
            outcome(None)

    def close(self, error: KafkaError) -> None:
        """Call all waiting callbacks with this error; no further report follows."""
        self._is_closed = True
        if self._load is not None:
            self._load.close()
        writes, self._writes = self._writes, {}
        for write in writes:
            self._complete_all(write.waiting, error)


def _batches(records: Sequence[R], encoded: Sequence[KeyValue]) -> Iterator[tuple[Sequence[R], Sequence[KeyValue]]]:
    """The records, divided into runs that each fit into a batch."""
    start = size_bytes = 0
    for index, (key, value) in enumerate(encoded):
        record_bytes = len(key) + len(value or b"") + 32
        if size_bytes + record_bytes > _BATCH_BYTES and index > start:
            yield records[start:index], encoded[start:index]
            start, size_bytes = index, 0
        size_bytes += record_bytes
    yield records[start:], encoded[start:]
