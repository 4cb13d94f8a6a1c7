"""Notices that the disk hangs: a round of flushes that has taken too long and is not done yet."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tailrace.server.ports import Clock, Timer

_LOOKS: Final = 10
"""How often it is looked within the time that a round may take."""


class Rounds(Protocol):
    """A `node.flush_thread.FlushThread`."""

    @property
    def round_seconds(self) -> float:
        """How long the disk has been at the round that runs; 0 if none does."""
        ...


class HangWatch:
    """Watches the flush threads of one disk, from `start` to `stop`."""

    def __init__(
        self, threads: Sequence[Rounds], *, clock: Clock, timeout_ms: int, on_change: Callable[[bool], None]
    ) -> None:
        """`timeout_ms` is log.dir.stall.timeout.ms; `on_change` is told whether the disk hangs, when that changes."""
        self._threads = threads
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._on_change = on_change
        self.is_hung = False
        self._timer: Timer | None = None

    def start(self) -> None:
        """Look from now on."""
        self._timer = self._clock.call_at(self._clock.monotonic_ms() + max(1, self._timeout_ms // _LOOKS), self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()  # before all else, so that one failure does not end it
        is_hung = any(thread.round_seconds * 1000 > self._timeout_ms for thread in self._threads)
        if is_hung is not self.is_hung:
            self.is_hung = is_hung
            self._on_change(is_hung)
