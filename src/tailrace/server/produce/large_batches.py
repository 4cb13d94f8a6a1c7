"""Produced batches that unfold to more than one turn should take: unfolded a step a turn, one batch at a time.

A leader walks the records of a compressed batch (decision 0068), and a megabyte can unfold to 128. In one turn that
takes 0.1 s with zstd and 0.6 s with gzip, in which no other client is served. The connection of such a batch takes no
later request meanwhile, so that a producer's batches stay in order. All large batches of a node wait for each other:
the memory is that of one of them.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from tailrace.model.errors import KafkaError
from tailrace.protocol.primitives import Buffer
from tailrace.replication.admission import LargeBatch
from tailrace.server.ports import Clock, ServerConnection

OnUnfolded = Callable[[Buffer | KafkaError], None]
"""Called once, with the plain records or the refusal of the batch."""


class Suspensions:
    """Connections that are suspended for several reasons at once go on when the last one is over."""

    def __init__(self) -> None:
        self._counts: dict[ServerConnection, int] = {}

    def suspend(self, connection: ServerConnection) -> None:
        """Carry out no further request of the connection until as many calls of `go_on`."""
        count = self._counts.get(connection, 0)
        self._counts[connection] = count + 1
        if not count:
            connection.suspend()

    def go_on(self, connection: ServerConnection) -> None:
        """End one suspension."""
        count = self._counts.pop(connection) - 1
        if count:
            self._counts[connection] = count
        else:
            connection.go_on()


class _Unfolding(NamedTuple):
    batch: LargeBatch
    connection: ServerConnection
    on_unfolded: OnUnfolded


class LargeBatches:
    """The large batches of a node, unfolded one after the other."""

    def __init__(self, clock: Clock, suspensions: Suspensions) -> None:
        self._clock = clock
        self._suspensions = suspensions
        self._waiting: deque[_Unfolding] = deque()
        self._steps: Generator[int, None, Buffer] | None = None

    def unfold(self, batch: LargeBatch, connection: ServerConnection, on_unfolded: OnUnfolded) -> None:
        """Unfold the batch in later turns, then call `on_unfolded`. The connection is suspended until then."""
        self._suspensions.suspend(connection)
        self._waiting.append(_Unfolding(batch, connection, on_unfolded))
        if len(self._waiting) == 1:
            self._clock.call_soon(self._step)

    def _step(self) -> None:
        """Take one step of the first batch."""
        first = self._waiting[0]
        if self._steps is None:
            self._steps = first.batch.steps()
        outcome: Buffer | KafkaError
        try:
            next(self._steps)
        except StopIteration as end:
            outcome = end.value
        except KafkaError as refusal:
            outcome = refusal
        else:
            self._clock.call_soon(self._step)
            return
        self._steps = None
        self._waiting.popleft()
        if self._waiting:
            self._clock.call_soon(self._step)
        try:
            first.on_unfolded(outcome)
        finally:
            self._suspensions.go_on(first.connection)
