"""The world of a sink between two events, for `scope`: the log of its coordinator, tasks, drivers, a partition."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.coordinators.config import TransactionConfig
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.records import CoordinatorRecord, SinkRecord, decode_record
from tailrace.coordinators.transactions.transaction import Transaction
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SinkMember, find_member

SINK: Final = "s"
RUNS: Final = ("r1", "r2")
TASKS: Final = (0, 1)
PLACE: Final = frozenset((TopicPartition("orders", 0),))
TIMEOUT_MS: Final = 10
LATE_MS: Final = 1_000
_CONFIG: Final = TransactionConfig()

Encoded = tuple[bytes, bytes | None]


class SinkBudget(NamedTuple):
    """The numbers of events that may still happen."""

    attempts: int = 0
    """Second attempts of tasks."""
    batches: int = 1
    """The batches of each run."""
    second_run: int = 1
    failovers: int = 0
    late_commits: int = 0
    """Copies of CommitSink that come after the acknowledgement."""
    late_markers: int = 0
    timeouts: int = 0
    is_quick: bool = False
    """Whether the records of tasks are replicated at once, unless another record is staged."""


class KnownMember(NamedTuple):
    """A member as its task knows the member."""

    member: SinkMember
    producer_id: int
    producer_epoch: int


class Commit(NamedTuple):
    """A request of a driver, which repeats the request until an answer comes."""

    run: str
    batch: int
    members: tuple[KnownMember, ...]
    is_acknowledged: bool = False


class Staged(NamedTuple):
    """A record batch that is appended and not replicated yet, and the commit that is answered after the replication."""

    records: tuple[Encoded, ...]
    answers: tuple[str, int] | None = None


class Marker(NamedTuple):
    """A marker that was sent once, and may come again."""

    member: SinkMember
    producer_id: int
    producer_epoch: int
    is_commit: bool


class SinkProducer(NamedTuple):
    """A producer id in the partition."""

    producer_id: int
    epoch: int
    open_member: SinkMember | None


class SinkWorld(NamedTuple):
    """Everything between two events."""

    budget: SinkBudget
    log: tuple[Encoded, ...] = ()
    """The last replicated record of each key; without tombstones."""
    staged: tuple[Staged, ...] = ()
    waiting: frozenset[tuple[str, int]] = frozenset()
    """Commits that are decided, and not acknowledged; in the coordinator's memory."""
    kept: tuple[tuple[int, int], ...] = ()
    """Producers of members that are complete, with their last epoch; in the coordinator's memory."""
    marked: frozenset[SinkMember] = frozenset()
    """Members whose markers this coordinator has seen written."""
    next_batches: tuple[int, int] = (0, -1)
    """The next batch of each run; -1: the run has not begun."""
    stopped: frozenset[str] = frozenset()
    """Runs whose driver was refused."""
    identities: frozenset[KnownMember] = frozenset()
    written: frozenset[SinkMember] = frozenset()
    """Members that have begun: their records are acknowledged."""
    given_up: frozenset[SinkMember] = frozenset()
    commits: tuple[Commit, ...] = ()
    producers: tuple[SinkProducer, ...] = ()
    committed: frozenset[SinkMember] = frozenset()
    """Members whose records readers see."""
    aborted: frozenset[SinkMember] = frozenset()
    markers: frozenset[Marker] = frozenset()
    followed: frozenset[str] = frozenset()


class SinkAction(NamedTuple):
    """A possible event, and what it concerns."""

    kind: str
    member: SinkMember | None = None
    which: int = 0


@lru_cache(maxsize=4)
def machine_of(log: tuple[Encoded, ...], staged: tuple[Staged, ...]) -> TransactionCoordinator:
    """The machine of a coordinator with these bytes; only for questions."""
    machine = TransactionCoordinator(config=_CONFIG)
    for key, value in log:
        machine.apply(decoded(key, value))
    for batch in staged:
        machine.stage([decoded(key, value) for key, value in batch.records])
    return machine


def members_of(world: SinkWorld) -> Iterable[tuple[SinkMember, Transaction]]:
    """The replicated state of each member."""
    for name, transaction in machine_of(world.log, world.staged).transactions.items():
        member = find_member(name)
        assert member is not None
        yield member, transaction


@lru_cache(maxsize=10_000)
def decoded(key: bytes, value: bytes | None) -> CoordinatorRecord:
    """The record. A value of None is a tombstone."""
    record = decode_record(key, value)
    assert record is not None, "all records are known"
    return record


def decoded_pair(encoded: Encoded) -> CoordinatorRecord:
    """The record with this key and value."""
    return decoded(*encoded)


def decoded_state(key: bytes, value: bytes | None) -> Transaction | None:
    """The transaction in the record, if the record has a transaction."""
    record = decoded(key, value)
    return None if isinstance(record, SinkRecord) else record.transaction


def producer_of(world: SinkWorld, producer_id: int) -> SinkProducer:
    """The producer in the partition; a producer that the partition has not seen yet has the epoch -1."""
    return next(
        (known for known in world.producers if known.producer_id == producer_id), SinkProducer(producer_id, -1, None)
    )


def with_producer(world: SinkWorld, producer: SinkProducer) -> SinkWorld:
    """The world with this state of the producer in the partition."""
    others = (known for known in world.producers if known.producer_id != producer.producer_id)
    return world._replace(producers=tuple(sorted((*others, producer), key=lambda known: known.producer_id)))


def own_producer_id(member: SinkMember) -> int:
    """The fresh producer id of a member, always the same: an id that was lost with its record is known nowhere."""
    return 1 + member.batch + 2 * member.task + 4 * member.attempt + 8 * RUNS.index(member.run)


def member_of(action: SinkAction) -> SinkMember:
    """The member that the action concerns."""
    assert action.member is not None
    return action.member


def name_of(action: SinkAction) -> str:
    """The transactional id of the member that the action concerns."""
    return member_of(action).transactional_id


def spent(world: SinkWorld, name: str) -> SinkWorld:
    """The world with one event of this kind less to come."""
    return world._replace(budget=world.budget._replace(**{name: getattr(world.budget, name) - 1}))
