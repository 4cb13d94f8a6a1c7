"""Many seeds in several processes: the states that they reached, and a file from which a sweep goes on."""

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import tailrace.raft
from simulation.harness.sweep import Sweep, code_version, run_seed
from simulation.raft.cluster import RaftCluster
from simulation.raft.plan import RaftPlan

STATES = (
    "a log was cut",
    "a write was torn",
    "change of voters: NONE",
    "clock jump",
    "crash",
    "crash between two effects",
    "crash lost unflushed operations",
    "damaged snapshot refused",
    "disk lost",
    "download of a snapshot given up",
    "leader crashed",
    "leader removes itself",
    "log start raised",
    "lost replica removed",
    "partition: isolate leader",
    "partition: one way",
    "partition: split",
    "snapshot installed",
    "snapshot refused: not committed",
    "snapshot written",
    "the disk of a follower fails every write",
    "the disk of a follower is full",
    "the disk of a leader fails every write",
    "the disk of a leader is full",
)
"""The states that a few hundred seeds must reach."""


@dataclass
class RaftSweep(Sweep[RaftCluster]):
    """Seeds of quorums."""

    states = STATES

    acked: int = 0
    """Acknowledged writes."""

    def observe(self, cluster: RaftCluster) -> None:
        super().observe(cluster)
        self.acked += cluster.acked

    def add(self, other: Self) -> None:
        super().add(other)
        self.acked += other.acked

    @property
    def work(self) -> str:
        return f"{super().work}, {self.acked} acknowledged writes"


def run_quorum_seed(seed: int) -> RaftSweep:
    """Run one seed."""
    gc.collect()
    gc.disable()  # a run makes little garbage in cycles, and looking for it takes a tenth of the time
    try:
        return run_seed(RaftSweep, RaftCluster, RaftPlan.of, seed)
    finally:
        gc.enable()


def quorum_code_version() -> str:
    """The version of the machine and of its simulation."""
    folders = (Path(tailrace.raft.__file__).parent, Path(__file__).parents[1] / "harness", Path(__file__).parent)
    return code_version([source for folder in folders for source in folder.glob("*.py")])
