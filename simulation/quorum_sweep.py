"""Many seeds of whole nodes, in several processes: `python -m simulation nodes --help`."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context

from simulation.quorum_cluster import QuorumCluster
from simulation.quorum_plan import QuorumPlan
from simulation.quorum_shrink import QuorumAttempts
from simulation.shrink import attempt, explain
from tailrace.model.errors import KafkaError

STATES = (
    "active controller crashed",
    "blackout",
    "broker fenced",
    "bytes of a snapshot served",
    "change of voters refused or not committed in time",
    "clock jumped",
    "crash",
    "damaged snapshot sent",
    "disk lost",
    "disk of a voter lost",
    "leader removes itself",
    "log start raised",
    "lost voter removed",
    "node with a failed log",
    "partition: heal",
    "partition: isolate leader",
    "partition: one way",
    "partition: split",
    "power cut within a step",
    "process ended by its disk",
    "snapshot being loaded",
    "the disk of a follower is full",
    "the disk of a leader is full",
    "voter added",
    "voter added again on another disk",
    "voter removed",
)
"""The states that a few hundred seeds must reach."""


@dataclass
class NodesSweep:
    """The results of the runs so far."""

    seeds: int = 0
    counted: int = 0
    events: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    """In how many seeds."""
    sometimes: Counter[str] = field(default_factory=Counter)
    """In how many seeds each state was reached."""

    def add(self, other: "NodesSweep") -> None:
        self.seeds += other.seeds
        self.counted += other.counted
        self.events += other.events
        self.failures += other.failures
        self.faults += other.faults
        self.sometimes += other.sometimes

    @property
    def per_minute(self) -> float:
        return self.seeds / self.seconds * 60 if self.seconds else 0.0

    @property
    def missed(self) -> list[str]:
        """States that should have been reached and were not."""
        return [state for state in STATES if not self.sometimes[state]]

    def summary(self) -> str:
        """A few lines for people."""
        counts = f"{self.seeds} seeds, {self.counted} count, {len(self.failures)} failed; {self.events} events"
        faults = f"seeds with faults: {dict(self.faults.most_common())}"
        sometimes = f"reached, in how many seeds: {dict(sorted(self.sometimes.items()))}"
        missed = f"not reached: {', '.join(self.missed) or 'nothing'}"
        return "\n".join(
            (*self.failures, f"{counts}, {self.per_minute:.0f} seeds per minute", faults, sometimes, missed)
        )


def run_seed(seed: int) -> NodesSweep:
    """One run; a failure is in the result."""
    logging.disable(logging.CRITICAL)  # disks fail on purpose here, and say so
    cluster = QuorumCluster(seed, QuorumPlan.of(seed))
    found = NodesSweep(seeds=1)
    try:
        cluster.run()
    except (AssertionError, KafkaError) as error:
        found.failures.append(f"seed {seed} FAILED: {error!r}\n{_told(seed, cluster)}")
    found.counted = int(cluster.counts)
    found.events = cluster.world.events
    found.faults = Counter(cluster.faults)
    found.sometimes = Counter({state: 1 for state, count in cluster.world.sometimes.items() if count})
    return found


def _told(seed: int, cluster: QuorumCluster) -> str:
    """The failure, with the few turns of the nemesis that it takes."""
    attempts = QuorumAttempts(seed)
    failure = attempt(attempts, cluster.plan)
    return cluster.describe() if failure is None else explain(attempts, failure, max_runs=60)


def sweep_nodes(first: int, count: int, processes: int, on_progress: Callable[[NodesSweep], None]) -> NodesSweep:
    """All these seeds."""
    total, began = NodesSweep(), time.perf_counter()
    with get_context("spawn").Pool(processes) as pool:
        for found in pool.imap_unordered(run_seed, range(first, first + count)):
            total.add(found)
            total.seconds = time.perf_counter() - began
            on_progress(total)
    return total
