"""AddPartitions of producers whose last transaction is not complete: they wait for it, and need not ask again.

EndTxn is answered when the decision is committed, and the markers follow: some flushes later. A producer that begins
the next transaction at once meets CONCURRENT_TRANSACTIONS (51), and all clients ask again. But librdkafka, when its
application aborts meanwhile, ends a transaction that has not begun, is told INVALID_TXN_STATE (48), and gives up for
good. So the coordinator holds the question back, for a while, until its answer is that the partitions are in.

Producers' questions only: one that came from another broker would hold up what that broker asks for other producers.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from tailrace.coordinators.transactions.commands import AddPartitions, Response
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.server.ports import Clock
from tailrace.server.waiters import Deadlines

OnDone = Callable[[Response | KafkaError], None]
Submit = Callable[[AddPartitions, OnDone], None]
"""Has a command decided and committed; the answer comes once, and CONCURRENT_TRANSACTIONS before it returns."""

WAIT_MS: Final = 5_000
"""How long one waits. Clients give up a request after 10 s or more."""
MAX_WAITING: Final = 1_000
"""In one partition of `__transaction_state`. One more is told CONCURRENT_TRANSACTIONS at once."""


class _Waiting:
    """One command while it waits."""

    __slots__ = ("command", "on_done", "queue")

    def __init__(self, command: AddPartitions, on_done: OnDone, queue: "NextTransactions") -> None:
        self.command = command
        self.on_done = on_done
        self.queue = queue

    def expire(self) -> None:
        self.queue.expired(self)


class NextTransactions:
    """The commands that wait in one partition of `__transaction_state`, by transactional id, in order of arrival."""

    def __init__(
        self, *, submit: Submit, is_changing: Callable[[str], bool], clock: Clock, deadlines: Deadlines
    ) -> None:
        """`is_changing`: whether a change of this transactional id is on its way, or the end of its transaction."""
        self._submit = submit
        self._is_changing = is_changing
        self._clock = clock
        self._deadlines = deadlines
        self._by_id: dict[str, dict[_Waiting, None]] = {}
        self._count = 0

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._by_id

    def add(self, command: AddPartitions, on_done: OnDone) -> None:
        """Have it decided, now or when what is under way has ended; `on_done` is called once, in `WAIT_MS` or so."""

        def answered(outcome: Response | KafkaError) -> None:
            is_early = isinstance(outcome, KafkaError) and outcome.code is ErrorCode.CONCURRENT_TRANSACTIONS
            if is_early and self._count < MAX_WAITING:
                self._park(command, on_done)
            else:
                on_done(outcome)

        self._submit(command, answered)

    def _park(self, command: AddPartitions, on_done: OnDone) -> None:
        waiting = _Waiting(command, on_done, self)
        self._by_id.setdefault(command.transactional_id, {})[waiting] = None
        self._count += 1
        self._deadlines.add(waiting, WAIT_MS)

    def ended(self, transactional_id: str) -> None:
        """A change has ended. The first one that waits for it has its turn soon, and before any EndTxn."""
        if transactional_id in self._by_id:
            self._clock.call_soon(partial(self._go_on, transactional_id))

    def _go_on(self, transactional_id: str) -> None:
        while (waiting := self._by_id.get(transactional_id)) and not self._is_changing(transactional_id):
            self._carry_out(next(iter(waiting)))

    def expired(self, waiting: _Waiting) -> None:
        """It has waited for long enough."""
        if waiting in self._by_id.get(waiting.command.transactional_id, ()):
            self._carry_out(waiting)

    def _carry_out(self, waiting: _Waiting) -> None:
        """Have it decided, whatever comes of it, and the next one after it."""
        transactional_id = waiting.command.transactional_id
        rest = self._by_id[transactional_id]
        del rest[waiting]
        if not rest:
            del self._by_id[transactional_id]
        self._count -= 1
        self._deadlines.remove(waiting, WAIT_MS)

        def done(outcome: Response | KafkaError) -> None:
            waiting.on_done(outcome)
            self.ended(transactional_id)

        self._submit(waiting.command, done)

    def close(self) -> None:
        """Nothing is decided here any more: let each hear what `submit` says to that."""
        for transactional_id in list(self._by_id):
            for waiting in list(self._by_id[transactional_id]):
                self._carry_out(waiting)
