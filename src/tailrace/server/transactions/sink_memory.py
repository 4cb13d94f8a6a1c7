"""The memory that a coordinator has of sinks beside its log. Another coordinator begins without this memory.

- The producer ids of members whose ends are complete, for later members of the same sink. Each attempt of a task has a
  transactional id of its own; with fresh producer ids the leaders of its partitions would keep the state of every id
  for a day. A later member with the same producer id gets an epoch above the epoch of the last marker, so that a late
  copy of that marker is refused.
- Runs whose tasks have promised signs of life (decision 0083). If a run gives no more signs, its members will probably
  never be committed: an abort before their timeout keeps readers from waiting for these members. A sign of any task
  counts for the whole run: a task that is done waits for the other tasks.
"""

from collections import deque
from typing import Final, NamedTuple

from tailrace.coordinators.transactions.transaction import LAST_EPOCH
from tailrace.model.ids import ProducerId

MOST_OF_SINK: Final = 1_000
MOST_OF_PARTITION: Final = 10_000
"""The most producers that are kept for all sinks of one partition of `__transaction_state`: some 150 bytes per
producer."""


class UsedProducer(NamedTuple):
    """A producer id, and the epoch with which its next member begins."""

    producer_id: ProducerId
    producer_epoch: int


class SinkProducers:
    """The producer ids of one coordinator that belonged to members of sinks, and that no member has now."""

    def __init__(self) -> None:
        self._by_sink: dict[str, deque[UsedProducer]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, sink_id: str, producer_id: int, last_epoch: int) -> None:
        """Keep the producer id of a member whose end is complete, with its last epoch. The id is dropped if there are
        too many."""
        if last_epoch + 1 >= LAST_EPOCH or self._count >= MOST_OF_PARTITION:
            return
        of_sink = self._by_sink.setdefault(sink_id, deque())
        if len(of_sink) < MOST_OF_SINK:
            of_sink.append(UsedProducer(ProducerId(producer_id), last_epoch + 1))
            self._count += 1

    def take(self, sink_id: str) -> UsedProducer | None:
        """Take a producer id for a new member of the sink; None if no id is kept."""
        of_sink = self._by_sink.get(sink_id)
        if of_sink is None:
            return None
        used = of_sink.popleft()
        self._count -= 1
        if not of_sink:
            del self._by_sink[sink_id]
        return used

    def forget(self, sink_id: str) -> None:
        """Forget the producer ids of a removed sink."""
        self._count -= len(self._by_sink.pop(sink_id, ()))


MOST_RUNS: Final = 10_000
"""The most runs of one coordinator; members of further runs are only ended by their timeouts."""
LONGEST_LEASE_MS: Final = 3_600_000
LONGEST_STEP_MS: Final = 20_000
"""The longest time that counts between two calls of `lapsed`: a coordinator that did not run could not receive
signs."""


class SinkRun(NamedTuple):
    """A run of a sink's writer."""

    sink: str
    run: str


class SinkLeases:
    """The time left per run. Times are times of one monotonic clock, in ms."""

    def __init__(self, now_ms: int) -> None:
        self._left_ms: dict[SinkRun, int] = {}
        self._looked_ms = now_ms

    def __len__(self) -> int:
        return len(self._left_ms)

    def renewed(self, run: SinkRun, lease_ms: int) -> None:
        """Note that the run has given a sign, and promises another sign within this time."""
        if run in self._left_ms or len(self._left_ms) < MOST_RUNS:
            self._left_ms[run] = min(lease_ms, LONGEST_LEASE_MS) + LONGEST_STEP_MS

    def lapsed(self, now_ms: int) -> list[SinkRun]:
        """Forget and return the runs whose time is over."""
        step_ms = min(max(now_ms - self._looked_ms, 0), LONGEST_STEP_MS)
        self._looked_ms = now_ms
        for run in self._left_ms:
            self._left_ms[run] -= step_ms
        over = [run for run, left_ms in self._left_ms.items() if left_ms <= 0]
        for run in over:
            del self._left_ms[run]
        return over
