import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import LeaderEpoch, TopicId
from tailrace.model.machines import Tick
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.replication.fetcher_events import (
    Answered,
    AskLogStart,
    Cut,
    Effect,
    EndWait,
    Event,
    FetchAnswer,
    Follow,
    LogStartKnown,
    PartitionKey,
    Position,
    ReportRefusal,
    Restart,
    SendFetch,
    Store,
    Stored,
    StoreFailed,
    Unfollow,
)
from tailrace.replication.followed_partition import REFUSED_AFTER_MS, REPORTED_EVERY_MS
from tailrace.replication.follower_replica import cut_offset, may_cut
from tailrace.replication.replica_fetcher import FIRST_BACKOFF_MS, ReplicaFetcher
from tailrace.replication.throttle import ALL_PARTITIONS, ReplicationThrottle, ThrottleConfig
from tailrace.storage.epoch_cache import EpochCache, EpochEntry

A, B = (PartitionKey(TopicId(b"t" * 16), number) for number in (0, 1))
START = Position(0, -1, 0, 0)


class ReplicaFetcherBench:
    """A follower, and the partitions of its last fetch."""

    def __init__(
        self, *keys: PartitionKey, max_changes: int = 1_000, throttle: ReplicationThrottle | None = None
    ) -> None:
        self.machine = ReplicaFetcher(backoff_ms=1000, max_changes=max_changes, throttle=throttle)
        self.now_ms = 0
        self.effects: list[Effect] = []
        self.wanted: dict[PartitionKey, int] = {}  # fetch offsets, as the fetches so far have it
        for key in keys:
            self.follow(key)
        self.step(Tick())

    def step(self, event: Event) -> list[Effect]:
        self.effects = self.machine.step(event, self.now_ms)
        for fetch in self.fetches:
            for key in fetch.forgotten:
                del self.wanted[key]
            for change in fetch.changed:
                self.wanted.pop(change.key, None)
                self.wanted[change.key] = change.position.end_offset
        return self.effects

    def follow(self, key: PartitionKey, *, epoch: int = 3, position: Position = START) -> list[Effect]:
        return self.step(Follow(key=key, leader_epoch=epoch, position=position))

    def answer(self, *answers: FetchAnswer) -> list[Effect]:
        return self.step(Answered(answers=answers))

    def stored(self, key: PartitionKey, end: int, *, epoch: int = 3) -> list[Effect]:
        return self.step(Stored(key=key, leader_epoch=epoch, position=Position(end, 3, 0, 0)))

    @property
    def requested(self) -> list[tuple[PartitionKey, int]]:
        """The partitions and offsets for which the last step has asked the leader."""
        return list(self.wanted.items()) if self.fetches else []

    @property
    def fetches(self) -> list[SendFetch]:
        """The fetch of the last step, if it made a fetch."""
        fetches = [effect for effect in self.effects if isinstance(effect, SendFetch)]
        assert len(fetches) <= 1
        return fetches

    @property
    def changes(self) -> tuple[list[PartitionKey], list[PartitionKey]]:
        """The partitions that the fetch of the last step adds or changes, and the partitions that it forgets."""
        (fetch,) = self.fetches
        return [change.key for change in fetch.changed], list(fetch.forgotten)

    def later(self, milliseconds: int) -> list[Effect]:
        self.now_ms += milliseconds
        return self.step(Tick())


def records(key: PartitionKey, size: int = 1, *, high_watermark: int = 0, log_start: int = 0) -> FetchAnswer:
    return FetchAnswer(key, ErrorCode.NONE, high_watermark, log_start, b"r" * size)


def error(key: PartitionKey, code: ErrorCode, *, log_start: int = -1) -> FetchAnswer:
    return FetchAnswer(key, code, -1, log_start, b"")


def test_one_fetch_is_in_flight_at_a_time() -> None:
    bench = ReplicaFetcherBench(A)
    assert bench.requested == [(A, 0)]
    bench.follow(B)
    assert bench.requested == []
    bench.answer()
    assert bench.requested == [(A, 0), (B, 0)]


