"""The plan of a run with transactions: its size, its pace, and its faults."""

from dataclasses import dataclass

from simulation.harness.plan import RunPlan, Swarm
from simulation.replicas.plan import ReplicaPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlan(ReplicaPlan):
    """The plan of a run. Times in ms."""

    simpler = (*RunPlan.simpler, ("late", 0.0), ("copies", 0), ("sinks", 0), ("transfers", 1))

    transfers: int = 3
    """Transactional ids that transfer."""
    copies: int = 2
    """Transactional ids that copy."""
    sinks: int = 1
    """Sinks with a writer per sink."""
    is_old: bool = False
    """Whether the epochs of the first transfer and the first copy are nearly used up when the run begins."""
    transaction_timeout_ms: int = 3_000
    delivery_tries: int = 8
    """The number of tries of a write before its transaction is aborted; in place of delivery.timeout.ms."""
    longest_pause_ms: int = 30
    """The pauses of clients, between two steps and two transactions."""
    late: float = 0.0
    """The rate of requests that come a second time, up to 35 s later."""
    moves_per_s: float = 0.0
    """Moves of leaders, more often of coordinators."""
    rivals_per_s: float = 0.0
    """Second instances of a transactional id."""
    kills_per_s: float = 0.0
    """Kills of clients."""
    holds_per_s: float = 0.0
    """Clients that stand still, perhaps beyond the time-out of their transaction."""
    clock_jumps_per_s: float = 0.0
    chaos_ms: int = 10_000
    longest_chaos_ms: int = 0
    """A run that is not eventful enough goes on for at most so long."""
    enough_commits: int | None = None
    """A run that is eventful enough ends when it has committed so many transactions and batches."""
    converge_ms: int = 90_000

    @classmethod
    def of(cls, seed: int) -> "TransactionPlan":
        """A plan in which each kind of fault is there or not, more or less, by the seed (swarm testing)."""
        swarm = Swarm(seed)
        some = swarm.some
        is_long = swarm.chance(1 / 12, "length")
        return cls(
            session_slots=swarm.choice((2, 1_000), "slots"),
            network=swarm.network(
                loss=0.01, duplication=0.2, slow=0.1, slow_delay_ms=swarm.choice((50, 150, 400), "slowness")
            ),
            longest_disk_ms=swarm.choice((1, 3, 20), "disk"),
            latest_image_ms=swarm.choice((2, 30, 300), "images"),
            is_old=swarm.chance(0.3, "old"),
            transaction_timeout_ms=swarm.choice((1_500, 3_000, 3_000), "timeout"),
            delivery_tries=swarm.choice((1, 3, 8), "tries"),
            longest_pause_ms=swarm.choice((5, 10, 40), "pause"),
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
