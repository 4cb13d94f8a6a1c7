"""The decisions on transactions, from the committed records of `__transaction_state` alone.

Laws:

- "a decision is made once": after the decision on a transaction, the next step of its transactional id is the
  completion as it was decided.
- "a transaction of KIP-890 has an epoch of its own": no transaction begins with the identity of another transaction.
"""

from collections import Counter
from typing import NamedTuple

from simulation.harness.breach import Breach
from simulation.transactions.book import ClientTransaction, Identity
from tailrace.coordinators.transactions.records import TransactionRecord
from tailrace.coordinators.transactions.transaction import Transaction, TransactionState
from tailrace.model.ids import EPOCH_PER_TRANSACTION
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import find_member

_ONCE = "a decision is made once"


class Decision(NamedTuple):
    """The end of one transaction."""

    transactional_id: str
    identity: Identity
    """The identity of the producer, in the transaction."""
    marker: Identity
    """The identity in the markers."""
    is_commit: bool
    partitions: frozenset[TopicPartition]


class Ledger:
    """The committed state of each transactional id, and what was decided on its way there."""

    def __init__(self) -> None:
        self.states: dict[str, Transaction] = {}
        self.last: dict[str, Decision] = {}
        """The last decision by transactional id."""
        self.fenced = 0
        """The number of decisions that no producer has requested: after a time-out, or for another instance."""
        self._decisions: dict[Identity, list[Decision]] = {}
        self._by_marker: dict[Identity, list[Decision]] = {}
        self._begun: Counter[Identity] = Counter()

    def decision_of(self, transaction: ClientTransaction) -> Decision | None:
        """The decision on a client's transaction; None as long as there is none."""
        decided = self._decisions.get(transaction.identity, ())
        return decided[transaction.ordinal] if len(decided) > transaction.ordinal else None

    def decisions_with_marker(self, marker: Identity) -> list[Decision]:
        """The decisions whose markers have this producer id and epoch."""
        return self._by_marker.get(marker, [])

    @property
    def unfinished(self) -> list[str]:
        """The transactional ids with a transaction that is open, or whose end is not complete."""
        return [name for name, state in self.states.items() if not state.state.is_idle]

    def record(self, record: TransactionRecord) -> None:
        """Take over a committed record. Raises Breach."""
        name, now = record.transactional_id, record.transaction
        before = self.states.get(name)
        if now is None:
            self.states.pop(name, None)
            return
        self.states[name] = now
        if before is not None and before.state.is_prepared:
            self._check_completed(name, before, now)
        elif now.state is TransactionState.ONGOING and (before is None or before.state.is_idle):
            self._begin(name, now)
        elif now.state.is_prepared:
            assert before is not None, f"{name}: an end without a beginning"
            self._decide(name, before, now)

    def _check_completed(self, name: str, before: Transaction, now: Transaction) -> None:
        is_commit = before.state is TransactionState.PREPARE_COMMIT
        wanted = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        if now.state is not wanted:
            raise Breach(_ONCE, f"{name}: {before.state.name} becomes {now.state.name}")

    def _begin(self, name: str, now: Transaction) -> None:
        identity = Identity(now.producer_id, now.producer_epoch)
        self._begun[identity] += 1
        if now.client_version >= EPOCH_PER_TRANSACTION and self._begun[identity] > 1:
            raise Breach("a transaction of KIP-890 has an epoch of its own", f"{name}: {identity}")

    def _decide(self, name: str, before: Transaction, now: Transaction) -> None:
        identity = Identity(before.producer_id, before.producer_epoch)
        marker = Identity(now.producer_id, now.producer_epoch)
        decision = Decision(name, identity, marker, now.state is TransactionState.PREPARE_COMMIT, now.partitions)
        self.last[name] = decision
        self._by_marker.setdefault(marker, []).append(decision)
        if before.state is TransactionState.ONGOING:
            self._decisions.setdefault(identity, []).append(decision)
            is_asked_for = identity.producer_epoch in (marker.producer_epoch, now.last_producer_epoch)
            self.fenced += not is_asked_for and find_member(name) is None
