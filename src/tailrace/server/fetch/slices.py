"""Requests that take longer than a slice of 5 ms: each is carried out in steps, and all of them in rotation.

A turn of the event loop has a slice of one such request, however many there are. So a request of another client, which
needs a dozen turns, waits for a dozen slices at most.
"""

from collections import deque
from collections.abc import Iterator

from tailrace.server.callbacks import run_slice
from tailrace.server.ports import Clock

Steps = Iterator[object]
"""Work; taking the next element does the next step, which takes well under a millisecond."""


class Slices:
    """The long requests of one node that are under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Steps] = deque()
        self._is_planned = False

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, steps: Steps) -> None:
        """Take the first slice now, unless others wait for theirs, and the rest in later turns.

        Raises what a step of the first slice raises.
        """
        is_first = not self._waiting and not self._is_planned
        self._waiting.append(steps)
        if is_first:
            self._take_slice()
        else:
            self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._clock.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_planned = False
        self._take_slice()

    def _take_slice(self) -> None:
        if not self._waiting:
            return
        steps = self._waiting.popleft()
        is_over = True
        try:
            is_over = run_slice(steps, self._clock)
        finally:
            if not is_over:
                self._waiting.append(steps)
            if self._waiting:
                self._plan()
