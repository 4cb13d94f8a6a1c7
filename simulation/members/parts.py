"""The world of a group between two events, for `scope`: values only."""

from typing import Any, Final, NamedTuple

from simulation.members.requests import CommitSent, EncodedLog, FixedTopics, HeartbeatAnswer, HeartbeatSent, id_of
from tailrace.client.group.consumer_member import Partitions, TopicIdPartition

NAMES: Final = ("a", "b")
TOPIC: Final = "orders"
PLACES: Final = tuple(TopicIdPartition(id_of(TOPIC), number) for number in (0, 1))
TOPICS: Final = FixedTopics({TOPIC: len(PLACES)})

SENT, DECIDED, ANSWERED, RUNNING = "sent", "decided", "answered", "running"
"""The stages of a request; a release is running before its commit is sent."""


class MemberBudget(NamedTuple):
    """The numbers of events that may still happen."""

    silent_answers: int = 0
    """Heartbeats that a member gives up. The request may still come, late, or never."""
    lost_commits: int = 0
    """The same of commits: the member commits again."""
    expiries: int = 0
    """Sessions that end at the coordinator, while the member may still run."""
    failovers: int = 0
    closes: int = 0
    overdue_polls: int = 0
    silences: int = 0
    """Times that a member has heard nothing for a session timeout."""


class GroupSize(NamedTuple):
    """The sizes and rules that stay the same in a search."""

    records: int = 1
    """The records of each partition."""
    is_a_there: bool = True
    """Whether `a` has all partitions in the beginning. Otherwise both members join."""
    is_apart: bool = False
    """Whether each partition is released by itself, as a consumer with handlers does."""
    is_staged: bool = False
    """Whether records are replicated apart from the decision, so that another coordinator may lack the records."""
    is_disordered: bool = False
    """Whether a heartbeat that was given up may come after a later heartbeat of its member: no connection does that."""
    settles_every: int = 8
    """The rate of worlds, by their fingerprint, that are led to their rest: every eighth."""


class HeartbeatFlight(NamedTuple):
    """A heartbeat whose member waits for the answer."""

    sent: HeartbeatSent
    stage: str = SENT
    answer: HeartbeatAnswer | None = None


class ReleaseTask(NamedTuple):
    """A release, and its commit."""

    partitions: Partitions
    stage: str = RUNNING
    commit: CommitSent | None = None
    answer: int = 0
    """The code of the answer."""


class StagedDecision(NamedTuple):
    """Records that are appended and not replicated, and the request that is answered then."""

    records: EncodedLog
    who: int = -1
    """The member that waits; -1: no member waits any more."""
    partitions: Partitions | None = None
    """The release whose commit it was; None: it was a heartbeat."""
    answer: HeartbeatAnswer | None = None
    code: int = 0


class FrozenReader(NamedTuple):
    """A member, its requests under way, and its releases."""

    machine: tuple[Any, ...]
    """The fields of the product's machine, without times."""
    reading: Partitions = frozenset()
    leaving: Partitions = frozenset()
    positions: tuple[tuple[TopicIdPartition, int], ...] = ()
    target: Partitions | None = None
    known_epoch: int = 0
    is_awaiting: bool = False
    heartbeat: HeartbeatFlight | None = None
    releases: tuple[ReleaseTask, ...] = ()
    is_removed: bool = False
    """Whether the coordinator has removed the member since its last join was accepted."""


Late = HeartbeatSent | CommitSent


class MemberWorld(NamedTuple):
    """Everything between two events."""

    budget: MemberBudget
    readers: tuple[FrozenReader, ...]
    log: EncodedLog = ()
    staged: tuple[StagedDecision, ...] = ()
    late: frozenset[Late] = frozenset()
    """Requests under way whose senders wait for no answer."""
    overtaken: frozenset[Late] = frozenset()
    """Heartbeats among these requests that a later heartbeat has overtaken."""
    done: tuple[int, ...] = (0, 0)
    """The first record of each partition that no member has processed."""
    promised: tuple[int, ...] = (0, 0)
    """The highest position at which each partition was released, with its commit."""
    is_disordered: bool = False
    """Whether a heartbeat came after a later one of its member. Then a member may be fenced without its removal, and
    may miss its partitions, as the answer that names these is lost."""


class MemberAction(NamedTuple):
    """A possible event, and what it concerns."""

    kind: str
    who: int = -1
    partitions: Partitions = frozenset()
    late: Late | None = None
