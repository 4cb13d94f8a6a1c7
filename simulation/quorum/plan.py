"""The plan of a run of whole nodes, drawn from its seed."""

from dataclasses import dataclass
from typing import Final

from simulation.harness.plan import RunPlan, Swarm
from tailrace.model.ids import BrokerId
from tailrace.raft.ports import RaftConfig

SMALL: Final = RaftConfig(
    election_backoff_max_ms=500,
    fetch_max_bytes=2000,
    snapshot_max_bytes=400,
    live_replica_ms=3000,
    served_snapshot_ms=500,
    start_offset_lag_ms=20_000,
    cleanup_interval_ms=250,
)
"""Kafka's times, and sizes so small that logs start at snapshots and a snapshot has several parts."""
BROKERS: Final = (BrokerId(101), BrokerId(102))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumPlan(RunPlan):
    """The number of nodes, and the rates of faults."""

    simpler = (*RunPlan.simpler, ("damage", 0.0), ("observers", 0))

    voters: int = 3
    observers: int = 1
    damage: float = 0.0
    """The rate of FetchSnapshot answers in which a byte changes on the way."""
    longest_disk_ms: int = 5
    commands_per_s: float = 25
    snapshot_bytes: int = 6000
    crashes_per_s: float = 0.0
    blackouts_per_s: float = 0.0
    cuts_within_steps_per_s: float = 0.0
    disk_errors_per_s: float = 0.0
    full_disks_per_s: float = 0.0
    wipes_per_s: float = 0.0
    voter_changes_per_s: float = 0.0
    partitions_per_s: float = 0.0
    clock_jumps_per_s: float = 0.0
    silences_per_s: float = 0.1
    has_old_directories: bool = False
    """Whether an earlier release has made the directories: their ids need no secret."""
    lying_sync: bool = False

    @classmethod
    def of(cls, seed: int) -> "QuorumPlan":
        """A plan in which each kind of fault is there or not, more or less, by the seed (swarm testing)."""
        swarm = Swarm(seed)
        some = swarm.some
        wipes_per_s = some("wipes", 0.8)
        return cls(
            observers=swarm.choice((0, 1, 2), "observers"),
            network=swarm.network(loss=0.2, duplication=0.1, slow=0.1),
            damage=some("damage", 0.1),
            longest_disk_ms=swarm.choice((1, 5, 40), "disk"),
            snapshot_bytes=swarm.choice((1500, 6000, 1 << 20), "snapshots"),
            crashes_per_s=0.1 + some("crashes", 0.5),
            blackouts_per_s=some("blackouts", 0.3),
            cuts_within_steps_per_s=some("cuts", 0.5),
            disk_errors_per_s=some("errors", 0.2),
            full_disks_per_s=some("full disks", 0.3),
            wipes_per_s=wipes_per_s,
            voter_changes_per_s=max(some("voter changes", 1.0), 1.5 if wipes_per_s else 0.0),
            partitions_per_s=some("partitions", 0.5),
            clock_jumps_per_s=some("clocks", 0.5),
        )
