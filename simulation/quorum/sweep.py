"""Many seeds of whole nodes, in several processes: `python -m simulation nodes --help`."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context

from simulation.harness.shrink import attempt, explain
from simulation.harness.sweep import Sweep
from simulation.quorum.cluster import QuorumCluster
from simulation.quorum.plan import QuorumPlan
from simulation.quorum.shrink import QuorumAttempts
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


class NodesSweep(Sweep):
    """Seeds of nodes. A state counts once in each seed."""

    states = STATES


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
