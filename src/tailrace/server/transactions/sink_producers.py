"""Producer ids of members of sinks whose ends are complete, for later members of the same sink.

Each attempt of a task has a transactional id of its own. With fresh producer ids the leaders of its partitions would
keep the state of each for a day. A later member gets an epoch above that of the last marker, so that a late copy of
that marker is refused. The ids are in memory alone: another coordinator begins without any.
"""

from collections import deque
from typing import Final, NamedTuple

from tailrace.coordinators.transactions.transaction import LAST_EPOCH
from tailrace.model.ids import ProducerId

MOST_OF_SINK: Final = 1_000
MOST_OF_PARTITION: Final = 10_000
"""Of all sinks of one partition of `__transaction_state`: some 150 bytes each."""


class UsedProducer(NamedTuple):
    """A producer id, and the epoch with which its next member begins."""

    producer_id: ProducerId
    producer_epoch: int


class SinkProducers:
    """The producers of one coordinator that no member has."""

    def __init__(self) -> None:
        self._by_sink: dict[str, deque[UsedProducer]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, sink_id: str, producer_id: int, last_epoch: int) -> None:
        """The end of a member is complete; its producer had this epoch last. Drops it if there are too many."""
        if last_epoch + 1 >= LAST_EPOCH or self._count >= MOST_OF_PARTITION:
            return
        of_sink = self._by_sink.setdefault(sink_id, deque())
        if len(of_sink) < MOST_OF_SINK:
            of_sink.append(UsedProducer(ProducerId(producer_id), last_epoch + 1))
            self._count += 1

    def take(self, sink_id: str) -> UsedProducer | None:
        """The producer for a new member of the sink; None if there is none."""
        of_sink = self._by_sink.get(sink_id)
        if of_sink is None:
            return None
        used = of_sink.popleft()
        self._count -= 1
        if not of_sink:
            del self._by_sink[sink_id]
        return used

    def forget(self, sink_id: str) -> None:
        """The sink is gone."""
        self._count -= len(self._by_sink.pop(sink_id, ()))
