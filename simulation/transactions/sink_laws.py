"""Laws of sinks, from the committed records of `__transaction_state` and of the partitions (decision 0063).

- "a batch is decided in one record batch": its members and the record of its sink.
- "a batch is committed whole": the members of its decision have written every row of the batch once; in the end readers
  of committed data see every row.
- "a batch is committed once": no row of the batch is visible a second time, and no batch is decided again.
- "an acknowledged batch is read whole": when the answer to CommitSink leaves, all rows are visible.
- "a followed run commits nothing": the run of a decision is a new run, or the run of the decision before.
- "a decided batch begins nothing": no attempt of the batch begins after the decision, and no attempt of a run that
  another run has followed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simulation.harness.breach import Breach
from simulation.transactions.book import Book, ClientTransaction, text_of
from tailrace.coordinators.transactions.records import CoordinatorRecord, SinkRecord, TransactionRecord
from tailrace.coordinators.transactions.sink import NO_BATCH, Sink
from tailrace.coordinators.transactions.transaction import TransactionState
from tailrace.model.sinks import SinkMember, find_member

WHOLE = "a batch is committed whole"
ONCE = "a batch is committed once"
ACKNOWLEDGED = "an acknowledged batch is read whole"


class BatchRow(NamedTuple):
    """A row of a batch; its text is the number."""

    sink: str
    batch: int
    number: int


class SinkLaws:
    """Follows the decisions on batches, and the rows that become visible."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.sinks: dict[str, Sink] = {}
        """The committed state of each sink."""
        self.visible: Counter[BatchRow] = Counter()
        """The rows in committed transactions that have their markers."""
        self._followed: set[tuple[str, str]] = set()
        """The sinks with their runs that another run has followed."""

    # Committed records

    def decided(self, records: Sequence[CoordinatorRecord]) -> None:
        """Check the decisions in a committed record batch of a coordinator. Raises Breach."""
        committed: list[SinkMember] = []
        for record in records:
            member = find_member(record.transactional_id)
            if not isinstance(record, TransactionRecord) or member is None or record.transaction is None:
                continue
            if record.transaction.state is TransactionState.PREPARE_COMMIT:
                committed.append(member)
            elif record.transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING):
                self._check_begins(member)
        changes = [record for record in records if isinstance(record, SinkRecord)]
        for member in committed:
            if not any(_is_decided_by(member, change) for change in changes):
                raise Breach("a batch is decided in one record batch", f"{member} commits beside {changes}")
        for change in changes:
            if change.sink is None:
                self.sinks.pop(change.sink_id, None)
            else:
                self._advance(change.sink_id, change.sink, committed)

    def _check_begins(self, member: SinkMember) -> None:
        last = self._last_batch(member.sink)
        if member.batch <= last or (member.sink, member.run) in self._followed:
            raise Breach("a decided batch begins nothing", f"{member} behind {self.sinks.get(member.sink)}")

    def _last_batch(self, sink_id: str) -> int:
        sink = self.sinks.get(sink_id)
        return NO_BATCH if sink is None else sink.last_batch

    def _advance(self, sink_id: str, sink: Sink, committed: Iterable[SinkMember]) -> None:
        before, last = self.sinks.get(sink_id), self._last_batch(sink_id)
        if (sink_id, sink.run) in self._followed:
            raise Breach("a followed run commits nothing", f"{sink} after {before}")
        members = [member for member in committed if member.sink == sink_id]
        if sink.last_batch < last or (sink.last_batch == last and members):
            raise Breach(ONCE, f"{sink} with {members} after {before}")
        if sink.last_batch > last:
            self._check_written(sink_id, sink.last_batch, members)
        if before is not None and before.run != sink.run:
            self._followed.add((sink_id, before.run))
        self.sinks[sink_id] = sink

    def _check_written(self, sink_id: str, batch: int, members: Iterable[SinkMember]) -> None:
        written: Counter[BatchRow] = Counter()
        for member in members:
            transaction = self._book.members[member.transactional_id]
            written.update(row for values in transaction.written.values() for row in _rows(transaction, values))
        if written != Counter(self._rows_of(sink_id, batch)):
            raise Breach(WHOLE, f"batch {batch} of {sink_id} is decided with {sorted(written)} of {members}")

    def _rows_of(self, sink_id: str, batch: int) -> Iterable[BatchRow]:
        return (BatchRow(sink_id, batch, number) for number in range(self._book.rows[sink_id, batch]))

    def shown(self, transaction: ClientTransaction, values: Iterable[bytes]) -> None:
        """Note values of a committed transaction that are visible now. Raises Breach."""
        for row in _rows(transaction, values):
            self.visible[row] += 1
            if self.visible[row] > 1:
                raise Breach(ONCE, f"{row} again, by {transaction.transactional_id}")

    # Answers, and the end

    def missing(self, sink_id: str, batch: int) -> list[BatchRow]:
        """The rows of a batch that are not visible."""
        return [row for row in self._rows_of(sink_id, batch) if not self.visible[row]]

    def check_end(self) -> None:
        """Check the laws at rest. Raises Breach."""
        for sink_id, sink in self.sinks.items():
            for batch in range(sink.last_batch + 1):
                if missing := self.missing(sink_id, batch):
                    raise Breach(WHOLE, f"{missing} are not there in the end; {sink}")
        for row in self.visible:
            if row.batch > self._last_batch(row.sink):
                raise Breach(WHOLE, f"{row} is visible, and no decision on its batch: {self.sinks.get(row.sink)}")


def _is_decided_by(member: SinkMember, change: SinkRecord) -> bool:
    sink = change.sink
    return sink is not None and (member.sink, member.run, member.batch) == (change.sink_id, sink.run, sink.last_batch)


def _rows(transaction: ClientTransaction, values: Iterable[bytes]) -> list[BatchRow]:
    member = transaction.member
    return [] if member is None else [BatchRow(member.sink, member.batch, int(text_of(value))) for value in values]
