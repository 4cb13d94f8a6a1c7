"""The effects of a step, in order, and the messages that must wait until the quorum state is durable.

A vote that was answered and then forgotten in a crash lets two leaders be elected. So requests and answers leave only
when the newest quorum state that was decided before them is on disk.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tailrace.raft.effects import Effect, Persist, SendRequest, SendResponse
from tailrace.raft.ports import QuorumState


class Outbox:
    """Collects the effects of one step."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._waiting: deque[tuple[int, SendRequest | SendResponse]] = deque()
        self._decided = 0
        self._durable = 0

    @property
    def is_durable(self) -> bool:
        """Whether the newest quorum state is on disk."""
        return self._durable == self._decided

    def persist(self, state: QuorumState) -> None:
        self._decided += 1
        self._effects.append(Persist(self._decided, state))

    def persisted(self, number: int) -> None:
        """All quorum states up to this one are durable: what waited for them leaves."""
        assert number <= self._decided, f"quorum state {number} was never decided"
        self._durable = max(self._durable, number)
        while self._waiting and self._waiting[0][0] <= self._durable:
            self._effects.append(self._waiting.popleft()[1])

    def send(self, effect: SendRequest | SendResponse) -> None:
        if self.is_durable:
            self._effects.append(effect)
        else:
            self._waiting.append((self._decided, effect))

    def add(self, effect: Effect) -> None:
        """An effect that depends on no promise."""
        self._effects.append(effect)

    def replace_reads(self, instead: Callable[[SendResponse], SendResponse]) -> None:
        """Leadership is over: an answer that waits would read a log that may have been cut by then."""
        self._waiting = deque(
            (number, instead(effect) if isinstance(effect, SendResponse) and effect.read is not None else effect)
            for number, effect in self._waiting
        )

    def take(self) -> Sequence[Effect]:
        """The effects of this step."""
        effects, self._effects = self._effects, []
        return effects
