"""Work in a queue: long work runs in steps over several turns of the event loop; tasks of a host run one after the
other.

    work = StepwiseWork(next_work, later=...)
    work.advance()        whenever there may be something to do

Works run one after the other, in the order in which `next_work` returns them.
"""

from collections import deque
from collections.abc import Callable

from tailrace.metadata.derive import Steps
from tailrace.server.callbacks import SLICE_MS
from tailrace.server.ports import Clock

Task = Callable[[], None]
OnLongWork = Callable[[bool], None]
"""Called with True when work begins that takes several turns, and with False when that work is over."""


class StepwiseWork:
    """A queue of work; the first work is under way."""

    def __init__(
        self,
        next_work: Callable[[], Steps[None] | None],
        *,
        later: Callable[[Task], None],
        clock: Clock,
        on_idle: Task,
        on_long_work: OnLongWork,
    ) -> None:
        """`later` calls a callback in a later turn; `on_idle` is called when `next_work` returns no more work."""
        self._next_work = next_work
        self._clock = clock
        self._later = later
        self._on_idle = on_idle
        self._on_long_work = on_long_work
        self._steps: Steps[None] | None = None
        self._is_long = False
        self._is_postponed = False
        self._is_stepping = False

    @property
    def is_under_way(self) -> bool:
        """Whether a work is under way that has steps left for a later turn."""
        return self._steps is not None

    def advance(self) -> None:
        """Run the queue for a slice of a turn, up to a work that takes several turns. Raises what a step raises."""
        if self._is_postponed or self._is_stepping:
            return
        self._is_stepping = True
        try:
            if not self._has_run_all():
                self._is_postponed = True
                self._later(self._go_on)
                return
        finally:
            self._is_stepping = False
        self._on_idle()

    def drop(self) -> None:
        """Drop the work that is under way: no more of its steps run."""
        self._end()

    def _go_on(self) -> None:
        self._is_postponed = False
        self.advance()

    def _has_run_all(self) -> bool:
        # A queue may have many short works: dozens of requests of one client may be decided one after the other.
        until_ms = self._clock.monotonic_ms() + SLICE_MS
        while True:
            if self._steps is None:
                self._steps = self._next_work()
                if self._steps is None:
                    return True
            if not self._step(self._steps) or self._clock.monotonic_ms() >= until_ms:
                return False

    def _step(self, steps: Steps[None]) -> bool:
        """Take one step; returns whether it was the last step."""
        try:
            next(steps)
        except StopIteration:
            self._end()
            return True
        except BaseException:
            self._end()
            raise
        if self._steps is not steps:
            return True  # the step itself has dropped the work
        if not self._is_long:
            self._is_long = True
            self._on_long_work(True)
        return False

    def _end(self) -> None:
        self._steps = None
        if self._is_long:
            self._is_long = False
            self._on_long_work(False)


class TaskQueue:
    """Tasks in the order of their arrival; a task that another task adds runs after every task that waits already."""

    def __init__(self, clock: Clock, *, on_idle: Task) -> None:
        """`on_idle` is called when no task is left."""
        self._clock = clock
        self._on_idle = on_idle
        self._tasks: deque[Task] = deque()
        self._is_busy = False
        self.is_closed = False

    def perform(self, task: Task) -> None:
        """Run this task now if no other task is running, otherwise after all earlier tasks."""
        if self.is_closed:
            return
        self._tasks.append(task)
        if not self._is_busy:
            self._work()

    def close(self) -> None:
        """Run no task any more, not even waiting tasks."""
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
            # The event loop reports the fault; the tasks behind it run in the next turn.
            if self._tasks:
                self._clock.call_soon(self._work)
            raise
        finally:
            self._is_busy = False
        self._on_idle()
