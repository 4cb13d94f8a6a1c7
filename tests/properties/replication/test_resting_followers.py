"""A leader whose followers rest in a session, against a leader whose followers name all partitions with each fetch.

The broker's end of the session does no more than `SessionVisits` asks of it. After every event both leaders must agree
on all times, on the high watermark, and on the in-sync replicas that they propose.
"""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState
from tailrace.replication.leadership import Horizon, Leadership
from tailrace.replication.replica_progress import FollowerFetch, SessionVisits

LEADER, FOLLOWER = BrokerId(1), BrokerId(2)
PARTITIONS = 3
LAG_MS = 1_000

partitions = st.integers(0, PARTITIONS - 1)
actions = st.one_of(
    st.tuples(st.just("append"), partitions),
    st.tuples(st.just("fetch"), st.integers(0, 2)),
    st.tuples(st.just("fetch"), st.integers(0, 2)),
    st.tuples(st.just("time"), st.sampled_from([1, 300, 500, 999, 1_001, 3_600_000])),
    st.tuples(st.just("look"), partitions),
    st.tuples(st.just("exclude"), partitions),
    st.tuples(st.just("state"), partitions),
    st.tuples(st.just("leave"), partitions),
    st.tuples(st.just("enter"), partitions),
    st.tuples(st.just("register"), st.none()),
    st.tuples(st.just("fence"), st.booleans()),
    st.tuples(st.just("new session"), st.none()),
)


def state(partition_epoch: int, *, is_in_sync: bool) -> PartitionState:
    return PartitionState(
        topic_id=TopicId(b"t" * 16),
        replicas=(LEADER, FOLLOWER),
        in_sync_replicas=(LEADER, FOLLOWER) if is_in_sync else (LEADER,),
        leader=LEADER,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=partition_epoch,
    )


class LedPartition:
    """A partition: its leader as it sees full fetches, and as it sees a session."""

    def __init__(self, *, is_in_sync: bool) -> None:
        self.end = self.held = 0
        """The ends of the leader's log, and of the follower's."""
        self.high_watermark = 0
        first = state(0, is_in_sync=is_in_sync)
        self.full, self.session = (Leadership(first, own_id=LEADER, now_ms=0) for _ in range(2))

    def horizon(self, now_ms: int) -> Horizon:
        return Horizon(self.high_watermark, 0, self.end, now_ms, LAG_MS)

    def compare(self, now_ms: int) -> None:
        ends = [
            leadership.safe_end_offset(self.end, log_end_offset=self.end, now_ms=now_ms, lag_ms=LAG_MS)
            for leadership in (self.full, self.session)
        ]
        full, session = self.full.replicas[FOLLOWER], self.session.replicas[FOLLOWER]
        for name in ("end_offset", "caught_up_ms", "fetched_ms", "may_join", "broker_epoch"):
            assert getattr(full, name) == getattr(session, name), name
        assert ends[0] == ends[1]
        assert self.full.held_until_ms == self.session.held_until_ms
        assert self.full.reconsider(self.horizon(now_ms)) is self.session.reconsider(self.horizon(now_ms))
        self.high_watermark = max(self.high_watermark, ends[0])


class RestingBench:
    """A follower, its session, and the partitions that it follows."""

    def __init__(self, *, is_in_sync: bool) -> None:
        self.now_ms = 0
        self.broker_epoch, self.is_alive = 5, True
        self.led = [LedPartition(is_in_sync=is_in_sync) for _ in range(PARTITIONS)]
        self.visits = SessionVisits(broker_epoch=5, may_join=True)
        self.entries = set(range(PARTITIONS))
        self.dirty = set(self.entries)

    def fetch(self, records: int) -> None:
        """A fetch of the session, and its answer with up to so many records of each partition."""
        if not self.visits.holds_for(broker_epoch=self.broker_epoch, may_join=self.is_alive):
            self.begin_visits()
        for number in self.entries:
            partition = self.led[number]
            fetch = FollowerFetch(partition.held, 0, self.broker_epoch, self.is_alive)
            partition.full.take_fetch(FOLLOWER, fetch, partition.horizon(self.now_ms))
            if number in self.dirty:
                partition.session.take_fetch(FOLLOWER, fetch, partition.horizon(self.now_ms))
        self.visits.fetched(self.now_ms)
        for number in self.dirty.copy():
            partition = self.led[number]
            if partition.session.replicas[FOLLOWER].rest(self.visits, leader_end_offset=partition.end):
                self.dirty.remove(number)
            partition.held = min(partition.held + records, partition.end)

    def begin_visits(self) -> None:
        self.visits = SessionVisits(broker_epoch=self.broker_epoch, may_join=self.is_alive)
        self.dirty = set(self.entries)

    def act(self, name: str, subject: object) -> None:
        match name, subject:
            case "time", int() as passed_ms:
                self.now_ms += passed_ms
            case "fetch", int() as records:
                self.fetch(records)
            case "register", _:
                self.broker_epoch += 1
            case "fence", bool() as is_fenced:
                self.is_alive = not is_fenced
            case "new session", _:
                self.begin_visits()
            case _, int() as number:
                self.change(name, number)

    def change(self, name: str, number: int) -> None:
        partition = self.led[number]
        match name:
            case "append":
                partition.end += 1
            case "look":
                proposals = [
                    each.propose(partition.horizon(self.now_ms)) for each in (partition.full, partition.session)
                ]
                assert proposals[0] == proposals[1]
            case "exclude":
                for each in (partition.full, partition.session):
                    each.exclude([FOLLOWER])
            case "state":
                known = partition.full.state
                changed = state(known.partition_epoch + 1, is_in_sync=FOLLOWER not in known.in_sync_replicas)
                for each in (partition.full, partition.session):
                    each.take_state(changed)
            case "leave":
                self.entries.discard(number)
                partition.session.replicas[FOLLOWER].end_rest(self.visits)
            case "enter":
                self.entries.add(number)
        if name != "look":  # no news
            self.dirty.add(number)
        self.dirty &= self.entries


@given(st.lists(actions, min_size=10, max_size=60), st.booleans())
def test_a_resting_follower_is_seen_as_one_that_names_all_its_partitions(
    steps: list[tuple[str, object]], is_in_sync: bool
) -> None:
    bench = RestingBench(is_in_sync=is_in_sync)
    for name, subject in steps:
        bench.act(name, subject)
        for partition in bench.led:
            partition.compare(bench.now_ms)
