"""The watch on the sessions of brokers, while this controller is the active one."""

import logging
from collections.abc import Callable
from typing import Final

from tailrace.metadata.heartbeats import WATCH_INTERVAL_MS, Heartbeats
from tailrace.model.ids import BrokerId
from tailrace.model.throttle import Throttle
from tailrace.server.callbacks import Alarm
from tailrace.server.ports import Clock

GONE_BROKER_MS: Final = 1_000
"""The rest of a broker's session when the connection of its heartbeats is closed, or its node refuses connections."""
_SLEEP_LINE_MS: Final = 60_000

_logger = logging.getLogger("tailrace.server")


class SessionWatch:
    """Calls `on_silence` when a broker's session has ended."""

    def __init__(self, heartbeats: Heartbeats, *, clock: Clock, later: Callable[[Callable[[], None]], None]) -> None:
        """`later` runs a task between two steps of the replica."""
        self._heartbeats = heartbeats
        self._clock = clock
        self._alarm = Alarm(clock, lambda: later(self._look))
        self._sleep_lines = Throttle(_SLEEP_LINE_MS)
        self._sleeps = self._longest_sleep_ms = 0
        self.is_on = False
        self.on_silence: Callable[[], None] = lambda: None
        """Called when a broker's session has ended."""

    def start(self) -> None:
        """Begin: this controller is the active one."""
        self.is_on = True
        self.reschedule()

    def stop(self) -> None:
        """End: this controller is not the active one any more."""
        self.is_on = False
        self._alarm.cancel()

    def reschedule(self) -> None:
        """Set the timer again: sessions may end at other times now."""
        deadline_ms = self._heartbeats.next_deadline_ms
        if deadline_ms is None or not self.is_on:
            return
        # Before the deadline too: a pause of this process must be noticed, so that it ends no session.
        self._alarm.set(min(deadline_ms, self._clock.monotonic_ms() + WATCH_INTERVAL_MS))

    def _look(self) -> None:
        if not self.is_on:
            return
        now_ms = self._clock.monotonic_ms()
        asleep_ms = self._heartbeats.awake(now_ms)
        if asleep_ms:
            self._log_sleep(asleep_ms, now_ms)
        if self._heartbeats.silent(now_ms):
            self.on_silence()
        self.reschedule()

    def _log_sleep(self, asleep_ms: int, now_ms: int) -> None:
        """Log a sleep of this process once a minute, with the count of all since the last line."""
        self._sleeps += 1
        self._longest_sleep_ms = max(self._longest_sleep_ms, asleep_ms)
        if self._sleep_lines.admits("asleep", now_ms):
            text = "event=controller-slept milliseconds=%d times=%d longest=%d"
            _logger.warning(text, asleep_ms, self._sleeps, self._longest_sleep_ms)
            self._sleeps = self._longest_sleep_ms = 0

    def shorten(self, broker_id: BrokerId) -> None:
        """Shorten the session of a broker: the connection of its heartbeats was closed."""
        if self.is_on:
            self._heartbeats.shorten(broker_id, self._clock.monotonic_ms(), GONE_BROKER_MS)
            self.reschedule()

    def refused(self, broker_id: BrokerId) -> None:
        """Shorten the session of a broker without a heartbeat yet: no process listens at its node."""
        if self.is_on:
            self._heartbeats.refused(broker_id, self._clock.monotonic_ms(), GONE_BROKER_MS)
            self.reschedule()
