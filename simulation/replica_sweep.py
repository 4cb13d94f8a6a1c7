"""Many seeds of brokers that keep copies, in several processes: `python -m simulation replicas --help`."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context

from simulation.replica_cluster import ReplicaCluster
from simulation.replica_plan import ReplicaPlan
from tailrace.model.errors import KafkaError

STATES = (
    "a follower rests",
    "an eligible leader",
    "blackout",
    "bit flipped",
    "consumer left a follower",
    "consumer read from a follower",
    "consumer redirected",
    "crash",
    "crash that loses what is in the page cache",
    "damage found",
    "election asked for",
    "false alarm",
    "high watermark sent alone",
    "in-sync replicas grew",
    "in-sync replicas shrunk",
    "incremental fetch",
    "leader crashed",
    "log cut",
    "partition: isolate leader",
    "partition: one way",
    "partition: silence followers",
    "partition: split",
    "power cut within a step",
    "reassignment",
    "session error 70",
    "session error 71",
    "session evicted",
    "session not to be had",
    "session opened",
)
"""The states that a few hundred seeds must reach."""


@dataclass
class ReplicaSweep:
    """The results of the runs so far."""

    seeds: int = 0
    counted: int = 0
    events: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    sometimes: Counter[str] = field(default_factory=Counter)
    """In how many seeds each state was reached."""

    def add(self, other: "ReplicaSweep") -> None:
        self.seeds += other.seeds
        self.counted += other.counted
        self.events += other.events
        self.failures += other.failures
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
        sometimes = f"reached, in how many seeds: {dict(sorted(self.sometimes.items()))}"
        missed = f"not reached: {', '.join(self.missed) or 'nothing'}"
        return "\n".join((*self.failures, f"{counts}, {self.per_minute:.0f} seeds per minute", sometimes, missed))


def run_seed(seed: int) -> ReplicaSweep:
    """One run; a failure is in the result."""
    logging.disable(logging.CRITICAL)  # disks fail on purpose here, and say so
    cluster = ReplicaCluster(seed, ReplicaPlan.of(seed))
    found = ReplicaSweep(seeds=1)
    try:
        cluster.run()
    except (AssertionError, KafkaError) as error:
        found.failures.append(f"seed {seed} FAILED: {error!r}\n{cluster.describe()}")
    found.counted = int(cluster.counts)
    found.events = cluster.world.events
    found.sometimes = Counter({state: 1 for state, times in cluster.world.sometimes.items() if times})
    return found


def sweep_replicas(
    first: int, counted: int, processes: int, on_progress: Callable[[ReplicaSweep], None]
) -> ReplicaSweep:
    """Seeds from `first` on, until so many count."""
    total, began = ReplicaSweep(), time.perf_counter()
    with get_context("spawn").Pool(processes) as pool:
        for block in count():
            start = first + block * _BLOCK
            for found in pool.imap_unordered(run_seed, range(start, start + _BLOCK)):
                total.add(found)
                total.seconds = time.perf_counter() - began
                on_progress(total)
            if total.counted >= counted:
                break
    return total


_BLOCK = 50
"""Seeds between two looks at how many count."""
