"""Produced batches that are too large to be unfolded in one turn: unfolded in steps, a step in each turn, one batch at
a time.

A leader reads the records of a compressed batch (decision 0068), and a megabyte can unfold to 128 megabytes. To unfold
them in one turn would take 0.1 s with zstd and 0.6 s with gzip, without service for any other client, and as much again
if the topic has another codec, or the offsets in the batch are not 0 to n - 1. The connection of such a batch takes no
later request meanwhile, so that a producer's batches stay in order. The large batches of a node are unfolded one after
the other, so only a single batch takes memory. Connections take turns. The batches of a client that has gone are
dropped, since a closed connection's bytes are not counted any more.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.replication.admission import LargeBatch, Unfolded
from tailrace.server.ports import Clock, ServerConnection

_logger = logging.getLogger("tailrace.server")

OnUnfolded = Callable[[Unfolded | KafkaError], None]
"""Called once, with the plain records or the refusal of the batch."""
OnTurn = Callable[[KafkaError | None], None]
"""Called once, with the reason if the batch is dropped."""


class _Unfolding(NamedTuple):
    batch: LargeBatch
    on_unfolded: OnUnfolded


class _Following(NamedTuple):
    on_turn: OnTurn


class LargeBatches:
    """The large batches of a node, unfolded one after the other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[ServerConnection, deque[_Unfolding | _Following]] = {}
        """The batches of each connection; the batch that is being unfolded is the first of the first connection."""
        self._has_turn: ServerConnection | None = None
        """The connection of a following batch during its turn."""
        self._steps: Generator[object, None, Unfolded] | None = None

    def unfold(self, batch: LargeBatch, connection: ServerConnection, on_unfolded: OnUnfolded) -> None:
        """Unfold the batch in later turns, then call `on_unfolded`. The connection is suspended until then."""
        self._put(connection, _Unfolding(batch, on_unfolded))

    def follow(self, connection: ServerConnection, on_turn: OnTurn) -> bool:
        """Call `on_turn` after the present batches of this connection, earlier calls of `follow` included. Returns
        False, and does not call, if the connection has no batches here.

        For a batch that came behind a large batch although the connection is suspended: both batches had waited for
        their transactions.
        """
        if connection not in self._waiting:
            return False
        self._put(connection, _Following(on_turn))
        return True

    def _put(self, connection: ServerConnection, batch: _Unfolding | _Following) -> None:
        connection.suspend()
        if not self._waiting:
            self._clock.call_soon(self._step)
        of_connection = self._waiting.setdefault(connection, deque())
        if connection is self._has_turn:
            of_connection.appendleft(batch)  # the other batches of the connection come later
        else:
            of_connection.append(batch)

    def _step(self) -> None:
        """Take one step of the first batch."""
        connection, batches = next(iter(self._waiting.items()))
        first = batches[0]
        outcome = self._outcome(first.batch, connection) if isinstance(first, _Unfolding) else _gone(connection)
        if outcome is None and isinstance(first, _Unfolding):
            self._clock.call_soon(self._step)
            return
        self._steps = None
        batches.popleft()
        del self._waiting[connection]
        if batches:
            self._waiting[connection] = batches  # behind all other connections
        if self._waiting:
            self._clock.call_soon(self._step)
        try:
            self._call(first, outcome, connection)
        finally:
            connection.go_on()

    def _call(
        self, first: _Unfolding | _Following, outcome: Unfolded | KafkaError | None, connection: ServerConnection
    ) -> None:
        if isinstance(first, _Unfolding):
            assert outcome is not None, "a batch without an outcome has another step"
            first.on_unfolded(outcome)
            return
        assert not isinstance(outcome, Unfolded), "only an unfolded batch has plain records"
        self._has_turn = connection
        try:
            first.on_turn(outcome)
        finally:
            self._has_turn = None

    def _outcome(self, batch: LargeBatch, connection: ServerConnection) -> Unfolded | KafkaError | None:
        """The outcome of the batch after its next step; None before the last step."""
        if (gone := _gone(connection)) is not None:
            return gone
        try:
            if self._steps is None:
                self._steps = batch.steps()
            next(self._steps)
        except StopIteration as end:
            unfolded: Unfolded = end.value
            return unfolded
        except KafkaError as refusal:
            return refusal
        except AssertionError:
            raise
        except Exception as fault:  # too little memory, or a fault of a codec: further batches still get their turn
            _logger.error("event=large-batch-failed", exc_info=fault)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the batch could not be unfolded")
        return None


def _gone(connection: ServerConnection) -> KafkaError | None:
    return None if connection.is_open else KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer has gone")
