"""AddPartitions of producers whose last transaction is not complete: they wait for it, and need not ask again.

EndTxn is answered when the decision is committed, and the markers follow: some flushes later. A producer that begins
the next transaction at once meets CONCURRENT_TRANSACTIONS (51), and all clients ask again. But librdkafka, when its
application aborts meanwhile, ends a transaction that has not begun, gets INVALID_TXN_STATE (48), and gives up for
good. So the coordinator holds the question back, for a while, until its answer is that the partitions are in.

Producers' questions only: one that came from another broker would hold up what that broker asks for other producers.

A question that waits keeps its request in memory. `WaitingRoom` bounds what all of a node keep; there is always the
answer that Kafka gives, which is 51 at once. A question does not outlive its connection: no answer could be sent,
and carried out late it would add to a transaction that its producer has begun elsewhere.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from tailrace.coordinators.transactions.commands import AddPartitions, Response
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.server.ports import Clock, ServerConnection
from tailrace.server.waiters import Deadlines

OnDone = Callable[[Response | KafkaError], None]
Submit = Callable[[AddPartitions, OnDone], None]
"""Has a command decided and committed; the answer comes once, and CONCURRENT_TRANSACTIONS before it returns."""

WAIT_MS: Final = 5_000
"""The time that one waits. Clients give up a request after 10 s or more."""
MAX_WAITING: Final = 1_000
"""Of one node. One more is answered CONCURRENT_TRANSACTIONS at once, as beyond each of the following limits."""
MAX_PARTITIONS: Final = 100_000
"""That the requests which wait name together: some 200 bytes each, 500 if each is of a topic of its own."""
MAX_OF_ID: Final = 2
"""Of one transactional id. A producer has one request of its partitions on its way, and one of its offsets."""


class QueuedRequest(NamedTuple):
    """The request that a command came with, as far as waiting is concerned."""

    connection: ServerConnection
    size: int
    """The number of partitions that it names, one that is named twice as two."""


class _WaitingTransaction:
    """One command while it waits."""

    __slots__ = ("asked", "command", "on_done", "queue")

    def __init__(
        self, command: AddPartitions, on_done: OnDone, asked: QueuedRequest, queue: "NextTransactions"
    ) -> None:
        self.command = command
        self.on_done = on_done
        self.asked = asked
        self.queue = queue

    def expire(self) -> None:
        self.queue.expired(self)


class WaitingRoom:
    """The requests that wait on this node, in all its partitions of `__transaction_state` together, by connection.

    It lasts as long as the node, so that a connection has one callback, however often coordinators come and go.
    """

    def __init__(self) -> None:
        self._by_connection: dict[ServerConnection, dict[_WaitingTransaction, None]] = {}
        self._count = 0
        self._partitions = 0

    def has_room_for(self, asked: QueuedRequest) -> bool:
        return self._count < MAX_WAITING and self._partitions + asked.size <= MAX_PARTITIONS

    def enter(self, waiting: _WaitingTransaction) -> None:
        connection = waiting.asked.connection
        if connection not in self._by_connection:
            self._by_connection[connection] = {}
            connection.on_close(lambda: self._closed(connection))
        self._by_connection[connection][waiting] = None
        self._count += 1
        self._partitions += waiting.asked.size

    def leave(self, waiting: _WaitingTransaction) -> None:
        self._by_connection.get(waiting.asked.connection, {}).pop(waiting, None)
        self._count -= 1
        self._partitions -= waiting.asked.size

    def _closed(self, connection: ServerConnection) -> None:
        for waiting in self._by_connection.pop(connection):
            waiting.queue.forget(waiting)


class NextTransactions:
    """The commands that wait in one partition of `__transaction_state`, by transactional id, in order of arrival."""

    def __init__(
        self,
        *,
        submit: Submit,
        is_changing: Callable[[str], bool],
        clock: Clock,
        deadlines: Deadlines,
        room: WaitingRoom,
    ) -> None:
        """`is_changing`: whether a change of this transactional id is on its way, or the end of its transaction."""
        self._submit = submit
        self._is_changing = is_changing
        self._clock = clock
        self._deadlines = deadlines
        self._room = room
        self._by_id: dict[str, dict[_WaitingTransaction, None]] = {}

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._by_id

    def add(self, command: AddPartitions, on_done: OnDone, asked: QueuedRequest) -> None:
        """Have it decided, now or when what is under way has ended; `on_done` is called once, in `WAIT_MS` or so.

        Or never, if the connection closes before that: then it is not decided either.
        """

        def answered(outcome: Response | KafkaError) -> None:
            is_early = isinstance(outcome, KafkaError) and outcome.code is ErrorCode.CONCURRENT_TRANSACTIONS
            waiting = self._by_id.get(command.transactional_id, ())
            if is_early and len(waiting) < MAX_OF_ID and self._room.has_room_for(asked):
                self._park(_WaitingTransaction(command, on_done, asked, self))
            else:
                on_done(outcome)

        self._submit(command, answered)

    def _park(self, waiting: _WaitingTransaction) -> None:
        self._by_id.setdefault(waiting.command.transactional_id, {})[waiting] = None
        self._room.enter(waiting)
        self._deadlines.add(waiting, WAIT_MS)

    def ended(self, transactional_id: str) -> None:
        """A change has ended, or will not be. The first one that waits for it has its turn soon, before any EndTxn."""
        if transactional_id in self._by_id:
            self._clock.call_soon(partial(self._go_on, transactional_id))

    def _go_on(self, transactional_id: str) -> None:
        while (waiting := self._by_id.get(transactional_id)) and not self._is_changing(transactional_id):
            self._carry_out(next(iter(waiting)))

    def expired(self, waiting: _WaitingTransaction) -> None:
        """It has waited for long enough."""
        if waiting in self._by_id.get(waiting.command.transactional_id, ()):
            self._carry_out(waiting)

    def _carry_out(self, waiting: _WaitingTransaction) -> None:
        """Have it decided, whatever comes of it, and the next one after it."""
        self.forget(waiting)

        def done(outcome: Response | KafkaError) -> None:
            waiting.on_done(outcome)
            self.ended(waiting.command.transactional_id)

        self._submit(waiting.command, done)

    def forget(self, waiting: _WaitingTransaction) -> None:
        """It waits no more."""
        transactional_id = waiting.command.transactional_id
        rest = self._by_id[transactional_id]
        del rest[waiting]
        if not rest:
            del self._by_id[transactional_id]
        self._room.leave(waiting)
        self._deadlines.remove(waiting, WAIT_MS)

    def close(self, refusal: KafkaError) -> None:
        """Nothing is decided here any more: this is the answer to all that wait."""
        for waiting in [waiting for of_id in self._by_id.values() for waiting in of_id]:
            self.forget(waiting)
            waiting.on_done(refusal)
