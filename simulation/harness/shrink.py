"""Reduces a run that breaks a law to the few turns that break it (delta debugging)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from simulation.harness.plan import RunPlan
from simulation.harness.turns import Turn, Turns
from simulation.harness.world import World
from tailrace.model.errors import KafkaError

P = TypeVar("P", bound=RunPlan)
P_contra = TypeVar("P_contra", bound=RunPlan, contravariant=True)
TRACE_LINES = 40


class Run(Protocol):
    """A simulated cluster."""

    @property
    def world(self) -> World: ...

    @property
    def nemesis(self) -> Turns: ...

    def run(self) -> None:
        """Run the cluster. Raises Breach if a law is broken; any other AssertionError or KafkaError is a failure
        too."""
        ...

    def describe(self) -> str:
        """The state of all nodes."""
        ...


R_co = TypeVar("R_co", bound=Run, covariant=True)


@dataclass(frozen=True, slots=True)
class FailedRun(Generic[P]):
    """A run that broke a law."""

    law: str
    """The law that was broken, or the type of the exception if it names no law."""
    detail: str
    plan: P
    turns: tuple[Turn, ...]
    """The actions of the nemesis until the failure."""
    trace: tuple[str, ...]
    state: str
    """The states of all nodes at the failure."""


class Build(Protocol[P_contra, R_co]):
    """The class of a cluster, or a function that makes a cluster."""

    def __call__(self, seed: int, plan: P_contra, only: Collection[Turn] | None = None) -> R_co:
        """A cluster that will run by this plan, with these turns of the nemesis; None: with all turns."""
        ...


@dataclass(frozen=True, slots=True)
class Attempts(Generic[P]):
    """Runs of one seed."""

    build: Build[P, Run]
    seed: int

    def failure(self, plan: P, only: Sequence[Turn] | None = None) -> FailedRun[P] | None:
        """Run the plan; None if all laws hold."""
        cluster = self.build(self.seed, plan, None if only is None else frozenset(only))
        try:
            cluster.run()
        except (AssertionError, KafkaError) as error:
            law = getattr(error, "law", type(error).__name__)
            turns, trace = tuple(cluster.nemesis.taken), tuple(cluster.world.notes)
            return FailedRun(law, str(error), plan, turns, trace, cluster.describe())
        return None


class Shrinker(Generic[P]):
    """Looks for a smaller run of the same seed that breaks the same law, within its time."""

    def __init__(self, attempts: Attempts[P], failure: FailedRun[P], max_runs: int = 150) -> None:
        self.smallest = failure
        self.runs = 0
        self._attempts = attempts
        self._max_runs = max_runs

    def shrink(self) -> FailedRun[P]:
        """The smallest failing run that was found."""
        for path, value in self.smallest.plan.simpler:
            plan = self.smallest.plan.simplified(path, value)
            if plan is not None:
                self._try(plan, None)
        pieces = 2
        while len(self.smallest.turns) > 1 and self.runs < self._max_runs:
            turns = self.smallest.turns
            size = max(len(turns) // pieces, 1)
            chunks = [turns[start : start + size] for start in range(0, len(turns), size)]
            if any(self._try(self.smallest.plan, [turn for turn in turns if turn not in chunk]) for chunk in chunks):
                pieces = max(pieces - 1, 2)
            elif size == 1:
                break
            else:
                pieces = min(pieces * 2, len(turns))
        return self.smallest

    def _try(self, plan: P, turns: Sequence[Turn] | None) -> bool:
        if self.runs >= self._max_runs:
            return False
        self.runs += 1
        failure = self._attempts.failure(plan, turns)
        if failure is None or failure.law != self.smallest.law:
            return False
        self.smallest = failure
        return True


def explain(attempts: Attempts[P], failure: FailedRun[P], max_runs: int = 150) -> str:
    """The failure in words: the law, the turns that break it, and what happened."""
    shrinker = Shrinker(attempts, failure, max_runs)
    small = shrinker.shrink()
    turns = ", ".join(f"{turn.name} {turn.number}" for turn in small.turns[:TRACE_LINES])
    left_out = max(len(small.trace) - TRACE_LINES, 0)
    before = [f"  ({left_out} earlier lines)"] if left_out else []
    return "\n".join(
        [
            f"seed {attempts.seed}: {small.detail}",
            f"{len(failure.turns)} turns, of which it takes {len(small.turns)} (after {shrinker.runs} runs): {turns}",
            *before,
            *(f"  {line}" for line in small.trace[-TRACE_LINES:]),
            f"  {small.state}",
        ]
    )
