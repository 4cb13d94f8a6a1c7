"""Requests of producers to add partitions, which wait for the end of the producer's last transaction.

EndTxn is answered when the decision is committed; the markers are written some flushes later. A producer that begins
the next transaction at once would get CONCURRENT_TRANSACTIONS (51), and all clients repeat the request. But if the
application aborts while librdkafka repeats the request, librdkafka ends a transaction that has not begun, gets
INVALID_TXN_STATE (48), and fails for good. So the coordinator holds a request to add partitions for a while.

Only requests of producers wait: a request of another broker has partitions of other producers too.

A waiting request stays in memory. `WaitingRequests` limits this memory for a node; beyond its limits the answer is 51
at once, as with Kafka. A request ends with its connection: no answer could be sent, and its partitions could end up in
a transaction that the producer has begun on another connection.
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
"""Decides and commits a command; `OnDone` is called once, with CONCURRENT_TRANSACTIONS before the call returns."""

WAIT_MS: Final = 5_000
"""The longest wait of a request. Clients time out after 10 s or more."""
MAX_WAITING: Final = 1_000
"""The most waiting requests of a node. Beyond this limit, `MAX_PARTITIONS` or `MAX_OF_ID`, the answer is
CONCURRENT_TRANSACTIONS at once."""
MAX_PARTITIONS: Final = 100_000
"""The most partitions of all waiting requests: some 200 bytes per partition, 500 with a topic per partition."""
MAX_OF_ID: Final = 2
"""The most requests of one transactional id: a producer sends a request for partitions and another for offsets."""


class QueuedRequest(NamedTuple):
    """The connection and the size of the request of a command."""

    connection: ServerConnection
    size: int
    """The number of partitions in the request, with repetitions."""


class _WaitingTransaction:
    """A command while it waits."""

    __slots__ = ("command", "on_done", "queue", "request")

    def __init__(
        self, command: AddPartitions, on_done: OnDone, request: QueuedRequest, queue: "NextTransactions"
    ) -> None:
        self.command = command
        self.on_done = on_done
        self.request = request
        self.queue = queue

    def expire(self) -> None:
        self.queue.expired(self)


class WaitingRequests:
    """The requests that wait on this node, in all its partitions of `__transaction_state` together, by connection.

    The object lives as long as the node, so that a connection has a single callback, even if coordinators come and go.
    """

    def __init__(self) -> None:
        self._by_connection: dict[ServerConnection, dict[_WaitingTransaction, None]] = {}
        self._count = 0
        self._partitions = 0

    def can_add(self, request: QueuedRequest) -> bool:
        return self._count < MAX_WAITING and self._partitions + request.size <= MAX_PARTITIONS

    def add(self, waiting: _WaitingTransaction) -> None:
        connection = waiting.request.connection
        if connection not in self._by_connection:
            self._by_connection[connection] = {}
            connection.on_close(lambda: self._closed(connection))
        self._by_connection[connection][waiting] = None
        self._count += 1
        self._partitions += waiting.request.size

    def remove(self, waiting: _WaitingTransaction) -> None:
        self._by_connection.get(waiting.request.connection, {}).pop(waiting, None)
        self._count -= 1
        self._partitions -= waiting.request.size

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
        waiting_requests: WaitingRequests,
    ) -> None:
        """`is_changing`: whether a record of this transactional id, or the end of its transaction, is not complete."""
        self._submit = submit
        self._is_changing = is_changing
        self._clock = clock
        self._deadlines = deadlines
        self._waiting_requests = waiting_requests
        self._by_id: dict[str, dict[_WaitingTransaction, None]] = {}

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._by_id

    def add(self, command: AddPartitions, on_done: OnDone, request: QueuedRequest) -> None:
        """Decide the command, now or when the last transaction is complete; `on_done` is called once, after `WAIT_MS`
        at the latest. If the connection closes before, the command is dropped without a call.
        """

        def on_outcome(outcome: Response | KafkaError) -> None:
            is_early = isinstance(outcome, KafkaError) and outcome.code is ErrorCode.CONCURRENT_TRANSACTIONS
            waiting = self._by_id.get(command.transactional_id, ())
            if is_early and len(waiting) < MAX_OF_ID and self._waiting_requests.can_add(request):
                self._park(_WaitingTransaction(command, on_done, request, self))
            else:
                on_done(outcome)

        self._submit(command, on_outcome)

    def _park(self, waiting: _WaitingTransaction) -> None:
        self._by_id.setdefault(waiting.command.transactional_id, {})[waiting] = None
        self._waiting_requests.add(waiting)
        self._deadlines.add(waiting, WAIT_MS)

    def ended(self, transactional_id: str) -> None:
        """Let the first waiting command have its turn soon, before any EndTxn: a change of the id is complete or
        dropped."""
        if transactional_id in self._by_id:
            self._clock.call_soon(partial(self._go_on, transactional_id))

    def _go_on(self, transactional_id: str) -> None:
        while (waiting := self._by_id.get(transactional_id)) and not self._is_changing(transactional_id):
            self._carry_out(next(iter(waiting)))

    def expired(self, waiting: _WaitingTransaction) -> None:
        """Carry out a command whose longest wait is over."""
        if waiting in self._by_id.get(waiting.command.transactional_id, ()):
            self._carry_out(waiting)

    def _carry_out(self, waiting: _WaitingTransaction) -> None:
        """Decide the command, which does not wait again, and after it the next command."""
        self.forget(waiting)

        def done(outcome: Response | KafkaError) -> None:
            waiting.on_done(outcome)
            self.ended(waiting.command.transactional_id)

        self._submit(waiting.command, done)

    def forget(self, waiting: _WaitingTransaction) -> None:
        """Remove the command from the queue."""
        transactional_id = waiting.command.transactional_id
        rest = self._by_id[transactional_id]
        del rest[waiting]
        if not rest:
            del self._by_id[transactional_id]
        self._waiting_requests.remove(waiting)
        self._deadlines.remove(waiting, WAIT_MS)

    def close(self, refusal: KafkaError) -> None:
        """Answer all waiting commands with this refusal."""
        for waiting in [waiting for of_id in self._by_id.values() for waiting in of_id]:
            self.forget(waiting)
            waiting.on_done(refusal)