def test_a_new_partition_ends_the_wait_of_the_fetch_in_flight_once() -> None:
    bench = ReplicaFetcherBench(A)
    assert bench.follow(B) == [], "others follow at once: one request for all of them"
    assert bench.machine.next_deadline_ms is not None
    assert bench.machine.next_deadline_ms <= bench.now_ms
    assert bench.later(0) == [EndWait()]
    assert bench.later(0) == []
    bench.answer()
    assert bench.requested == [(A, 0), (B, 0)]
    assert bench.later(0) == []


def test_a_partition_that_is_refused_for_a_while_ends_the_wait_when_its_pause_is_over() -> None:
    """A follower may know of a new topic before its leader does."""
    bench = ReplicaFetcherBench(A, B)
    bench.answer(error(B, ErrorCode.UNKNOWN_TOPIC_ID))
    assert bench.requested == [(A, 0)]
    assert bench.later(FIRST_BACKOFF_MS) == [EndWait()]
    bench.answer()
    assert bench.requested == [(A, 0), (B, 0)]


def test_a_fetch_that_does_not_wait_is_not_asked_to_end_its_wait() -> None:
    """The leader answers a fetch at once if later fetches have more to say."""
    bench = ReplicaFetcherBench(A, B, max_changes=1)
    assert bench.fetches[0].has_more
    assert bench.later(0) == []


def test_a_partition_that_leaves_ends_no_wait() -> None:
    bench = ReplicaFetcherBench(A, B)
    assert bench.step(Unfollow(key=B)) == []
    assert bench.later(0) == []


def test_the_next_fetch_leaves_when_the_last_answer_is_stored() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.answer(records(A), records(B))
    assert [type(effect) for effect in bench.effects] == [Store, Store]
    bench.stored(B, 5)
    assert bench.requested == []
    bench.later(100_000)
    assert bench.requested == []
    bench.stored(A, 7)
    assert bench.requested == [(B, 5), (A, 7)]


def test_an_answer_without_news_is_followed_by_the_next_fetch() -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A, 0))
    assert [type(effect) for effect in bench.effects] == [Store], "the first one tells a high watermark"
    bench.stored(A, 0)
    bench.answer(records(A, 0))
    assert bench.requested == [(A, 0)]


def test_a_high_watermark_without_records_is_news() -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A, 0))
    bench.stored(A, 0)
    (effect,) = bench.answer(records(A, 0, high_watermark=4))
    assert isinstance(effect, Store)
    bench.stored(A, 0)
    (effect,) = bench.answer(records(A, 0, high_watermark=4, log_start=2))
    assert isinstance(effect, Store)


def test_a_partition_with_records_goes_to_the_end_of_the_next_fetch() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.answer(records(A))
    bench.stored(A, 1)
    assert [key for key, _ in bench.requested] == [B, A]


def test_a_fetch_says_only_what_has_changed_since_the_last_one() -> None:
    bench = ReplicaFetcherBench(A, B)
    assert bench.changes == ([A, B], [])
    bench.answer(records(A))
    bench.stored(A, 1)
    assert bench.changes == ([A], [])
    bench.answer()
    assert bench.changes == ([], [])
    bench.step(Answered(answers=None))
    bench.later(50)
    assert bench.changes == ([], []), "the wanted partitions outlive a fetch without an answer"
    bench.answer(error(B, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.changes == ([], [B])
    bench.later(50)
    bench.answer()
    assert bench.changes == ([B], [])


def test_a_partition_that_comes_and_goes_between_two_fetches_is_in_neither() -> None:
    bench = ReplicaFetcherBench(A)
    bench.follow(B)
    bench.step(Unfollow(key=B))
    bench.answer()
    assert bench.changes == ([], [])
    bench.step(Unfollow(key=A))
    bench.follow(A, epoch=4)
    bench.step(Unfollow(key=A))
    bench.follow(B)
    bench.answer()
    assert bench.changes == ([B], [A])


def test_a_second_answer_for_a_partition_is_ignored() -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A, 0))
    bench.stored(A, 0)
    bench.answer(records(A, 0), records(A))
    assert bench.requested == [(A, 0)]


