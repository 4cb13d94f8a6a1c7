"""Tasks, one after the other, each complete before the next."""

from collections import deque
from collections.abc import Callable

from tailrace.server.ports import Clock

Task = Callable[[], None]


class TaskQueue:
    """Tasks in the order in which they came; what one of them asks for is done behind all that wait already."""

    def __init__(self, clock: Clock, *, on_idle: Task) -> None:
        """`on_idle` is called when nothing is left to do."""
        self._clock = clock
        self._on_idle = on_idle
        self._tasks: deque[Task] = deque()
        self._is_busy = False
        self.is_closed = False

    def perform(self, task: Task) -> None:
        """Do this now, if nothing else is under way, or when all before it is done."""
        if self.is_closed:
            return
        self._tasks.append(task)
        if not self._is_busy:
            self._work()

    def close(self) -> None:
        """Do nothing more, not even what waits."""
        self.is_closed = True
        self._tasks.clear()

    def _work(self) -> None:
        if self._is_busy or self.is_closed:
            return
        self._is_busy = True
        try:
            while self._tasks:
                self._tasks.popleft()()
        except BaseException:
            # The fault is the event loop's to report; it must not keep the next ones from their turn.
            if self._tasks:
                self._clock.call_soon(self._work)
            raise
        finally:
            self._is_busy = False
        self._on_idle()
