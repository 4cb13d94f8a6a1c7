"""Long work in slices: a few milliseconds of it, then a turn for everything else, and on.

The work is an iterator; taking the next element does the next step. A step should take well under a millisecond.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, TypeVar

from tailrace.server.ports import Clock

SLICE_MS: Final = 5

T = TypeVar("T")


def drain(queue: deque[T]) -> Iterator[T]:
    """The elements, each taken off the queue; also those that come meanwhile."""
    while queue:
        yield queue.popleft()


def run_slice(steps: Iterator[object], clock: Clock, *, slice_ms: int = SLICE_MS) -> bool:
    """Take steps for this time, one at least, if there is one; whether they ended within it."""
    until_ms = clock.monotonic_ms() + slice_ms
    return all(clock.monotonic_ms() < until_ms for _ in steps)


def run_in_slices(steps: Iterator[object], clock: Clock) -> None:
    """Take all steps: a slice now, the others each in a turn of its own.

    Exceptions of a step come out here, in its turn; the steps behind it follow all the same. (A generator has none.)
    """
    is_over = False
    try:
        is_over = run_slice(steps, clock)
    finally:
        if not is_over:
            clock.call_soon(lambda: run_in_slices(steps, clock))
