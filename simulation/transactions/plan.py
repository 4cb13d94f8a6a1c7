"""The plan of a run with transactions: its size, its pace, and its faults."""

from dataclasses import dataclass

from simulation.harness.network import NetworkFaults
from simulation.harness.world import World
from simulation.replicas.plan import ReplicaPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlan(ReplicaPlan):
    """The plan of a run. Rates from 0 to 1, or in a second; times in ms."""

    transfers: int = 3
    """Transactional ids that transfer."""
    copies: int = 2
    """Transactional ids that copy."""
    sinks: int = 1
    """Each with a writer."""
    is_old: bool = False
    """Whether the epochs of the first transfer and the first copy are nearly used up when the run begins."""
    transaction_timeout_ms: int = 3_000
    delivery_tries: int = 8
    """Those of a write, before its transaction is aborted: as delivery.timeout.ms."""
    longest_pause_ms: int = 30
    """Of clients, between two steps and two transactions."""
    late: float = 0.0
    """The rate of requests that come once more, up to 35 s later."""
    moves_per_s: float = 0.0
    """Of leaders, more often of coordinators."""
    rivals_per_s: float = 0.0
    """Of second instances of a transactional id."""
    kills_per_s: float = 0.0
    """Of clients."""
    holds_per_s: float = 0.0
    """Of clients that stand still, perhaps beyond the time-out of their transaction."""
    clock_jumps_per_s: float = 0.0
    chaos_ms: int = 10_000
    longest_chaos_ms: int = 0
    """A run that does not count goes on for so long."""
    enough_commits: int | None = None
    """Of transactions and batches: a run that has so many and counts is not gone on with."""
    converge_ms: int = 90_000

    @classmethod
    def of(cls, seed: int) -> "TransactionPlan":
        """A plan in which each kind of fault is there or not, more or less, by the seed (swarm testing)."""
        world = World(seed)

        def some(name: str, most: float) -> float:
            return most * world.draw("size", name) if world.chance(0.6, "swarm", name) else 0.0

        is_long = world.chance(1 / 12, "swarm", "length")
        return cls(
            session_slots=world.choice((2, 1_000), "swarm", "slots"),
            network=NetworkFaults(
                loss=some("loss", 0.01),
                duplication=some("duplication", 0.2),
                slow=some("slow", 0.1),
                slow_delay_ms=world.choice((50, 150, 400), "swarm", "slowness"),
            ),
            longest_disk_ms=world.choice((1, 3, 20), "swarm", "disk"),
            latest_image_ms=world.choice((2, 30, 300), "swarm", "images"),
            is_old=world.chance(0.3, "swarm", "old"),
            transaction_timeout_ms=world.choice((1_500, 3_000, 3_000), "swarm", "timeout"),
            delivery_tries=world.choice((1, 3, 8), "swarm", "tries"),
            longest_pause_ms=world.choice((5, 10, 40), "swarm", "pause"),
            late=some("late", 0.3),
            crashes_per_s=0.05 + some("crashes", 0.15),
            blackouts_per_s=some("blackouts", 0.05),
            cuts_within_steps_per_s=some("cuts", 0.15),
            partitions_per_s=some("partitions", 0.15),
            fencings_per_s=some("fencings", 0.1),
            moves_per_s=0.3 + some("moves", 0.5),
            rivals_per_s=some("rivals", 1.0),
            kills_per_s=some("kills", 0.7),
            holds_per_s=some("holds", 0.7),
            clock_jumps_per_s=some("clocks", 0.4),
            # The longest lateness of a request is 35 s.
            chaos_ms=40_000 if is_long else 10_000,
            longest_chaos_ms=40_000 if is_long else 25_000,
            enough_commits=None if is_long else 25,
        )
