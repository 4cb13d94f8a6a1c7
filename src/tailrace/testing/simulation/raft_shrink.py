"""From a run that breaks a law to the few turns that it takes (delta debugging)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tailrace.testing.simulation.breach import Breach
from tailrace.testing.simulation.raft_cluster import RaftCluster
from tailrace.testing.simulation.raft_nemesis import Turn
from tailrace.testing.simulation.raft_plan import Plan

TRACE_LINES = 40


class Failure(NamedTuple):
    """A run that broke a law."""

    breach: Breach
    plan: Plan
    turns: tuple[Turn, ...]
    """What the nemesis did until then."""
    trace: tuple[str, ...]
    state: str
    """Of all nodes, in the end."""


def attempt(seed: int, plan: Plan, only: Sequence[Turn] | None = None) -> Failure | None:
    """Run it; None if all laws hold. Exceptions other than breaches are raised."""
    cluster = RaftCluster(seed, plan, only=None if only is None else frozenset(only))
    try:
        cluster.run()
    except Breach as breach:
        return Failure(breach, plan, tuple(cluster.nemesis.turns), tuple(cluster.world.notes), cluster.describe())
    return None


class Shrinker:
    """Looks for a smaller run of the same seed that breaks the same law, as long as it may run."""

    def __init__(self, seed: int, failure: Failure, max_runs: int = 150) -> None:
        self.seed = seed
        self.smallest = failure
        self.runs = 0
        self._max_runs = max_runs

    def shrink(self) -> Failure:
        """The smallest one that was found."""
        for simplify in _simpler(self.smallest.plan):
            self._try(simplify(self.smallest.plan), None)
        pieces = 2
        while len(self.smallest.turns) > 1 and self.runs < self._max_runs:
            turns = self.smallest.turns
            size = max(len(turns) // pieces, 1)
            chunks = [turns[start : start + size] for start in range(0, len(turns), size)]
            if any(self._try(self.smallest.plan, [one for one in turns if one not in chunk]) for chunk in chunks):
                pieces = max(pieces - 1, 2)
            elif size == 1:
                break
            else:
                pieces = min(pieces * 2, len(turns))
        return self.smallest

    def _try(self, plan: Plan, turns: Sequence[Turn] | None) -> bool:
        if self.runs >= self._max_runs:
            return False
        self.runs += 1
        failure = attempt(self.seed, plan, turns)
        if failure is None or failure.breach.law != self.smallest.breach.law:
            return False
        self.smallest = failure
        return True


def _simpler(plan: Plan) -> Iterator[Callable[[Plan], Plan]]:
    """Each gives a plan with one kind of fault less."""
    network = plan.network
    if network.loss:
        yield lambda plan: replace(plan, network=replace(plan.network, loss=0.0))
    if network.duplication:
        yield lambda plan: replace(plan, network=replace(plan.network, duplication=0.0))
    if network.slow:
        yield lambda plan: replace(plan, network=replace(plan.network, slow=0.0))
    if plan.times.damage:
        yield lambda plan: replace(plan, times=replace(plan.times, damage=0.0))
    if plan.crash_in_step:
        yield lambda plan: replace(plan, crash_in_step=0.0)
    if plan.observers:
        yield lambda plan: replace(plan, observers=0)


def explain(seed: int, failure: Failure, max_runs: int = 150) -> str:
    """The failure in words: the law, the turns that it takes, and what happened."""
    shrinker = Shrinker(seed, failure, max_runs)
    small = shrinker.shrink()
    turns = ", ".join(f"{turn.name} {turn.number}" for turn in small.turns[:TRACE_LINES])
    left_out = max(len(small.trace) - TRACE_LINES, 0)
    before = [f"  ({left_out} earlier lines)"] if left_out else []
    return "\n".join(
        [
            f"seed {seed}: {small.breach}",
            f"{len(failure.turns)} turns, of which it takes {len(small.turns)} (after {shrinker.runs} runs): {turns}",
            *before,
            *(f"  {line}" for line in small.trace[-TRACE_LINES:]),
            f"  {small.state}",
        ]
    )
