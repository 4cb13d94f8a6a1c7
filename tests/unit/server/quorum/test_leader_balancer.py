"""The times at which a controller checks the balance of the leaderships."""

import pytest

from tailrace.metadata.commands import BalanceLeaders, ControllerResponse, LeadersBalanced
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.quorum.duties import LeaderBalanceConfig, LeaderBalancer
from tailrace.testing.clock import ManualClock

ONE = (BrokerId(1),)
BALANCED = LeadersBalanced(elected=0, unfinished=())
NOT_CONTROLLER = KafkaError(ErrorCode.NOT_CONTROLLER, "the controller has resigned")


class BalancerBench:
    """A balancer whose commands are answered by the list of `answers`, then not at all."""

    def __init__(self, *answers: ControllerResponse | KafkaError, config: LeaderBalanceConfig | None = None) -> None:
        self.clock = ManualClock()
        self.answers = list(answers)
        self.commands: list[BalanceLeaders] = []
        config = config or LeaderBalanceConfig(leader_imbalance_check_interval_seconds=60)
        self.balancer = LeaderBalancer(config, clock=self.clock, submit=self._submit, later=lambda task: task())

    def _submit(self, command: BalanceLeaders, on_done: object) -> None:
        self.commands.append(command)
        if self.answers:
            answer = self.answers.pop(0)
            assert callable(on_done)
            self.clock.call_soon(lambda: on_done(answer))

    def pass_s(self, seconds: int) -> int:
        """Let time pass; returns the number of commands since."""
        before = len(self.commands)
        self.clock.advance(seconds * 1000)
        return len(self.commands) - before


def test_a_check_comes_an_interval_after_the_start_and_after_each_check() -> None:
    bench = BalancerBench(BALANCED, BALANCED)
    bench.balancer.start()
    assert [bench.pass_s(59), bench.pass_s(1), bench.pass_s(59), bench.pass_s(1)] == [0, 1, 0, 1]
    assert bench.commands == [BalanceLeaders(allowed_percentage=10)] * 2


def test_an_unfinished_balance_goes_on_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first, last = LeadersBalanced(elected=1000, unfinished=ONE), LeadersBalanced(elected=7, unfinished=())
    bench = BalancerBench(first, last)
    bench.balancer.start()
    assert bench.pass_s(60) == 2
    assert [command.unfinished for command in bench.commands] == [(), ONE]
    assert [record.getMessage() for record in caplog.records] == ["event=leaders-balanced elected=1007"]


def test_no_second_check_of_leaders_begins_while_another_is_under_way() -> None:
    bench = BalancerBench()
    bench.balancer.start()
    assert bench.pass_s(600) == 1


def test_a_controller_that_is_not_active_checks_nothing() -> None:
    bench = BalancerBench(LeadersBalanced(elected=1000, unfinished=ONE))
    bench.balancer.start()
    bench.pass_s(59)
    bench.balancer.stop()
    assert bench.pass_s(600) == 0


def test_a_refused_check_is_repeated_after_an_interval_if_the_controller_is_active_again() -> None:
    bench = BalancerBench(NOT_CONTROLLER, BALANCED)
    bench.balancer.start()
    assert bench.pass_s(60) == 1
    bench.balancer.stop()
    bench.balancer.start()
    assert [bench.pass_s(59), bench.pass_s(1)] == [0, 1]


def test_the_leader_balancer_checks_nothing_if_the_setting_says_so() -> None:
    bench = BalancerBench(config=LeaderBalanceConfig(auto_leader_rebalance_enable=False))
    bench.balancer.start()
    assert bench.pass_s(3600) == 0
