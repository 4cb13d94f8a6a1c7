"""Turns: how everything that the event loop starts is run.

A turn is one piece of work (the frames of one read, a timer, a finished flush), then one `on_turn_end` (what the work
has staged is written), then one write per connection that has answers. So no answer leaves before the write
that it reports, and many small answers leave in one system call.
"""

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

_logger = logging.getLogger("tailrace.net")


class Flushable(Protocol):
    """A connection with queued answers."""

    def flush(self) -> None:
        """Write the queued answers."""
        ...


STALL_SECONDS = 0.05
"""A turn that takes longer keeps all other requests waiting noticeably, and is reported."""
COSTLY_SECONDS = 0.005
"""A turn that has taken this long carries out no further request of its connection: the next request waits for another
turn. So a turn has one costly request, and the requests of other connections come in between."""


class Turns:
    """Runs work as turns. `on_broken_invariant` gets an AssertionError from anywhere inside a turn.

    `on_stall` is called for every turn that took too long, with its work and its seconds.
    """

    def __init__(
        self,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        on_broken_invariant: Callable[[BaseException], None],
        on_stall: Callable[[Callable[[], None], float], None],
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self._call_soon = call_soon
        self._on_broken_invariant = on_broken_invariant
        self._on_stall = on_stall
        self._now = now
        self.on_turn_end: Callable[[], None] = lambda: None
        """Called at the end of each turn; the node sets the function that writes what turns have staged."""
        self._unwritten: list[Flushable] = []
        self._is_running = False
        self._is_end_planned = False
        self._began = 0.0
        self.work_seconds = 0.0
        """The time that the work of the last turn took, without the end of the turn."""
        self.last_seconds = 0.0
        """The time that the last turn took."""

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` as one turn. An exception is logged and ends the work, not the process."""
        if self._is_running:  # work that runs other work belongs to one turn
            work()
            return
        self._is_running = True
        began = self._began = self._now()
        try:
            work()
        except AssertionError as broken:
            self._on_broken_invariant(broken)
        except Exception:  # the task boundary: one bad callback must not end the node
            _logger.exception("event=callback-failed work=%r", work)
        finally:
            self.work_seconds = self._now() - began
            self._end()
            self._is_running = False
            self.last_seconds = seconds = self._now() - began
            if seconds > STALL_SECONDS:
                self._on_stall(work, seconds)

    @property
    def is_long(self) -> bool:
        """Whether the present turn has taken so long that its connection carries out no further request in this
        turn."""
        return self._now() - self._began >= COSTLY_SECONDS

    def flush_at_end(self, connection: Flushable) -> None:
        """Write the connection's queue when this turn ends; outside a turn, soon."""
        self._unwritten.append(connection)
        if not self._is_running and not self._is_end_planned:
            self._is_end_planned = True
            self._call_soon(self._end_outside)

    def _end_outside(self) -> None:
        self._is_end_planned = False
        self.run(lambda: None)

    def _end(self) -> None:
        try:
            self.on_turn_end()
        except Exception as fault:  # noqa: BLE001 - staged bytes whose fate is unknown: nothing can be answered any more
            self._on_broken_invariant(fault)
        while self._unwritten:
            unwritten, self._unwritten = self._unwritten, []
            for connection in unwritten:
                try:
                    connection.flush()
                except AssertionError as broken:
                    self._on_broken_invariant(broken)
                except Exception:  # fail this connection only: other connections must get their answers
                    _logger.exception("event=answers-not-written connection=%r", connection)
