"""Long requests: a turn runs one slice of one request."""

from collections.abc import Iterator

import pytest

from tailrace.server.callbacks import SLICE_MS
from tailrace.server.slices import Slices
from testkit.nodes.clocks import BusyClock


class RotationBench:
    def __init__(self) -> None:
        self.clock = BusyClock()
        self.slices = Slices(self.clock)
        self.done: list[str] = []

    def work(self, name: str, steps: int, *, fails: bool = False) -> Iterator[None]:
        """Steps of 2 ms: three are a slice."""
        for _ in range(steps):
            self.clock.spend(2)
            self.done.append(name)
            yield
        if fails:
            raise RuntimeError(name)

    def turn(self) -> str:
        """The steps of the next turn."""
        self.done.clear()
        self.clock.advance(0)
        return "".join(self.done)


def test_a_turn_has_one_slice_of_one_request() -> None:
    bench = RotationBench()
    bench.slices.begin(bench.work("a", 5))
    assert "".join(bench.done) == "aaa", f"the first slice of {SLICE_MS} ms is taken at once"
    bench.slices.begin(bench.work("b", 4))
    bench.slices.begin(bench.work("c", 1))
    assert "".join(bench.done) == "aaa", "others wait for their turn"
    assert [bench.turn() for _ in range(5)] == ["aa", "bbb", "c", "b", ""]
    assert (len(bench.slices), bench.clock.calls_pending) == (0, 0)


def test_short_work_needs_no_turn() -> None:
    bench = RotationBench()
    bench.slices.begin(bench.work("a", 2))
    bench.slices.begin(bench.work("b", 1))
    assert bench.done == ["a", "a", "b"]
    assert bench.clock.calls_pending == 0


def test_a_fault_ends_its_own_work_alone() -> None:
    bench = RotationBench()
    bench.slices.begin(bench.work("a", 3, fails=True))
    bench.slices.begin(bench.work("b", 4))
    with pytest.raises(RuntimeError, match="a"):
        bench.turn()
    assert [bench.turn() for _ in range(3)] == ["bbb", "b", ""]