def test_an_answer_without_a_fetch_is_dropped() -> None:
    bench = ReplicaFetcherBench(A)
    bench.step(Answered(answers=None))
    assert bench.answer(records(A)) == []


def test_a_pause_ends_with_the_epoch_in_which_it_began() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER), error(B, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    bench.follow(A, epoch=4)
    bench.step(Tick())
    bench.later(10)
    bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.machine.next_deadline_ms == 50
    bench.later(40)
    assert bench.requested == [(B, 0)]
    assert bench.machine.next_deadline_ms == 60
    bench.step(Unfollow(key=A))
    assert bench.machine.next_deadline_ms is None


def test_a_partition_in_error_pauses_alone_and_ever_longer() -> None:
    bench = ReplicaFetcherBench(A, B)
    pauses = []
    for _ in range(7):
        bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert [key for key, _ in bench.requested] == [B]
        until_ms = bench.machine.next_deadline_ms
        assert until_ms is not None
        pauses.append(until_ms - bench.now_ms)
        bench.later(until_ms - bench.now_ms)
        bench.answer()
        assert {key for key, _ in bench.requested} == {A, B}
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000]
    bench.answer(records(A, 0))
    bench.stored(A, 0)
    bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.machine.next_deadline_ms == bench.now_ms + 50, "a success ends the series"
    assert bench.machine.failed_answers == 8


def test_a_leader_that_does_not_answer_is_asked_again_later() -> None:
    bench = ReplicaFetcherBench(A)
    bench.step(Answered(answers=None))
    assert (bench.requested, bench.machine.next_deadline_ms) == ([], 50)
    assert bench.later(49) == []
    bench.later(1)
    assert bench.requested == [(A, 0)]
    bench.step(Answered(answers=None))
    assert bench.machine.next_deadline_ms == bench.now_ms + 100
    assert bench.machine.failed_fetches == 2


def test_a_new_leader_epoch_ends_the_wait_for_a_silent_leader() -> None:
    bench = ReplicaFetcherBench(A)
    bench.step(Answered(answers=None))
    bench.follow(A, epoch=4)
    assert bench.machine.next_deadline_ms == 0
    bench.step(Tick())
    assert bench.requested == [(A, 0)]


def test_an_answer_of_an_older_leader_epoch_is_ignored() -> None:
    bench = ReplicaFetcherBench(A)
    bench.follow(A, epoch=4)
    bench.answer(records(A))
    assert bench.requested == [(A, 0)]


def test_a_store_of_an_older_leader_epoch_is_ignored() -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A))
    bench.follow(A, epoch=4, position=Position(2, 3, 0, 0))
    bench.step(Tick())
    assert bench.requested == [(A, 2)]
    bench.stored(A, 9, epoch=3)
    bench.answer()
    assert bench.requested == [(A, 2)]


def test_an_answer_for_a_partition_that_is_not_followed_any_more_is_ignored() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.step(Unfollow(key=A))
    bench.answer(records(A), records(B))
    assert [type(effect) for effect in bench.effects] == [Store]
    assert len(bench.machine) == 1


def test_a_partition_that_leaves_while_it_is_stored_does_not_hold_up_others() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.answer(records(A))
    bench.step(Unfollow(key=A))
    assert bench.requested == [(B, 0)]


def test_nothing_is_asked_for_when_nothing_is_followed() -> None:
    bench = ReplicaFetcherBench(A)
    bench.step(Unfollow(key=A))
    bench.answer()
    assert (bench.effects, bench.machine.is_idle, bench.machine.next_deadline_ms) == ([], True, None)


