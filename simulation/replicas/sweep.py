"""Many seeds of brokers that keep copies, in several processes: `python -m simulation replicas --help`."""

from functools import partial
from typing import Final

from simulation.harness.sweep import Sweep, run_seed
from simulation.replicas.cluster import ReplicaCluster
from simulation.replicas.plan import ReplicaPlan

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


class ReplicaSweep(Sweep[ReplicaCluster]):
    """Seeds of brokers."""

    states = STATES


run_replicas_seed: Final = partial(run_seed, ReplicaSweep, ReplicaCluster, ReplicaPlan.of)
