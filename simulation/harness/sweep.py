"""The results of many seeds: how many runs were eventful enough, what failed, and which states were reached."""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from simulation.harness.plan import RunPlan
from simulation.harness.shrink import Attempts, Build, Run, explain
from tailrace.model.errors import KafkaError

BLOCK = 50
"""After so many seeds the sweep checks whether there are enough, and writes the file."""
_MOST_RUNS = 60
"""The most runs to find the few turns that lead to a failure."""


class MeasuredRun(Run, Protocol):
    """A cluster that tells the faults, states and events of its run."""

    @property
    def faults(self) -> set[str]:
        """The kinds of fault that the run has had."""
        ...

    @property
    def counts(self) -> bool:
        """Whether the run was eventful enough."""
        ...


C = TypeVar("C", bound=MeasuredRun)
P = TypeVar("P", bound=RunPlan)


@dataclass
class Sweep(Generic[C]):
    """The results of the seeds so far. A subclass names the states that a few hundred seeds must reach."""

    states: ClassVar[tuple[str, ...]] = ()

    seeds: int = 0
    counted: int = 0
    """Seeds whose runs were eventful enough."""
    events: int = 0
    seconds: float = 0.0
    """The elapsed time of the sweep, not the sum over its processes."""
    failures: list[str] = field(default_factory=list)
    """The failures, in words."""
    faults: Counter[str] = field(default_factory=Counter)
    """The number of seeds with each kind of fault."""
    sometimes: Counter[str] = field(default_factory=Counter)
    """The number of seeds that reached each state."""

    def observe(self, cluster: C) -> None:
        """Take the figures of a run that has ended."""
        self.counted += cluster.counts
        self.events += cluster.world.events
        self.faults.update(cluster.faults)
        self.sometimes.update(state for state, times in cluster.world.sometimes.items() if times)

    def add(self, other: Self) -> None:
        """Add the results of other seeds."""
        self.seeds += other.seeds
        self.counted += other.counted
        self.events += other.events
        self.failures += other.failures
        self.faults.update(other.faults)
        self.sometimes.update(other.sometimes)

    def as_dict(self) -> dict[str, object]:
        """The fields by name, for a file."""
        return {column.name: getattr(self, column.name) for column in fields(self)}

    @property
    def per_minute(self) -> float:
        return self.seeds / self.seconds * 60 if self.seconds else 0.0

    @property
    def missed(self) -> list[str]:
        """States that should have been reached and were not."""
        return [state for state in self.states if not self.sometimes[state]]

    @property
    def work(self) -> str:
        """The amount of work, in words."""
        return f"{self.events} events"

    def summary(self) -> str:
        """The results in a few lines."""
        outcome = f"{self.seeds} seeds, {self.counted} count, {len(self.failures)} failed"
        lines = [*self.failures, f"{outcome}; {self.work}, {self.per_minute:.0f} seeds per minute"]
        if self.faults:
            lines.append(f"seeds with faults: {_listed(self.faults.most_common())}")
        lines.append(f"reached, how often: {_listed(sorted(self.sometimes.items()))}")
        lines.append(f"not reached: {', '.join(self.missed) or 'nothing'}")
        return "\n".join(lines)


S = TypeVar("S", bound=Sweep[Any])


def run_seed(kind: type[S], build: Build[P, C], plan_of: Callable[[int], P], seed: int) -> S:
    """Run one seed. The result has the failure, cut down to the few turns of the nemesis that lead to it."""
    found = kind(seeds=1)
    with _quiet():
        cluster = build(seed, plan_of(seed))
        try:
            cluster.run()
        except (AssertionError, KafkaError) as error:
            # The same seed fails again, unless a run hangs on more than its seed.
            told = failure_of(build, plan_of, seed) or cluster.describe()
            found.failures.append(f"seed {seed} FAILED: {error!r}\n{told}")
    found.observe(cluster)
    return found


def failure_of(build: Build[P, Run], plan_of: Callable[[int], P], seed: int) -> str | None:
    """The failure of a seed in words; None if no law is broken."""
    attempts = Attempts(build, seed)
    with _quiet():
        failure = attempts.failure(plan_of(seed))
        return None if failure is None else explain(attempts, failure, max_runs=_MOST_RUNS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Write no log lines: disks fail on purpose here, and each failure would be logged."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def sweep_seeds(
    kind: type[S],
    run: Callable[[int], S],
    *,
    first: int = 0,
    seeds: int | None = None,
    counted: int | None = None,
    processes: int = 2,
    store: "SweepFile | None" = None,
    on_progress: Callable[[S], None] = lambda total: None,
) -> S:
    """Run seeds from `first` on: so many, or until so many count. In this process if `processes` is 1.

    With a `store` the sweep goes on from the stored results, stores its own results after each block, and ends at a
    failure. `on_progress` is called after each seed.
    """
    total = kind() if store is None else store.load(kind)
    with _mapping(processes) as mapped:
        while True:
            left = BLOCK if seeds is None else min(seeds - total.seeds, BLOCK)
            if left <= 0 or (counted is not None and total.counted >= counted) or (store and total.failures):
                return total
            before, began, begin = total.seconds, time.perf_counter(), first + total.seeds
            for found in mapped(run, range(begin, begin + left)):
                total.add(found)
                total.seconds = before + time.perf_counter() - began
                on_progress(total)
            if store is not None:
                store.save(total)


@contextmanager
def _mapping(processes: int) -> Iterator[Callable[..., Iterable[Any]]]:
    if processes <= 1:
        yield map
        return
    with get_context("spawn").Pool(processes) as pool:
        yield pool.imap


@dataclass(frozen=True, slots=True)
class SweepFile:
    """The file of a sweep that may be interrupted."""

    path: Path
    code: str
    """A version of the code: results of seeds that ran with other code are of no use."""

    def load(self, kind: type[S]) -> S:
        """The results in the file; no results without a file, or if other code wrote the file."""
        stored = json.loads(self.path.read_text()) if self.path.exists() else {}
        if stored.pop("code", None) != self.code:
            return kind()
        return kind(**stored | {"sometimes": Counter(stored["sometimes"]), "faults": Counter(stored["faults"])})

    def save(self, total: Sweep[Any]) -> None:
        """Replace the file by these results."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"code": self.code, **total.as_dict()}, indent=1))
        part.replace(self.path)


def code_version(sources: Iterable[Path]) -> str:
    """A digest of these files."""
    digest = blake2b(digest_size=8)
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _listed(counts: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts)