def test_a_log_that_diverges_is_cut_while_the_others_go_on() -> None:
    bench = ReplicaFetcherBench(A, B)
    parting = OffsetAndEpoch(4, LeaderEpoch(2))
    bench.answer(FetchAnswer(A, ErrorCode.NONE, 9, 0, b"", parting))
    assert bench.effects[0] == Cut(key=A, leader_epoch=3, diverging=parting)
    assert bench.requested == [(B, 0)]
    bench.stored(A, 4)
    bench.answer()
    assert bench.requested == [(B, 0), (A, 4)]


def test_a_log_that_ends_before_its_leaders_begins_starts_anew_there() -> None:
    bench = ReplicaFetcherBench()
    bench.follow(A, position=Position(5, 2, 0, 5))
    bench.step(Tick())
    assert bench.answer(error(A, ErrorCode.OFFSET_OUT_OF_RANGE, log_start=8)) == [
        Restart(key=A, leader_epoch=3, log_start_offset=8)
    ]


def test_an_empty_log_out_of_range_starts_where_its_leaders_begins() -> None:
    bench = ReplicaFetcherBench()
    bench.follow(A, position=Position(50, -1, 50, 50))
    bench.step(Tick())
    assert bench.answer(error(A, ErrorCode.OFFSET_OUT_OF_RANGE, log_start=8)) == [
        Restart(key=A, leader_epoch=3, log_start_offset=8)
    ]


def test_a_log_with_records_is_not_dropped_because_a_leader_says_out_of_range() -> None:
    bench = ReplicaFetcherBench()
    bench.follow(A, position=Position(50, 2, 0, 50))
    bench.step(Tick())
    assert bench.answer(error(A, ErrorCode.OFFSET_OUT_OF_RANGE, log_start=8)) == []
    assert bench.machine.next_deadline_ms == 50


def test_a_leader_epoch_that_no_leader_had_is_cut_off() -> None:
    """No checksum covers the leader epoch: after one damaged bit the leader would never know the epoch of the fetch."""
    bench = ReplicaFetcherBench()
    bench.follow(A, position=Position(160, 536870916, 0, 150))
    bench.step(Tick())
    cut = Cut(key=A, leader_epoch=3, diverging=OffsetAndEpoch(160, LeaderEpoch(3)))
    assert bench.answer(error(A, ErrorCode.OFFSET_OUT_OF_RANGE, log_start=8)) == [cut]
    assert cut_offset(epochs((0, 0), (2, 100), (536870916, 155)), 160, cut.diverging) == 155
    bench.stored(A, 155)
    assert bench.requested == [(A, 155)]


def refuse(bench: ReplicaFetcherBench, code: ErrorCode, *, for_ms: int) -> list[ReportRefusal]:
    """Answer every fetch of A like this for a while; the reports."""
    reports = []
    until_ms = bench.now_ms + for_ms
    while bench.now_ms < until_ms:
        bench.answer(error(A, code))
        reports += [effect for effect in bench.effects if isinstance(effect, ReportRefusal)]
        assert bench.machine.next_deadline_ms is not None
        bench.later(bench.machine.next_deadline_ms - bench.now_ms)
    return reports


def test_a_partition_that_is_refused_for_ever_is_reported_at_once_and_then_each_minute() -> None:
    bench = ReplicaFetcherBench(A)
    code = ErrorCode.OFFSET_OUT_OF_RANGE
    assert refuse(bench, code, for_ms=REFUSED_AFTER_MS - 1000) == []
    assert bench.machine.refused == 0
    (report,) = refuse(bench, code, for_ms=30_000)
    assert (report.key, report.error) == (A, code)
    assert REFUSED_AFTER_MS <= report.for_ms <= REFUSED_AFTER_MS + 1000
    assert bench.machine.refused == 1
    assert len(refuse(bench, code, for_ms=4 * REPORTED_EVERY_MS)) in (3, 4)


