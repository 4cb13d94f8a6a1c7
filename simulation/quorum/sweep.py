"""Many seeds of whole nodes, in several processes: `python -m simulation nodes --help`."""

from functools import partial
from typing import Final

from simulation.harness.sweep import Sweep, run_seed
from simulation.quorum.cluster import QuorumCluster
from simulation.quorum.plan import QuorumPlan

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


class NodesSweep(Sweep[QuorumCluster]):
    """Seeds of nodes."""

    states = STATES


run_nodes_seed: Final = partial(run_seed, NodesSweep, QuorumCluster, QuorumPlan.of)
