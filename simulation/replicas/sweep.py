"""Many seeds of brokers that keep copies, in several processes: `python -m simulation replicas --help`."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from multiprocessing import get_context

from simulation.harness.sweep import Sweep
from simulation.replicas.cluster import ReplicaCluster
from simulation.replicas.plan import ReplicaPlan
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


class ReplicaSweep(Sweep):
    """Seeds of brokers. A state counts once in each seed."""

    states = STATES


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