def test_another_reason_is_another_refusal_and_a_good_answer_ends_it() -> None:
    bench = ReplicaFetcherBench(A)
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID] * 4
    assert [refuse(bench, code, for_ms=REFUSED_AFTER_MS - 1000) for code in codes] == [[]] * 8
    assert refuse(bench, ErrorCode.KAFKA_STORAGE_ERROR, for_ms=2 * REFUSED_AFTER_MS)
    assert bench.machine.refused == 1
    bench.answer(records(A, 0))
    assert bench.machine.refused == 0


@pytest.mark.parametrize(
    ("offset", "agreed_epoch", "unclean_epoch", "expected"),
    [
        (50, 3, -1, True),  # nothing committed goes
        (49, 3, -1, False),
        (49, 3, 4, True),  # an unclean election since then may have lost it
        (49, 4, 4, False),  # an election that this log has followed already has not
        (49, 5, 4, False),
        (49, -1, -1, False),
    ],
)
def test_below_its_high_watermark_a_log_is_cut_after_an_unclean_election_only(
    offset: int, agreed_epoch: int, unclean_epoch: int, expected: bool
) -> None:
    found = may_cut(offset, high_watermark=50, agreed_epoch=agreed_epoch, unclean_epoch=unclean_epoch)
    assert found is expected


@pytest.mark.parametrize("is_final", [True, False])
def test_a_failed_store_pauses_or_ends_the_partition(is_final: bool) -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A))
    bench.step(StoreFailed(key=A, leader_epoch=3, is_final=is_final))
    bench.later(1_000)
    assert bench.requested == ([] if is_final else [(A, 0)])
    assert bench.machine.broken == 1
    bench.follow(A, epoch=4)
    assert bench.machine.broken == 0


def test_a_partition_that_cannot_be_stored_is_counted_and_lags() -> None:
    """The bytes of its leader are damaged, say: then it is asked again and again, and the copy falls behind."""
    bench = ReplicaFetcherBench(A)
    damaged = records(A, high_watermark=7)
    bench.answer(damaged)
    bench.step(StoreFailed(key=A, leader_epoch=3, is_final=False))
    assert (bench.machine.broken, bench.machine.max_lag) == (1, 7)
    bench.later(1_000)
    bench.answer(damaged)
    bench.step(StoreFailed(key=A, leader_epoch=3, is_final=False))
    assert (bench.machine.broken, bench.machine.max_lag) == (1, 7)
    bench.later(1_000)
    bench.answer(FetchAnswer(A, ErrorCode.NONE, 7, 0, b""))  # also what brings no records is taken over again
    bench.stored(A, 7)
    assert (bench.machine.broken, bench.machine.max_lag) == (0, 0)


def test_the_lag_is_counted_against_the_leaders_high_watermark() -> None:
    bench = ReplicaFetcherBench(A)
    assert bench.machine.max_lag == 0
    bench.answer(records(A, high_watermark=30))
    bench.stored(A, 12)
    assert bench.machine.max_lag == 18


