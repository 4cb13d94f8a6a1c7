"""A follower's fetches in turn, against a machine that names every partition in each fetch.

The fetches go through a session too, to a leader that knows the differences alone, and may lose them at any time.
"""

from collections.abc import Collection, Iterable, Set

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.machines import Tick
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tailrace.replication.fetch_requests import ReplicaFetchConfig, SessionFetches
from tailrace.replication.fetcher_events import (
    Answered,
    Cut,
    Event,
    FetchAnswer,
    Follow,
    PartitionKey,
    Position,
    Restart,
    SendFetch,
    Store,
    Stored,
    StoreFailed,
    Unfollow,
    Wanted,
)
from tailrace.replication.replica_fetcher import FIRST_BACKOFF_MS, ReplicaFetcher

KEYS = [PartitionKey(TopicId(name * 16), number) for name in (b"x", b"y") for number in (0, 1)]
BACKOFF_MS = 200
REFUSED, OUT_OF_RANGE, DIVERGES, RECORDS = "refused", "out of range", "diverges", "records"

keys = st.sampled_from(KEYS)
actions = st.one_of(
    st.tuples(st.just("follow"), keys),
    st.tuples(st.just("unfollow"), keys),
    st.tuples(st.just("answer"), st.dictionaries(keys, st.sampled_from([REFUSED, OUT_OF_RANGE, DIVERGES, RECORDS]))),
    st.tuples(st.just("silence"), st.booleans()),
    st.tuples(st.just("eviction"), st.none()),
    st.tuples(st.just("stored"), keys),
    st.tuples(st.just("not stored"), st.tuples(keys, st.booleans())),
    st.tuples(st.just("time"), st.sampled_from([1, 49, 50, 100, 200])),
)


sizes = st.sampled_from([1, 2, 1_000])


class FullScan:
    """The wanted partitions, in order, with their positions: looked up anew for each fetch."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.followed: dict[PartitionKey, Wanted] = {}
        self.ready: dict[PartitionKey, None] = {}
        self.busy: set[PartitionKey] = set()
        self.failures: dict[PartitionKey, int] = {}
        self.paused: dict[PartitionKey, int] = {}
        self.standing: set[PartitionKey] = set()
        """Named by a fetch, and ready without interruption since."""
        self.asked: set[PartitionKey] = set()
        """The partitions of the fetch in flight, without those that were dropped or begun anew since."""

    @property
    def wanted(self) -> list[Wanted]:
        return [self.followed[key] for key in self.ready]

    def forget(self, key: PartitionKey) -> None:
        for table in (self.followed, self.ready, self.failures, self.paused):
            table.pop(key, None)
        self.busy.discard(key)
        self.standing.discard(key)
        self.asked.discard(key)

    def follow(self, wanted: Wanted) -> None:
        self.forget(wanted.key)
        self.followed[wanted.key] = wanted
        self.ready[wanted.key] = None

    def pause(self, key: PartitionKey) -> None:
        self.ready.pop(key, None)
        self.standing.discard(key)
        self.busy.discard(key)
        self.failures[key] = self.failures.get(key, 0) + 1
        self.paused[key] = self.now_ms + min(BACKOFF_MS, FIRST_BACKOFF_MS << (self.failures[key] - 1))

    def wake(self) -> None:
        for key in [key for key, until_ms in self.paused.items() if until_ms <= self.now_ms]:
            del self.paused[key]
            self.ready[key] = None


class SessionLeader:
    """A leader's end of the session, by the text of KIP-227: its partitions, and the last answer of each partition."""

    def __init__(self) -> None:
        self.session_id = self.epoch = 0
        self.held: dict[PartitionKey, FetchPartition] = {}
        self.sent: dict[PartitionKey, int] = {}
        """The number of the answer. A partition that enters the session was sent nothing."""
        self.is_served = False
        self._answers = 0

    def take(self, request: FetchRequest) -> None:
        """Take a request that has arrived: it changes the session, or is refused."""
        topics = [(TopicId(bytes(topic.topic_id)), topic.partitions) for topic in request.topics]
        named = {
            PartitionKey(topic_id, partition.partition): partition for topic_id, given in topics for partition in given
        }
        if request.session_epoch == 0:
            self.session_id, self.epoch, self.held, self.sent = self.session_id + 1, 1, named, {}
            self.is_served = True
            return
        place = (request.session_id, request.session_epoch)
        self.is_served = bool(self.held) and place == (self.session_id, self.epoch)
        if self.is_served:
            self.epoch += 1
            self.held.update(named)
            for topic in request.forgotten_topics_data:
                for number in topic.partitions:
                    key = PartitionKey(TopicId(bytes(topic.topic_id)), number)
                    del self.held[key]
                    self.sent.pop(key, None)

    def send(self, keys: Iterable[PartitionKey]) -> int:
        """Count an answer as sent that has news of these partitions; its number."""
        self._answers += 1
        self.sent |= dict.fromkeys(keys, self._answers)
        return self._answers

    def response(self, keys: Collection[PartitionKey], *, is_full: bool) -> FetchResponse:
        """The answer to the last request, with these partitions, or with all of them."""
        if not self.is_served:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=())
        return FetchResponse(
            session_id=self.session_id if self.held else 0,
            responses=tuple(
                FetchableTopicResponse(topic_id=key.topic_id, partitions=(_no_records(key.partition),))
                for key in self.held
                if is_full or key in keys
            ),
        )


