"""One timer that may be set again and again, and rings for the earliest time."""

from collections.abc import Callable

from tailrace.server.ports import Clock, Timer


class Alarm:
    """Rings once, at the earliest of the times that it was set to since it rang last."""

    def __init__(self, clock: Clock, on_ring: Callable[[], None]) -> None:
        self._clock = clock
        self._on_ring = on_ring
        self._timer: Timer | None = None
        self._due_ms = 0

    def set(self, due_ms: int) -> None:
        """Ring then, unless it rings before."""
        if self._timer is not None:
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        self._timer = self._clock.call_at(due_ms, self._ring)

    def cancel(self) -> None:
        """Ring no more, until it is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._on_ring()
