"""The members of sinks among the transactional ids of a partition: an index, kept as the ids change."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tailrace.coordinators.transactions.transaction import Transaction, TransactionState
from tailrace.model.sinks import SinkMember, find_member

_NONE: Mapping[str, SinkMember] = {}


class SinkMembers:
    """By sink and transactional id, as committed."""

    def __init__(self) -> None:
        self._by_sink: dict[str, dict[str, SinkMember]] = {}
        self._committing: dict[str, Counter[int]] = {}
        """By sink: the number of members in PrepareCommit of each batch."""

    def changed(self, transactional_id: str, before: Transaction | None, after: Transaction | None) -> None:
        """A transactional id has changed; None: it is not in the log."""
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
        return self._by_sink.get(sink_id, _NONE)

    def is_complete(self, sink_id: str, batch: int) -> bool:
        """Whether all members of the batches up to this one that are committed have their markers."""
        return all(later > batch for later in self._committing.get(sink_id, ()))


def _is_committing(transaction: Transaction | None) -> bool:
    return transaction is not None and transaction.state is TransactionState.PREPARE_COMMIT
