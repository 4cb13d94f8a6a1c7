"""Clean-up of a replicated machine in steps that hold nobody up: a decision, its commit, a turn for others, and on."""

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tailrace.model.errors import KafkaError
from tailrace.server.ports import Clock

C = TypeVar("C")

Decide = Callable[[C, Callable[[int | KafkaError], None]], None]
"""Have one command decided and committed; the callback hears how many records it took. Not called: the host closed."""

_logger = logging.getLogger("tailrace.server")


class Sweep(Generic[C]):
    """Has each command decided again and again until it has nothing more to write. `name` is for the log."""

    def __init__(self, name: str, commands: Iterable[C], *, decide: Decide[C], clock: Clock) -> None:
        self._name = name
        self._commands = iter(commands)
        self._command = next(self._commands, None)
        self._decide = decide
        self._clock = clock

    def go_on(self) -> None:
        """The first or next step."""
        if self._command is not None:
            self._decide(self._command, self._decided)

    def _decided(self, outcome: int | KafkaError) -> None:
        if isinstance(outcome, KafkaError):
            # What is left is found by the next sweep or load; it harms nobody until then.
            _logger.warning("event=sweep-failed of=%s fault=%s", self._name, outcome)
            return
        if outcome == 0:
            self._command = next(self._commands, None)
        self._clock.call_soon(self.go_on)
