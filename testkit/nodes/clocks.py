"""Clocks on which time passes while code runs."""

from tailrace.testing.clock import ManualClock


class TickingClock(ManualClock):
    """A clock on which a millisecond passes with each look."""

    def monotonic_ms(self) -> int:
        self._monotonic_ms += 1
        return self._monotonic_ms


class BusyClock(ManualClock):
    """A clock on which work takes time."""

    _spent_ms = 0

    def spend(self, milliseconds: int) -> None:
        self._spent_ms += milliseconds
        self._monotonic_ms += milliseconds

    def advance(self, milliseconds: int) -> None:
        """Calls that become due in the time spent by other calls are made in the next `advance`."""
        before_ms = self._spent_ms
        super().advance(milliseconds)
        self._monotonic_ms += self._spent_ms - before_ms
