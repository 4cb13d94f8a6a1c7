"""Requests that take longer than a slice of 5 ms: such a request is carried out in steps, and long requests take turns.

A turn of the event loop has a slice of one long request, however many long requests there are. So a request of another
client, which needs a dozen turns, waits for a dozen slices at most.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, TypeVar

from tailrace.server.callbacks import run_slice
from tailrace.server.ports import Clock, ServerConnection

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
R = TypeVar("R")

Steps = Iterator[object]
"""Work in steps: `next` does the next step, which takes well under a millisecond."""
Stepwise = Generator[None, None, T]
"""Work in steps that has a result."""

STEP: Final = 16
"""The elements of a request that are carried out in a step."""
MOST_LARGE: Final = 4
"""The most large requests under way at the same time. Further large requests wait as bytes: a decoded request takes ten
times its size in memory, and so does its answer."""


def mapped(function: Callable[[T], R], elements: Iterable[T], *, step: int = STEP) -> Stepwise[tuple[R, ...]]:
    """The results of the function for all elements; a step has `step` elements."""
    results: list[R] = []
    for element in elements:
        if len(results) % step == step - 1:
            yield
        results.append(function(element))
    return tuple(results)


def mapped_in(
    outer: Iterable[T],
    inner_of: Callable[[T], Iterable[U]],
    function: Callable[[T, U], V],
    put_together: Callable[[T, tuple[V, ...]], R],
) -> Stepwise[tuple[R, ...]]:
    """For each outer element (a topic) combine the results of the function for its inner elements (partitions)."""
    results: list[R] = []
    count = 0
    for element in outer:
        parts: list[V] = []
        for part in inner_of(element):
            count += 1
            if not count % STEP:
                yield
            parts.append(function(element, part))
        count += 1
        if not count % STEP:
            yield
        results.append(put_together(element, tuple(parts)))
    return tuple(results)


def once(elements: Iterable[T]) -> Stepwise[dict[T, int]]:
    """The distinct elements, in order, each with the number of its occurrences."""
    times: dict[T, int] = {}
    for number, element in enumerate(elements, 1):
        if not number % STEP:
            yield
        times[element] = times.get(element, 0) + 1
    return times


def elements_of(message: object) -> list[object]:
    """The elements of a message's arrays. If an outer array and its inner arrays both have many elements, the elements
    of the outer array."""
    found: list[object] = []
    values = [message]
    while values:
        value = values.pop()
        if not isinstance(value, tuple):
            values += (getattr(value, name) for name in getattr(value, "__slots__", ()) if hasattr(value, "__schema__"))
        elif len(value) <= STEP:
            values += value
        else:
            found += value
    return found


def released(elements: list[object]) -> Iterator[None]:
    """Free the elements in steps: nothing else refers to the elements, and 20,000 elements with arrays of their own
    take 0.2 s to free."""
    while elements:
        del elements[-STEP:]
        yield


class Slices:
    """The long requests of one node that are under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Steps] = deque()
        self._is_planned = False

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, steps: Steps) -> None:
        """Take the first slice now, unless other requests wait for a slice; take further slices in later turns.

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


class LongRequests:
    """Requests with many names, carried out in slices. A few large requests are carried out at a time, and further
    large requests wait in order.

    The connection of a long request takes no other request until the long request is over.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._waiting: deque[tuple[ServerConnection, Steps]] = deque()
        self._large = 0

    def __len__(self) -> int:
        """The number of large requests."""
        return len(self._waiting) + self._large

    def begin(self, connection: ServerConnection, steps: Steps, *, is_large: bool) -> None:
        """Carry out a request of the connection, as long as the connection is open. A step may raise only
        AssertionError."""
        connection.suspend()
        if is_large:
            self._waiting.append((connection, steps))
            self._start()
        else:
            self._slices.begin(_run(connection, steps))

    def _start(self) -> None:
        while self._waiting and self._large < MOST_LARGE:
            self._large += 1
            self._slices.begin(self._run_large(*self._waiting.popleft()))

    def _run_large(self, connection: ServerConnection, steps: Steps) -> Iterator[None]:
        try:
            yield from _run(connection, steps)
        finally:
            self._large -= 1
            self._start()


def _run(connection: ServerConnection, steps: Steps) -> Iterator[None]:
    try:
        while connection.is_open:
            for _ in steps:
                break
            else:
                return
            yield
    finally:
        connection.go_on()