def epochs(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(tuple(EpochEntry(epoch, start) for epoch, start in entries))


@pytest.mark.parametrize(
    ("own", "end", "diverging", "cut"),
    [
        # KIP-101: the leader's epoch 2 ends at 7, ours goes on to 10.
        (epochs((0, 0), (2, 5)), 10, (7, 2), 7),
        # Ours is shorter than the leader's: only what came after it goes.
        (epochs((0, 0), (2, 5), (3, 6)), 10, (8, 2), 6),
        # KIP-279: the leader knows nothing of our epoch 3; all of it goes, and the next fetch is about epoch 1.
        (epochs((0, 0), (1, 4), (3, 6)), 10, (8, 2), 6),
        # The leader's log is older than all of ours.
        (epochs((5, 20)), 30, (12, 3), 12),
        (epochs(), 30, (12, 3), 12),
    ],
)
def test_a_log_is_cut_where_its_epochs_part_from_the_leaders(
    own: EpochCache, end: int, diverging: tuple[int, int], cut: int
) -> None:
    offset, epoch = diverging
    assert cut_offset(own, end, OffsetAndEpoch(offset, LeaderEpoch(epoch))) == cut


def throttle_of(*partitions: int, bytes_per_second: int) -> ReplicationThrottle:
    made = ReplicationThrottle(ThrottleConfig())
    made.quota.bytes_per_second = bytes_per_second
    made.set_partitions(A.topic_id, frozenset(partitions) or ALL_PARTITIONS)
    return made


def behind(key: PartitionKey, size_bytes: int) -> FetchAnswer:
    """Records of a leader that has committed far more."""
    return FetchAnswer(key, ErrorCode.NONE, 1_000_000, 0, bytes(size_bytes))


def test_a_throttled_replica_that_is_behind_pauses_until_the_rate_has_come_down() -> None:
    bench = ReplicaFetcherBench(A, B, throttle=throttle_of(A.partition, bytes_per_second=2_000))
    bench.answer(behind(A, 3_600), behind(B, 3_600))
    bench.stored(B, 5)
    bench.stored(A, 5)
    assert bench.requested == [(B, 5)], "the other partition is not throttled"
    bench.answer(behind(B, 3_600))
    bench.later(900)
    bench.stored(B, 9)
    assert bench.requested == [(B, 9)]
    assert bench.machine.next_deadline_ms == 1_000, "a rate that is raised counts within a second"
    bench.later(100)
    bench.answer(behind(B, 0))
    assert bench.requested == [(B, 9)], "3,600 bytes in one second are still too much"
    bench.later(800)
    bench.answer(behind(B, 0))
    assert bench.requested == [(B, 9), (A, 5)]


def test_a_throttled_replica_that_has_what_is_committed_is_fetched_always() -> None:
    throttle = throttle_of(bytes_per_second=1)
    bench = ReplicaFetcherBench(A, throttle=throttle)
    bench.answer(records(A, 5_000, high_watermark=0))
    bench.stored(A, 7)
    assert bench.requested == [(A, 7)]
    assert throttle.holds_until_ms(bench.now_ms) is not None, "its bytes count all the same"


def test_the_first_fetch_of_an_epoch_is_never_held_back() -> None:
    """The replica may be in sync: acks=all would wait for it after each election."""
    throttle = throttle_of(bytes_per_second=1)
    throttle.count(*A, 1_000_000, 0)
    bench = ReplicaFetcherBench(A, throttle=throttle)
    assert bench.requested == [(A, 0)]
    bench.answer(behind(A, 10))
    bench.stored(A, 1)
    assert bench.requested == []


def test_a_replica_is_held_back_though_its_last_answer_was_empty() -> None:
    """A leader that is throttled itself gives nothing; meanwhile other partitions use up the rate."""
    throttle = throttle_of(bytes_per_second=1_000)
    bench = ReplicaFetcherBench(A, B, throttle=throttle)
    bench.answer(behind(A, 0), behind(B, 0))
    bench.stored(A, 0)
    bench.stored(B, 0)
    throttle.count(*B, 1_000_000, bench.now_ms)
    bench.answer(behind(A, 0), behind(B, 0))
    assert bench.requested == []
    assert bench.machine.next_deadline_ms == 1_000


def test_a_held_back_replica_can_be_unfollowed_and_followed_anew() -> None:
    throttle = throttle_of(bytes_per_second=1)
    bench = ReplicaFetcherBench(A, throttle=throttle)
    bench.answer(behind(A, 100))
    bench.stored(A, 1)
    assert bench.requested == []
    bench.follow(A, epoch=4)
    bench.later(0)
    assert bench.requested == [(A, 0)]
    bench.step(Unfollow(key=A))
    bench.answer()
    assert bench.machine.next_deadline_ms is None


# Many changes


def test_a_fetch_states_a_limited_number_of_changes_and_the_next_one_goes_on() -> None:
    bench = ReplicaFetcherBench(A, B, max_changes=1)
    assert (bench.changes, bench.fetches[0].has_more) == (([A], []), True)
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([B], []), False)
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([], []), False)


