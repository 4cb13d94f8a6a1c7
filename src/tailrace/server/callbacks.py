"""Calls of callbacks: several in order despite failures, long work in slices, and a timer that may be set again.

- `call_each`, `call_safely`: a fault in one callback does not hold back later callbacks. A failed assertion is a broken
  invariant: no further callback is called, and the process ends.
- `run_slice`, `run_in_slices`: long work runs for a few milliseconds, other work gets a turn, and so on. The work is an
  iterator: `next` does the next step, which should take well under a millisecond.
- `Rotation`: long work on several things, step by step in turn.
- `Alarm`: one timer for the earliest of several times.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, ParamSpec, TypeVar

from tailrace.server.ports import Clock, Timer

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger("tailrace.server")


def call_each(action: Callable[[T], object], subjects: Iterable[T]) -> None:
    """Call `action` with each subject, in order. Raises the first fault after all calls; later faults are logged."""
    first: Exception | None = None
    for subject in subjects:
        try:
            action(subject)
        except AssertionError:
            raise
        except Exception as fault:  # noqa: BLE001 - raised behind the other calls, or logged
            if first is None:
                first = fault
            else:
                _log("callback-failed", action, fault)
    if first is not None:
        raise first


def call_safely(event: str, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call the callback; a fault is logged as `event`, and not raised."""
    try:
        callback(*args, **kwargs)
    except AssertionError:
        raise
    except Exception as fault:  # noqa: BLE001 - a fault of one callback must not hold back the others
        _log(event, callback, fault)


def _log(event: str, callback: Callable[..., object], fault: Exception) -> None:
    _logger.error("event=%s callback=%r", event, callback, exc_info=fault)


SLICE_MS: Final = 5
WAITS: Final = object()
"""The result of a step that has done nothing, since it waits for other work: the slice ends."""


def drain(queue: deque[T]) -> Iterator[T]:
    """Remove and yield the elements of the queue, in order, including elements that are added meanwhile."""
    while queue:
        yield queue.popleft()


def run_slice(steps: Iterator[object], clock: Clock, *, slice_ms: int = SLICE_MS) -> bool:
    """Take steps for this time, at least the first step, until a step `WAITS`; returns whether every step is
    taken."""
    until_ms = clock.monotonic_ms() + slice_ms
    return all(step is not WAITS and clock.monotonic_ms() < until_ms for step in steps)


def run_in_slices(steps: Iterator[object], clock: Clock) -> None:
    """Take all steps: a slice now, every later slice in a turn of its own.

    An exception of a step is raised in the turn of the step. The further steps of the iterator follow in later turns
    (after an exception a generator has no further steps).
    """
    is_over = False
    try:
        is_over = run_slice(steps, clock)
    finally:
        if not is_over:
            clock.call_soon(lambda: run_in_slices(steps, clock))


class Rotation(Generic[T]):
    """Long work on several things, which runs in slices: the things take steps in turn."""

    def __init__(self, clock: Clock, step: Callable[[T], bool], on_done: Callable[[T], None]) -> None:
        """`step` does a step of the work on a thing, and returns whether there are more steps; `on_done` is called
        after the last step."""
        self._clock = clock
        self._step = step
        self._on_done = on_done
        self._things: dict[T, None] = {}
        self._is_running = False

    def __contains__(self, thing: T) -> bool:
        return thing in self._things

    @property
    def things(self) -> tuple[T, ...]:
        """The things whose work is under way."""
        return tuple(self._things)

    def add(self, thing: T) -> None:
        """Begin the work on a thing, in a later turn; does nothing if the work is under way."""
        self._things[thing] = None
        if not self._is_running:
            self._is_running = True
            self._clock.call_soon(lambda: run_in_slices(iter(self._take_step, False), self._clock))

    def _take_step(self) -> bool:
        """Take a step of the thing whose turn it is; False if the work on all things is done."""
        self._is_running = bool(self._things)
        if self._is_running:
            thing = next(iter(self._things))
            del self._things[thing]
            if self._step(thing):
                self._things[thing] = None  # behind the other things
            else:
                self._on_done(thing)
        return self._is_running


class Alarm:
    """Calls its callback once (it *rings*), at the earliest time that it was set to since the last ring."""

    def __init__(self, clock: Clock, on_ring: Callable[[], None]) -> None:
        self._clock = clock
        self._on_ring = on_ring
        self._timer: Timer | None = None
        self._due_ms = 0

    def set(self, due_ms: int) -> None:
        """Ring at `due_ms`, unless the alarm is set to an earlier time."""
        if self._timer is not None:
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        self._timer = self._clock.call_at(due_ms, self._ring)

    def cancel(self) -> None:
        """Ring no more, until the alarm is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._on_ring()
