"""The plan of a run of a group: its size, its pace, and its faults."""

from dataclasses import dataclass
from typing import Final

from simulation.harness.plan import RunPlan, Swarm

SESSION_MS: Final = 3_000
HEARTBEAT_MS: Final = 300
MAX_POLL_MS: Final = 4_000
"""max.poll.interval.ms, which is the rebalance timeout too."""
REQUEST_MS: Final = 1_000
BACKOFF_MS: Final = 50
LONGEST_PAUSE_MS: Final = 2 * SESSION_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan(RunPlan):
    """The plan of a run."""

    simpler = (*RunPlan.simpler, ("statics", 0))

    members: int = 4
    statics: int = 0
    """The members that have an instance id."""
    topics: tuple[int, ...] = (4, 3)
    """The numbers of partitions."""
    has_slots: bool = False
    """Whether the topics are views: then the coordinator gives free partitions beside a revocation."""
    range_assignor: bool = False
    slow_replication_ms: int = 5
    """The longest time until records are committed."""
    slow_handlers: float = 0.0
    """The rate of polls and releases that take long. From 0 to 1."""
    kills_per_s: float = 0.0
    closes_per_s: float = 0.0
    joins_per_s: float = 0.0
    pauses_per_s: float = 0.0
    isolations_per_s: float = 0.0
    moves_per_s: float = 0.0
    """Moves of the coordinator to another broker."""
    crashes_per_s: float = 0.0
    growths_per_s: float = 0.0
    """Topics that get a partition more."""
    is_ordered: bool = True
    """Whether the coordinator gets the heartbeats of a process in order, as over connections: an overtaken heartbeat is
    lost. Otherwise an assignment may be in an answer for which its member does not wait, until the group changes."""

    @classmethod
    def of(cls, seed: int) -> "MemberPlan":
        """A plan in which each kind of fault is there or not, more or less, by the seed (swarm testing)."""
        swarm = Swarm(seed)
        some, members = swarm.some, swarm.choice((3, 4, 5), "members")
        return cls(
            members=members,
            statics=swarm.choice((0, 0, 1, 2), "statics"),
            topics=swarm.choice(((4, 3), (6,), (2, 2, 2), (8, 1)), "topics"),
            has_slots=swarm.chance(0.5, "slots"),
            range_assignor=swarm.chance(0.3, "range"),
            network=swarm.network(loss=0.1, slow=0.1, slow_delay_ms=swarm.choice((400, 1_500), "slowness")),
            slow_replication_ms=swarm.choice((2, 20, 400), "replication"),
            slow_handlers=some("slow handlers", 0.1),
            kills_per_s=some("kills", 0.3),
            closes_per_s=some("closes", 0.5),
            joins_per_s=0.8,
            pauses_per_s=some("pauses", 0.3),
            isolations_per_s=some("isolations", 0.3),
            moves_per_s=some("moves", 0.5),
            crashes_per_s=some("crashes", 0.3),
            growths_per_s=some("growths", 0.15),
            is_ordered=swarm.chance(0.75, "order"),
            chaos_ms=20_000,
            converge_ms=30_000,
        )
