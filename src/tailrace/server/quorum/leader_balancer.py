"""The periodic check of the leaderships, while this controller is the active one (`auto.leader.rebalance.enable`)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.metadata.commands import BalanceLeaders, ControllerResponse, LeadersBalanced
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.callbacks import Alarm
from tailrace.server.ports import Clock

Submit = Callable[[BalanceLeaders, Callable[[ControllerResponse | KafkaError], None]], None]

_logger = logging.getLogger("tailrace.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderBalanceConfig:
    """Settings of the check, with Kafka's names and defaults."""

    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10


class LeaderBalancer:
    """Submits a `BalanceLeaders` in each interval, and more at once until the balance is restored."""

    def __init__(
        self, config: LeaderBalanceConfig, *, clock: Clock, submit: Submit, later: Callable[[Callable[[], None]], None]
    ) -> None:
        """`submit` has a command decided; `later` runs a task between two steps of the replica."""
        self._config = config
        self._clock = clock
        self._submit = submit
        self._alarm = Alarm(clock, lambda: later(self._look))
        self._is_on = False
        self._is_under_way = False
        self._elected = 0

    def start(self) -> None:
        """Begin: this controller is the active one. The first check is an interval from now, as in Kafka: brokers that
        start together have joined by then."""
        self._is_on = self._config.auto_leader_rebalance_enable
        self._plan()

    def stop(self) -> None:
        """End: this controller is not the active one any more."""
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