def _no_records(number: int) -> PartitionData:
    return PartitionData(partition_index=number, high_watermark=0, aborted_transactions=None, records=b"")


def _stated(wanted: Wanted) -> tuple[int, int, int, int]:
    """The facts that a leader has of a partition in a session."""
    position = wanted.position
    return wanted.leader_epoch, position.end_offset, position.last_epoch, position.log_start_offset


def _held(partition: FetchPartition) -> tuple[int, int, int, int]:
    return (
        partition.current_leader_epoch,
        partition.fetch_offset,
        partition.last_fetched_epoch,
        partition.log_start_offset,
    )


class Pair:
    """A follower and the scan, on the same events."""

    def __init__(self, max_changes: int, slice_size: int) -> None:
        """`max_changes` limits a fetch, `slice_size` a request of its session."""
        self.max_changes = max_changes
        self.machine = ReplicaFetcher(backoff_ms=BACKOFF_MS, max_changes=max_changes)
        self.scan = FullScan()
        self.standing: dict[PartitionKey, Wanted] = {}
        self.epoch = 0
        self.fetches = SessionFetches(broker_id=BrokerId(1), config=ReplicaFetchConfig(), max_partitions=slice_size)
        self.leader = SessionLeader()
        self.under_way: FetchRequest | None = None
        self.wanted_then: dict[PartitionKey, Wanted] = {}
        """By the scan, when the fetch under way was made."""
        self.stored_then: dict[PartitionKey, int] = {}
        self.storing: dict[PartitionKey, int] = {}
        self.stored_answers: dict[PartitionKey, int] = {}
        """The last answers that are stored."""

    def step(self, event: Event, *, busy: Set[PartitionKey] = frozenset()) -> None:
        """`busy`: the partitions that the event gives work."""
        scan, effects = self.scan, self.machine.step(event, self.scan.now_ms)
        work = [effect for effect in effects if isinstance(effect, (Store, Cut, Restart))]
        assert {effect.key for effect in work} == busy
        for effect in work:
            del scan.ready[effect.key]
            scan.standing.remove(effect.key)
            scan.busy.add(effect.key)
            if isinstance(effect, Store):
                scan.failures.pop(effect.key, None)
                self.storing[effect.key] = self.leader.sent[effect.key]
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
        if not fetch.has_more:
            assert list(self.standing.values()) == self.scan.wanted
        assert len(fetch.changed) + len(fetch.forgotten) <= self.max_changes
        assert len({partition.key for partition in fetch.changed}) == len(fetch.changed)
        assert len(set(fetch.forgotten)) == len(fetch.forgotten)
        self.scan.standing |= {partition.key for partition in fetch.changed}
        self.scan.asked = set(self.scan.standing)
        assert self.under_way is None
        self.under_way = self.fetches.request(fetch.changed, fetch.forgotten, has_more=fetch.has_more, broker_epoch=0)
        self.wanted_then, self.stored_then = dict(self.standing), dict(self.stored_answers)

    def arrive(self, request: FetchRequest) -> None:
        """The fetch is at the leader, which then has all that is wanted, unless other slices follow."""
        leader = self.leader
        leader.take(request)
        is_slice = request.max_wait_ms == 0
        if leader.is_served and not is_slice:
            assert {key: _held(partition) for key, partition in leader.held.items()} == {
                key: _stated(partition) for key, partition in self.wanted_then.items()
            }
            for key, number in leader.sent.items():
                assert self.stored_then.get(key) == number, "the leader counts as sent what was not stored"

    def answer(self, outcomes: dict[PartitionKey, str]) -> None:
        scan = self.scan
        request, self.under_way = self.under_way, None
        if request is None:
            self.step(Answered(answers=()))
            return
        asked, scan.asked = scan.asked, set()
        self.arrive(request)
        if self.leader.is_served:
            outcomes = {key: outcome for key, outcome in outcomes.items() if key in self.leader.held}
            self.leader.send(outcomes)
        else:
            outcomes = {}
        counted = self.fetches.answers(self.leader.response(outcomes, is_full=request.session_epoch == 0))
        assert counted is not None
        assert {partition.key for partition in counted} >= outcomes.keys()
        for key, outcome in outcomes.items():
            if outcome == REFUSED and key in asked:
                scan.pause(key)
        answers = tuple(_answer(key, outcome) for key, outcome in outcomes.items())
        busy = {key for key, outcome in outcomes.items() if outcome != REFUSED and key in asked}
        self.step(Answered(answers=answers), busy=busy)

    def silence(self, *, has_arrived: bool) -> None:
        """The fetch, or its answer, which may have had anything, is lost."""
        request, self.under_way = self.under_way, None
        if request is not None:
            if has_arrived:
                self.arrive(request)
                self.leader.send(self.leader.held)
            assert self.fetches.answers(None) is None
        self.scan.asked.clear()
        self.step(Answered(answers=None))

    def stored(self, key: PartitionKey) -> None:
        scan = self.scan
        if key in scan.busy:
            scan.busy.remove(key)
            known = scan.followed[key]
            position = known.position._replace(end_offset=known.position.end_offset + 1)
            scan.followed[key] = known._replace(position=position)
            scan.ready[key] = None
            if key in self.storing:
                self.stored_answers[key] = self.storing.pop(key)
            self.step(Stored(key=key, leader_epoch=known.leader_epoch, position=position))

    def not_stored(self, key: PartitionKey, is_final: bool) -> None:
        scan = self.scan
        if key in scan.busy:
            self.storing.pop(key, None)
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
                self.storing.pop(key, None)
                self.step(Follow(key=key, leader_epoch=self.epoch, position=wanted.position))
            case "unfollow", PartitionKey() as key:
                self.scan.forget(key)
                self.storing.pop(key, None)
                self.step(Unfollow(key=key))
            case "answer", dict() as outcomes:
                self.answer(outcomes)
            case "silence", bool() as has_arrived:
                self.silence(has_arrived=has_arrived)
            case "eviction", _:
                self.leader.held.clear()
                self.leader.sent.clear()
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


@given(st.lists(actions, min_size=10, max_size=60), sizes, sizes)
def test_consecutive_fetches_name_all_wanted_partitions_in_their_order(
    steps: list[tuple[str, object]], max_changes: int, slice_size: int
) -> None:
    pair = Pair(max_changes, slice_size)
    for key in KEYS[:3]:
        pair.act("follow", key)
    pair.act("time", 1)
    for name, subject in steps:
        pair.act(name, subject)
    for key in KEYS:  # at the end everything is fetched again
        pair.stored(key)
    pair.act("time", 10_000)
    for _ in range(6 * len(KEYS)):  # the slices
        pair.act("answer", {})
    pair.act("time", 10_000)
    if pair.scan.wanted:
        assert list(pair.standing.values()) == pair.scan.wanted
        assert pair.under_way is not None
        assert pair.under_way.max_wait_ms > 0
        pair.arrive(pair.under_way)
        assert pair.leader.is_served
