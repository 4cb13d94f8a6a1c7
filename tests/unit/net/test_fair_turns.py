"""The order in which connections have their turns."""

from collections.abc import Callable

from tailrace.net.fair_turns import COUNTED_SECONDS, ROUND_SECONDS, FairTurns
from testkit.nodes.listeners import silent_turns


class FairBench:
    """A loop that runs nothing by itself, a clock, and the turns that were taken."""

    def __init__(self) -> None:
        self.time = 0.0
        self.soon: list[Callable[[], None]] = []
        self.taken: list[str] = []
        self.turns = silent_turns(
            call_soon=self.soon.append, on_broken_invariant=lambda broken: None, now=lambda: self.time
        )
        self.fair_turns = FairTurns(self.turns, call_soon=self.soon.append)

    def next_round(self) -> list[str]:
        """The turns that are taken when the loop has looked at its sockets again."""
        before = len(self.taken)
        soon, self.soon[:] = self.soon[:], []
        for callback in soon:
            callback()
        return self.taken[before:]


class Talker:
    """A connection that has requests for turns of this length, without end or once."""

    def __init__(self, bench: FairBench, name: str, *, seconds: float, is_endless: bool = True) -> None:
        self.turn_ended = 0.0
        self.turn_seconds = 0.0
        self._bench = bench
        self._name = name
        self._seconds = seconds
        self._is_endless = is_endless

    def wait_for_turn(self) -> None:
        """Do nothing: no bytes come."""

    def take_turn(self) -> None:
        self._bench.turns.run(self._work)
        if self._is_endless:
            self._bench.soon.append(self.ask)

    def ask(self) -> None:
        self._bench.fair_turns.take(self)

    def _work(self) -> None:
        self._bench.taken.append(self._name)
        self._bench.time += self._seconds


def test_a_connection_is_served_at_once_while_the_round_has_time() -> None:
    bench = FairBench()
    for name in ("one", "two", "three"):
        Talker(bench, name, seconds=ROUND_SECONDS / 4, is_endless=False).ask()
    assert bench.taken == ["one", "two", "three"]
    assert bench.soon == []


def test_many_connections_share_the_time_of_a_round() -> None:
    bench = FairBench()
    for number in range(100):
        Talker(bench, f"greedy {number}", seconds=ROUND_SECONDS).ask()
    assert bench.taken == ["greedy 0"]
    rounds = [bench.next_round() for _ in range(150)]
    assert {len(turns) for turns in rounds} <= {1, 2}
    assert {name for turns in rounds for name in turns} == {f"greedy {number}" for number in range(100)}


def test_a_connection_with_few_requests_is_next_however_many_have_requests_without_end() -> None:
    bench = FairBench()
    for number in range(100):
        Talker(bench, f"greedy {number}", seconds=ROUND_SECONDS).ask()
    for _ in range(300):
        bench.next_round()
    modest = Talker(bench, "modest", seconds=ROUND_SECONDS / 500, is_endless=False)
    for _ in range(20):
        modest.ask()
        assert "modest" in bench.next_round() + bench.next_round()
        for _ in range(3):
            bench.next_round()


def test_a_connection_does_not_pay_for_a_turn_that_was_long_by_accident() -> None:
    bench = FairBench()
    unlucky = Talker(bench, "unlucky", seconds=100 * ROUND_SECONDS, is_endless=False)
    unlucky.ask()
    bench.next_round()
    for number in range(20):
        Talker(bench, f"greedy {number}", seconds=ROUND_SECONDS).ask()
    unlucky.ask()
    turns = [name for _ in range(60) for name in bench.next_round()]
    assert turns.index("unlucky") <= 2 * 20


def test_connections_with_requests_without_end_have_as_much_time_whatever_the_length_of_short_turns() -> None:
    bench = FairBench()
    for _ in range(10):
        Talker(bench, "short", seconds=COUNTED_SECONDS / 4).ask()
        Talker(bench, "long", seconds=COUNTED_SECONDS).ask()
    for _ in range(2_000):
        bench.next_round()
    assert 2 < bench.taken.count("short") / bench.taken.count("long") < 6
