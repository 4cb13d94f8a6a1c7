"""The plan of a run of brokers that keep replicas: its size, its pace, and its faults."""

from dataclasses import dataclass
from typing import Final

from simulation.harness.network import NetworkFaults
from simulation.harness.plan import RunPlan, Swarm
from tailrace.fetch_session.session_cache import DEFAULT_SLOTS

LAG_MS: Final = 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan(RunPlan):
    """The plan of a run."""

    simpler = (*RunPlan.simpler, ("consumers", 0))

    brokers: int = 3
    partitions: int = 3
    min_in_sync: int = 2
    is_flushed: bool = True
    longest_disk_ms: int = 5
    latest_image_ms: int = 20
    session_slots: int = DEFAULT_SLOTS
    """max.incremental.fetch.session.cache.slots."""
    consumers: int = 0
    """Consumers, each in the rack of a broker, from the first broker on."""
    produces_per_s: float = 40
    crashes_per_s: float = 0.0
    blackouts_per_s: float = 0.0
    cuts_within_steps_per_s: float = 0.0
    partitions_per_s: float = 0.0
    fencings_per_s: float = 0.0
    refused_growth: float = 0.0
    """The rate of refused proposals to add a replica, copies of which come again when the replica lags. From 0 to 1."""
    elections_per_s: float = 0.0
    reassignments_per_s: float = 0.0
    damages_per_s: float = 0.0
    """The rate at which a bit of a log flips, while only its broker is down or every broker is down."""
    lying_sync: bool = False
    lag_ms: int = LAG_MS
    """replica.lag.time.max.ms."""

    @classmethod
    def of(cls, seed: int) -> "ReplicaPlan":
        """A plan in which each kind of fault is there or not, more or less, by the seed (swarm testing)."""
        swarm = Swarm(seed)
        some = swarm.some
        if swarm.chance(0.2, "page cache"):
            # Each crash loses what was not flushed; min.insync.replicas - 1 at a time are borne (KIP-966).
            return cls(
                is_flushed=False,
                session_slots=swarm.choice((2, 4, DEFAULT_SLOTS), "slots"),
                consumers=3,
                network=swarm.network(duplication=0.2, slow=0.2),
                longest_disk_ms=1000,
                latest_image_ms=swarm.choice((2, 30, 300), "images"),
                crashes_per_s=2.0,
                fencings_per_s=some("fencings", 0.5),
                elections_per_s=some("elections", 1.0),
            )
        return cls(
            brokers=swarm.choice((3, 3, 4), "brokers"),
            session_slots=swarm.choice((2, 4, DEFAULT_SLOTS), "slots"),
            consumers=3,
            min_in_sync=swarm.choice((2, 2, 1, 3), "least"),
            network=swarm.network(loss=0.05, duplication=0.2, slow=0.2),
            longest_disk_ms=swarm.choice((1, 5, 60), "disk"),
            latest_image_ms=swarm.choice((2, 30, 300), "images"),
            crashes_per_s=0.1 + some("crashes", 0.6),
            blackouts_per_s=some("blackouts", 0.2),
            cuts_within_steps_per_s=some("cuts", 0.5),
            partitions_per_s=some("partitions", 0.5),
            fencings_per_s=some("fencings", 0.5),
            elections_per_s=some("elections", 1.0),
            reassignments_per_s=some("reassignments", 0.4),
            damages_per_s=some("damages", 1.0),
        )

    @classmethod
    def of_late_copies(cls, seed: int) -> "ReplicaPlan":
        """Messages come twice, and late, while brokers are taken for dead.

        Proposals that were refused come again when they can be carried out.
        """
        swarm = Swarm(seed)
        return cls(
            min_in_sync=swarm.choice((1, 1, 2), "least"),
            network=NetworkFaults(duplication=0.5, slow=0.3, slow_delay_ms=swarm.choice((400, 1_500), "late")),
            longest_disk_ms=swarm.choice((5, 60), "disk"),
            latest_image_ms=swarm.choice((30, 300), "images"),
            crashes_per_s=swarm.choice((0.0, 0.3), "crashes"),
            partitions_per_s=swarm.choice((0.0, 0.3), "partitions"),
            fencings_per_s=swarm.choice((0.3, 1.0, 3.0), "fencings"),
            refused_growth=0.3,
            elections_per_s=swarm.choice((0.0, 0.5), "elections"),
            chaos_ms=8_000,
        )
