"""Many seeds of whole nodes, in several processes: `python -m tailrace.testing.simulation nodes --help`."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context

from tailrace.model.errors import KafkaError
from tailrace.testing.simulation.quorum_cluster import QuorumCluster, QuorumPlan


@dataclass
class NodesSweep:
    """What came of the runs so far."""

    seeds: int = 0
    counted: int = 0
    events: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    """In how many seeds."""
    sometimes: Counter[str] = field(default_factory=Counter)

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

    def summary(self) -> str:
        """A few lines for people."""
        counts = f"{self.seeds} seeds, {self.counted} count, {len(self.failures)} failed; {self.events} events"
        faults = f"seeds with faults: {dict(self.faults.most_common())}"
        sometimes = f"sometimes: {dict(sorted(self.sometimes.items()))}"
        return "\n".join((*self.failures, f"{counts}, {self.per_minute:.0f} seeds per minute", faults, sometimes))


def run_seed(seed: int) -> NodesSweep:
    """One run; a failure is in the result."""
    logging.disable(logging.CRITICAL)  # disks fail on purpose here, and say so
    cluster = QuorumCluster(seed, QuorumPlan.of(seed))
    found = NodesSweep(seeds=1)
    try:
        cluster.run()
    except (AssertionError, KafkaError) as error:
        found.failures.append(f"seed {seed} FAILED: {error!r}\n  {cluster.describe()}")
    found.counted = int(cluster.counts)
    found.events = cluster.world.events
    found.faults = Counter(cluster.faults)
    found.sometimes = cluster.world.sometimes
    return found


def sweep_nodes(first: int, count: int, processes: int, on_progress: Callable[[NodesSweep], None]) -> NodesSweep:
    """All these seeds."""
    total, began = NodesSweep(), time.perf_counter()
    with get_context("spawn").Pool(processes) as pool:
        for found in pool.imap_unordered(run_seed, range(first, first + count)):
            total.add(found)
            total.seconds = time.perf_counter() - began
            on_progress(total)
    return total
