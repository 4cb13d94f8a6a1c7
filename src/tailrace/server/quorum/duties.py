"""Periodic duties of the active controller: the watch on the sessions of brokers, and the balance of leaders
(`auto.leader.rebalance.enable`)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tailrace.metadata.commands import BalanceLeaders, ControllerResponse, LeadersBalanced
from tailrace.metadata.heartbeats import WATCH_INTERVAL_MS, Heartbeats
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.throttle import Throttle
from tailrace.server.callbacks import Alarm
from tailrace.server.ports import Clock

GONE_BROKER_MS: Final = 1_000
"""A broker's session is shortened to this time when the connection of its heartbeats is closed, or its node refuses
connections."""
_SLEEP_LINE_MS: Final = 60_000

Submit = Callable[[BalanceLeaders, Callable[[ControllerResponse | KafkaError], None]], None]

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
        """Begin: this controller is active."""
        self.is_on = True
        self.reschedule()

    def stop(self) -> None:
        """End: this node is not the active controller any more."""
        self.is_on = False
        self._alarm.cancel()

    def reschedule(self) -> None:
        """Set the timer again, after a change of the sessions' ends."""
        deadline_ms = self._heartbeats.next_deadline_ms
        if deadline_ms is None or not self.is_on:
            return
        # The timer also fires before the deadline, to notice a pause of this process, which must not end a session.
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
        """Log a pause of this process, at most once a minute, with the number of pauses since the last line."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderBalanceConfig:
    """Settings of the check, with Kafka's names and defaults."""

    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10


class LeaderBalancer:
    """Submits a `BalanceLeaders` in each interval, and further commands at once until the balance is restored."""

    def __init__(
        self, config: LeaderBalanceConfig, *, clock: Clock, submit: Submit, later: Callable[[Callable[[], None]], None]
    ) -> None:
        """`submit` takes a command to decide on; `later` runs a task between two steps of the replica."""
        self._config = config
        self._clock = clock
        self._submit = submit
        self._alarm = Alarm(clock, lambda: later(self._look))
        self._is_on = False
        self._is_under_way = False
        self._elected = 0

    def start(self) -> None:
        """Begin: this controller is active. The first check is one interval from now, as in Kafka: by then brokers that
        start together have joined."""
        self._is_on = self._config.auto_leader_rebalance_enable
        self._plan()

    def stop(self) -> None:
        """End: this node is not the active controller any more."""
        self._is_on = False
        self._alarm.cancel()

    def _plan(self) -> None:
        self._elected = 0
        if self._is_on:
            interval_ms = self._config.leader_imbalance_check_interval_seconds * 1000
            self._alarm.set(self._clock.monotonic_ms() + interval_ms)

    def _look(self) -> None:
        if self._is_on and not self._is_under_way:
            self._balance(())

    def _balance(self, unfinished: tuple[BrokerId, ...]) -> None:
        self._is_under_way = True
        allowed = self._config.leader_imbalance_per_broker_percentage
        self._submit(BalanceLeaders(allowed_percentage=allowed, unfinished=unfinished), self._balanced)

    def _balanced(self, answer: ControllerResponse | KafkaError) -> None:
        self._is_under_way = False
        if isinstance(answer, LeadersBalanced):
            self._elected += answer.elected
            if answer.unfinished and self._is_on:
                self._balance(answer.unfinished)
                return
            if self._elected:
                _logger.info("event=leaders-balanced elected=%d", self._elected)
        else:
            _logger.info("event=controller-command-refused reason=%s", answer)
        self._plan()
