"""The plan of a run of a quorum, drawn from its seed."""

from dataclasses import dataclass, field

from simulation.harness.plan import RunPlan, Swarm
from simulation.raft.faults import DiskTimes
from tailrace.raft.ports import RaftConfig

SMALL = RaftConfig(
    election_backoff_max_ms=500,
    fetch_max_bytes=400,
    snapshot_max_bytes=64,
    live_replica_ms=3000,
    served_snapshot_ms=1500,
    start_offset_lag_ms=20_000,
    cleanup_interval_ms=250,
    caught_up_ms=60_000,
)
"""Kafka's times, and sizes so small that rare events of a real cluster happen all the time: four records an answer,
snapshots of several parts, log starts that rise every few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftPlan(RunPlan):
    """The number of nodes, and the rates of faults."""

    simpler = (*RunPlan.simpler, ("times.damage", 0.0), ("crash_in_step", 0.0), ("observers", 0))

    voters: int = 3
    observers: int = 0
    times: DiskTimes = field(default_factory=DiskTimes)
    appends_per_s: float = 20
    snapshots_per_s: float = 1.0
    readers_per_s: float = 0.0
    crashes_per_s: float = 0.0
    crash_in_step: float = 0.0
    partitions_per_s: float = 0.0
    voter_changes_per_s: float = 0.0
    wipes_per_s: float = 0.0
    disk_faults_per_s: float = 0.0
    clock_jumps_per_s: float = 0.0
    chaos_ms: int = 20_000

    @classmethod
    def of(cls, seed: int) -> "RaftPlan":
        """A plan in which each kind of fault is there or not, more or less, by the seed (swarm testing)."""
        swarm = Swarm(seed)
        some = swarm.some
        wipes_per_s = some("wipes", 0.2)
        return cls(
            voters=swarm.choice((3, 3, 3, 4, 5), "voters"),
            observers=swarm.choice((0, 1, 2), "observers"),
            network=swarm.network(loss=0.2, duplication=0.1, slow=0.1),
            times=DiskTimes(
                max_flush_ms=swarm.choice((1, 5, 40), "flush"),
                max_install_ms=swarm.choice((5, 50, 4000), "install"),
                damage=some("damage", 0.1),
            ),
            snapshots_per_s=0.2 + some("snapshots", 3.0),
            readers_per_s=some("readers", 2.0),
            crashes_per_s=0.1 + some("crashes", 0.6),
            crash_in_step=some("crash in step", 0.001),
            partitions_per_s=some("partitions", 0.5),
            voter_changes_per_s=max(some("voter changes", 1.0), 0.3 if wipes_per_s else 0.0),
            wipes_per_s=wipes_per_s,
            disk_faults_per_s=some("disk faults", 0.3),
            clock_jumps_per_s=some("clock jumps", 0.4),
        )
