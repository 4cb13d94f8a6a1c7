"""The plan of a run of a quorum, drawn from its seed."""

from dataclasses import dataclass, field

from simulation.harness.network import NetworkFaults
from simulation.harness.world import World
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
"""Kafka's times, and sizes so small that what is rare in a real cluster happens all the time: four records an answer,
snapshots of several parts, log starts that rise every few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of nodes, and the rates of faults. Rates are averages."""

    voters: int = 3
    observers: int = 0
    network: NetworkFaults = field(default_factory=NetworkFaults)
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
    converge_ms: int = 30_000

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """A plan in which each kind of fault is there or not, more or less, by the seed (swarm testing)."""
        world = World(seed)

        def some(name: str, most: float) -> float:
            return most * world.draw("size", name) if world.chance(0.6, "swarm", name) else 0.0

        wipes_per_s = some("wipes", 0.2)
        return cls(
            voters=world.choice((3, 3, 3, 4, 5), "swarm", "voters"),
            observers=world.choice((0, 1, 2), "swarm", "observers"),
            network=NetworkFaults(loss=some("loss", 0.2), duplication=some("duplication", 0.1), slow=some("slow", 0.1)),
            times=DiskTimes(
                max_flush_ms=world.choice((1, 5, 40), "swarm", "flush"),
                max_install_ms=world.choice((5, 50, 4000), "swarm", "install"),
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