def test_partitions_leave_before_others_enter() -> None:
    bench = ReplicaFetcherBench(A, max_changes=1)
    bench.follow(B)
    bench.step(Unfollow(key=A))
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([], [A]), True)
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([B], []), False)


def test_an_answer_for_a_partition_whose_new_position_is_not_stated_yet_is_not_counted_as_stored() -> None:
    """The leader has sent the answer, perhaps with another high watermark, for the old position."""
    bench = ReplicaFetcherBench(A, B, max_changes=1)
    bench.answer()
    bench.answer(records(A), records(B))
    bench.stored(A, 1)
    bench.stored(B, 1)
    assert (bench.changes, bench.fetches[0].has_more) == (([A], []), True)
    assert not [effect for effect in bench.answer(records(B, high_watermark=1)) if isinstance(effect, Store)]
    assert (bench.changes, bench.fetches[0].has_more) == (([], [B]), True)
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([B], []), False)


KAFKAS_REFUSAL = FetchAnswer(A, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, b"")
ASKED = AskLogStart(key=A, leader_epoch=3)


def known(log_start_offset: int, *, epoch: int = 3) -> LogStartKnown:
    return LogStartKnown(key=A, leader_epoch=epoch, log_start_offset=log_start_offset)


def out_of_range(position: Position) -> ReplicaFetcherBench:
    """A follower whose leader, a Kafka broker, has refused it without a log start."""
    bench = ReplicaFetcherBench()
    bench.follow(A, position=position)
    bench.step(Tick())
    assert bench.answer(KAFKAS_REFUSAL) == [ASKED]
    return bench


@pytest.mark.parametrize(
    ("position", "log_start"),
    [(Position(10, 2, 0, 10), 11), (Position(0, -1, 0, 0), 7), (Position(9, -1, 9, 0), 4)],
    ids=["its log ends before", "it is new", "it is empty"],
)
def test_a_log_that_is_out_of_a_kafka_leaders_range_begins_where_the_leaders_does(
    position: Position, log_start: int
) -> None:
    bench = out_of_range(position)
    assert bench.step(known(log_start)) == [Restart(key=A, leader_epoch=3, log_start_offset=log_start)]
    assert bench.later(100_000) == [], "not while the log is restarted"
    bench.stored(A, log_start)
    assert bench.requested == [(A, log_start)]


@pytest.mark.parametrize("log_start", [0, 3, 10])
def test_a_log_start_that_is_in_its_own_log_empties_no_follower(log_start: int) -> None:
    """The refusal may come from a leader that lacks records which are here."""
    bench = out_of_range(Position(10, 2, 0, 10))
    assert bench.step(known(log_start)) == []
    bench.later(50)
    assert bench.requested == [(A, 10)]
    assert bench.answer(KAFKAS_REFUSAL) == [ASKED], "each refusal asks again"


def test_a_log_start_that_comes_late_counts_for_nothing() -> None:
    bench = out_of_range(Position(10, 2, 0, 10))
    assert bench.step(known(50, epoch=2)) == []
    bench.later(50)
    assert bench.requested == [(A, 10)]
    assert bench.step(known(50)) == [], "another fetch is under way"
    bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.step(known(50)) == [], "the leader refuses it for another reason by now"
    bench.step(Unfollow(key=A))
    assert bench.step(known(50)) == []


def test_a_refusal_with_a_log_start_asks_nothing() -> None:
    bench = ReplicaFetcherBench()
    bench.follow(A, position=Position(10, 2, 0, 10))
    bench.step(Tick())
    assert bench.answer(KAFKAS_REFUSAL._replace(log_start_offset=3)) == []
