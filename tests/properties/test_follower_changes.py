"""A follower's fetches one after the other, against a machine that names all of its partitions each time."""

from collections.abc import Set

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import LeaderEpoch, TopicId
from tailrace.model.machines import Tick
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.replication.replica_fetcher import (
    FIRST_BACKOFF_MS,
    Answered,
    Cut,
    Event,
    FetchAnswer,
    Follow,
    PartitionKey,
    Position,
    ReplicaFetcher,
    Restart,
    SendFetch,
    Store,
    Stored,
    StoreFailed,
    Unfollow,
    Wanted,
)

KEYS = [PartitionKey(TopicId(name * 16), number) for name in (b"x", b"y") for number in (0, 1)]
BACKOFF_MS = 200
REFUSED, OUT_OF_RANGE, DIVERGES, RECORDS = "refused", "out of range", "diverges", "records"

keys = st.sampled_from(KEYS)
actions = st.one_of(
    st.tuples(st.just("follow"), keys),
    st.tuples(st.just("unfollow"), keys),
    st.tuples(st.just("answer"), st.dictionaries(keys, st.sampled_from([REFUSED, OUT_OF_RANGE, DIVERGES, RECORDS]))),
    st.tuples(st.just("silence"), st.none()),
    st.tuples(st.just("stored"), keys),
    st.tuples(st.just("not stored"), st.tuples(keys, st.booleans())),
    st.tuples(st.just("time"), st.sampled_from([1, 49, 50, 100, 200])),
)


class FullScan:
    """The wanted partitions, in order, with their positions: looked up anew for each fetch."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.followed: dict[PartitionKey, Wanted] = {}
        self.ready: dict[PartitionKey, None] = {}
        self.busy: set[PartitionKey] = set()
        self.failures: dict[PartitionKey, int] = {}
        self.paused: dict[PartitionKey, int] = {}
        self.asked: set[PartitionKey] = set()
        """Of the fetch in flight, without what has been let go or begun anew since."""

    @property
    def wanted(self) -> list[Wanted]:
        return [self.followed[key] for key in self.ready]

    def forget(self, key: PartitionKey) -> None:
        for table in (self.followed, self.ready, self.failures, self.paused):
            table.pop(key, None)
        self.busy.discard(key)
        self.asked.discard(key)

    def follow(self, wanted: Wanted) -> None:
        self.forget(wanted.key)
        self.followed[wanted.key] = wanted
        self.ready[wanted.key] = None

    def pause(self, key: PartitionKey) -> None:
        self.ready.pop(key, None)
        self.busy.discard(key)
        self.failures[key] = self.failures.get(key, 0) + 1
        self.paused[key] = self.now_ms + min(BACKOFF_MS, FIRST_BACKOFF_MS << (self.failures[key] - 1))

    def wake(self) -> None:
        for key in [key for key, until_ms in self.paused.items() if until_ms <= self.now_ms]:
            del self.paused[key]
            self.ready[key] = None


class Pair:
    """A follower and the scan, on the same events."""

    def __init__(self) -> None:
        self.machine = ReplicaFetcher(backoff_ms=BACKOFF_MS)
        self.scan = FullScan()
        self.standing: dict[PartitionKey, Wanted] = {}
        self.epoch = 0

    def step(self, event: Event, *, busy: Set[PartitionKey] = frozenset()) -> None:
        """`busy`: the partitions that the event gives work."""
        scan, effects = self.scan, self.machine.step(event, self.scan.now_ms)
        work = [effect for effect in effects if isinstance(effect, (Store, Cut, Restart))]
        assert {effect.key for effect in work} == busy
        for effect in work:
            del scan.ready[effect.key]
            scan.busy.add(effect.key)
            if isinstance(effect, Store):
                scan.failures.pop(effect.key, None)
        scan.wake()
        for fetch in effects:
            if isinstance(fetch, SendFetch):
                self.take(fetch)

    def take(self, fetch: SendFetch) -> None:
        assert not self.scan.asked
        for key in fetch.forgotten:
            del self.standing[key]
        for wanted in fetch.changed:
            self.standing.pop(wanted.key, None)
            self.standing[wanted.key] = wanted
        assert list(self.standing.values()) == self.scan.wanted
        assert len({*fetch.forgotten, *(one.key for one in fetch.changed)}) == len(fetch.forgotten) + len(fetch.changed)
        self.scan.asked = set(self.scan.ready)

    def answer(self, outcomes: dict[PartitionKey, str]) -> None:
        scan = self.scan
        asked, scan.asked = scan.asked, set()
        for key, outcome in outcomes.items():
            if outcome == REFUSED and key in asked:
                scan.pause(key)
        answers = tuple(_answer(key, outcome) for key, outcome in outcomes.items())
        busy = {key for key, outcome in outcomes.items() if outcome != REFUSED and key in asked}
        self.step(Answered(answers=answers), busy=busy)

    def stored(self, key: PartitionKey) -> None:
        scan = self.scan
        if key in scan.busy:
            scan.busy.remove(key)
            known = scan.followed[key]
            position = known.position._replace(end_offset=known.position.end_offset + 1)
            scan.followed[key] = known._replace(position=position)
            scan.ready[key] = None
            self.step(Stored(key=key, leader_epoch=known.leader_epoch, position=position))

    def not_stored(self, key: PartitionKey, is_final: bool) -> None:
        scan = self.scan
        if key in scan.busy:
            if is_final:
                scan.busy.remove(key)
            else:
                scan.pause(key)
            self.step(StoreFailed(key=key, leader_epoch=scan.followed[key].leader_epoch, is_final=is_final))

    def act(self, name: str, subject: object) -> None:
        match name, subject:
            case "follow", PartitionKey() as key:
                self.epoch += 1
                wanted = Wanted(key, self.epoch, Position(self.epoch, 0, 0, 0))
                self.scan.follow(wanted)
                self.step(Follow(key=key, leader_epoch=self.epoch, position=wanted.position))
            case "unfollow", PartitionKey() as key:
                self.scan.forget(key)
                self.step(Unfollow(key=key))
            case "answer", dict() as outcomes:
                self.answer(outcomes)
            case "silence", _:
                self.scan.asked.clear()
                self.step(Answered(answers=None))
            case "stored", PartitionKey() as key:
                self.stored(key)
            case "not stored", (PartitionKey() as key, bool() as is_final):
                self.not_stored(key, is_final)
            case "time", int() as passed_ms:
                self.scan.now_ms += passed_ms
                self.step(Tick())


def _answer(key: PartitionKey, outcome: str) -> FetchAnswer:
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER if outcome == REFUSED else ErrorCode.NONE
    diverging = OffsetAndEpoch(0, LeaderEpoch(0)) if outcome == DIVERGES else None
    if outcome == OUT_OF_RANGE:
        return FetchAnswer(key, ErrorCode.OFFSET_OUT_OF_RANGE, -1, 1 << 40, b"")
    return FetchAnswer(key, error, 0, 0, b"r" if outcome == RECORDS else b"", diverging)


@given(st.lists(actions, min_size=10, max_size=60))
def test_consecutive_fetches_name_all_wanted_partitions_in_their_order(
    steps: list[tuple[str, object]],
) -> None:
    pair = Pair()
    for key in KEYS[:3]:
        pair.act("follow", key)
    pair.act("time", 1)
    for name, subject in steps:
        pair.act(name, subject)
    for key in KEYS:  # at the end everything is fetched again
        pair.stored(key)
    pair.act("time", 10_000)
    pair.act("answer", {})
    pair.act("time", 10_000)
    if pair.scan.wanted:
        assert list(pair.standing.values()) == pair.scan.wanted
