"""Long polls: woken by partitions, bounded in number, and none lost by the failure of another."""

import gc
import weakref
from collections.abc import Mapping

import pytest

from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change, Watcher
from tailrace.server.waiters import CROWDED_WAIT_MS, MAX_POLLS, MAX_REPLICA_POLLS, MAX_WATCHED, Deadlines, LongPolls
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.clocks import BusyClock
from testkit.nodes.data_path import DataPath
from testkit.nodes.ports import RecordingConnection


class Poll:
    """A long poll that is answered at its `tries_needed`-th try."""

    def __init__(self, *partitions: Partition, tries_needed: int = 1) -> None:
        self.partitions = list(partitions)
        self.watched = len(partitions)
        self.is_from_replica = False
        self.replica_id = -1
        self.tries: list[bool] = []
        self.moved: list[Partition | None] = []
        self.tries_needed = tries_needed

    def watch(self, watcher: Watcher) -> None:
        for partition in self.partitions:
            partition.watch(watcher, Change.HIGH_WATERMARK)

    def unwatch(self, watcher: Watcher) -> None:
        for partition in self.partitions:
            partition.unwatch(watcher)

    def retry(self, moved: Mapping[Partition | None, int], *, is_last: bool) -> bool:
        self.tries.append(is_last)
        self.moved += moved
        return is_last or len(self.tries) >= self.tries_needed


class FailingPoll(Poll):
    """A long poll whose handler has a fault."""

    def retry(self, moved: Mapping[Partition | None, int], *, is_last: bool) -> bool:
        super().retry(moved, is_last=is_last)
        raise ZeroDivisionError


class SlowPoll(Poll):
    """A long poll that takes 2 ms to be answered."""

    def __init__(self, clock: BusyClock, *partitions: Partition) -> None:
        super().__init__(*partitions)
        self._clock = clock

    def retry(self, moved: Mapping[Partition | None, int], *, is_last: bool) -> bool:
        self._clock.spend(2)
        return super().retry(moved, is_last=is_last)


class LongPollsBench:
    def __init__(self) -> None:
        self.clock = BusyClock()
        self.deadlines = Deadlines(self.clock)
        self.polls = LongPolls(clock=self.clock, deadlines=self.deadlines)
        node = DataPath("/logs", files=SimulatedDisk(), clock=self.clock)
        self.node = node
        self.a, self.b = node.create("a"), node.create("b")
        self.connection = RecordingConnection()


@pytest.fixture
def bench() -> LongPollsBench:
    return LongPollsBench()


def test_a_poll_is_tried_once_for_all_partitions_that_moved_in_a_turn(bench: LongPollsBench) -> None:
    poll = Poll(bench.a, bench.b)
    bench.polls.park(poll, bench.connection, 500)
    bench.node.produce("a", b"1", same_turn=True)
    bench.node.produce("b", b"2", same_turn=True)
    bench.node.end_turn()
    assert poll.tries == [False]
    assert len(bench.polls) == 0


def test_a_poll_that_is_not_content_goes_on_waiting(bench: LongPollsBench) -> None:
    poll = Poll(bench.a, tries_needed=3)
    bench.polls.park(poll, bench.connection, 500)
    bench.node.produce("a", b"1")
    bench.node.produce("a", b"2")
    assert poll.tries == [False, False]
    bench.clock.advance(500)
    assert poll.tries == [False, False, True]
    assert len(bench.polls) == len(bench.deadlines) == 0


def test_a_poll_receives_the_partitions_that_have_moved_and_wakes_for_each_again(bench: LongPollsBench) -> None:
    """Looking at all of thousands of partitions for a partition that has moved would make every append cost as much."""
    poll = Poll(bench.a, bench.b, tries_needed=5)
    bench.polls.park(poll, bench.connection, 500)
    for topic in ("a", "b", "b", "a"):
        bench.node.produce(topic, b"1")
    assert poll.moved == [bench.a, bench.b, bench.b, bench.a]


def test_a_partition_that_moves_twice_before_a_poll_has_its_turn_is_named_once(bench: LongPollsBench) -> None:
    """The poll's watcher stays armed, and the first turn has no time left for this poll."""
    for _ in range(3):
        bench.polls.park(SlowPoll(bench.clock, bench.a), RecordingConnection(), 500)
    poll = Poll(bench.a, bench.b)
    bench.polls.park(poll, bench.connection, 500)
    bench.node.produce("a", b"1", same_turn=True)
    bench.node.table.write_staged()
    bench.node.produce("a", b"2", same_turn=True)
    bench.node.table.write_staged()
    bench.node.produce("b", b"3", same_turn=True)
    bench.node.end_turn()
    bench.clock.advance(10)
    assert poll.moved == [bench.a, bench.b]


def test_a_poll_that_was_answered_is_forgotten_by_its_partitions(bench: LongPollsBench) -> None:
    poll = Poll(bench.a, bench.b)
    bench.polls.park(poll, bench.connection, 500)
    bench.node.produce("a", b"1")
    assert poll.tries == [False]
    alive = weakref.ref(poll)
    del poll
    gc.collect()
    assert alive() is None


def test_a_closed_connection_drops_its_polls(bench: LongPollsBench) -> None:
    poll = Poll(bench.a)
    bench.polls.park(poll, bench.connection, 500)
    bench.connection.hang_up()
    assert len(bench.polls) == len(bench.deadlines) == 0
    bench.node.produce("a", b"1")
    bench.clock.advance(1000)
    assert poll.tries == []


def test_a_thousand_polls_of_one_connection_leave_one_callback_with_it(bench: LongPollsBench) -> None:
    for _ in range(1000):
        bench.polls.park(Poll(bench.a), bench.connection, 10)
        bench.clock.advance(10)
    assert bench.connection.callbacks == 1


def test_a_long_poll_is_not_tried_while_nothing_moves(bench: LongPollsBench) -> None:
    poll = Poll(bench.a)
    bench.polls.park(poll, bench.connection, 60_000)
    bench.node.produce("b", b"1")
    bench.clock.advance(59_999)
    assert poll.tries == []


def test_before_a_stop_every_poll_is_answered_with_what_there_is(bench: LongPollsBench) -> None:
    first, second = Poll(bench.a, tries_needed=9), Poll(bench.a, bench.b, tries_needed=9)
    bench.polls.park(first, bench.connection, 500)
    bench.polls.park(second, RecordingConnection(), 900)
    bench.polls.answer_all()
    assert (first.tries, second.tries) == ([True], [True])
    assert (len(bench.polls), len(bench.deadlines)) == (0, 0)


def crowd(bench: LongPollsBench, polls: int = MAX_POLLS) -> None:
    """Park a poll of each of so many clients."""
    for _ in range(polls):
        assert bench.polls.park(Poll(bench.a), RecordingConnection(), 60_000)


def test_so_many_polls_may_wait_and_as_many_again_when_they_have_gone(bench: LongPollsBench) -> None:
    crowd(bench)
    woken = Poll(bench.b)
    bench.polls.park(woken, bench.connection, 60_000)
    bench.node.produce("b", b"1")
    assert woken.tries == [], "beyond the limit, so not woken"
    bench.clock.advance(CROWDED_WAIT_MS)
    assert woken.tries == [True]
    bench.node.produce("a", b"1")
    assert len(bench.polls) == len(bench.deadlines) == 0
    assert bench.polls.park(woken, bench.connection, 60_000)
    bench.node.produce("b", b"1")
    assert woken.tries == [True, False]


def test_a_long_poll_beyond_the_limit_waits_a_little_and_not_longer_than_it_wants(bench: LongPollsBench) -> None:
    """Were it answered at once, its client would ask again at once."""
    crowd(bench)
    patient, hasty = Poll(bench.a), Poll(bench.a)
    assert bench.polls.park(patient, RecordingConnection(), 60_000)
    assert bench.polls.park(hasty, RecordingConnection(), CROWDED_WAIT_MS // 2)
    bench.clock.advance(CROWDED_WAIT_MS // 2)
    assert (patient.tries, hasty.tries) == ([], [True])
    bench.clock.advance(CROWDED_WAIT_MS // 2)
    assert patient.tries == [True]
    assert len(bench.polls) == len(bench.deadlines) == MAX_POLLS


def test_polls_that_wait_beyond_the_limit_are_bounded_too(bench: LongPollsBench) -> None:
    crowd(bench, 2 * MAX_POLLS)
    assert not bench.polls.park(Poll(bench.a), bench.connection, 60_000)


def test_a_poll_beyond_the_limit_no_longer_counts_when_its_connection_closes(bench: LongPollsBench) -> None:
    crowd(bench)
    assert bench.polls.park(Poll(bench.a), bench.connection, 60_000)
    bench.connection.hang_up()
    assert len(bench.polls) == len(bench.deadlines) == MAX_POLLS


def test_a_connection_has_half_of_the_long_polls_and_then_one(bench: LongPollsBench) -> None:
    parked = [bench.polls.park(Poll(bench.a), bench.connection, 60_000) for _ in range(MAX_POLLS)]
    assert parked.count(True) == MAX_POLLS // 2
    other = RecordingConnection()
    assert bench.polls.park(Poll(bench.a), other, 60_000)
    assert not bench.polls.park(Poll(bench.a), other, 60_000), "its answer would wait for the first one's"


def test_followers_have_a_limit_of_their_own(bench: LongPollsBench) -> None:
    crowd(bench)
    fetch = Poll(bench.a)
    fetch.is_from_replica = True
    assert bench.polls.park(fetch, bench.connection, 500)
    bench.clock.advance(CROWDED_WAIT_MS)
    assert fetch.tries == [], "it waits as long as it wants"
    bench.node.produce("a", b"1")
    assert fetch.tries == [False]


def test_another_request_of_a_follower_ends_its_poll_and_no_other(bench: LongPollsBench) -> None:
    fetches = [Poll(bench.a) for _ in range(3)]
    for replica_id, fetch in zip((2, 3), fetches, strict=False):
        fetch.is_from_replica, fetch.replica_id = True, replica_id
    for fetch in fetches:
        assert bench.polls.park(fetch, bench.connection, 60_000)
    bench.polls.end_of_replica(bench.connection, 3)
    assert [fetch.tries for fetch in fetches] == [[], [True], []]


def test_followers_do_not_count_against_the_limit_of_clients(bench: LongPollsBench) -> None:
    for _ in range(MAX_REPLICA_POLLS):
        fetch = Poll(bench.a)
        fetch.is_from_replica = True
        assert bench.polls.park(fetch, RecordingConnection(), 60_000)
    crowd(bench)
    bench.clock.advance(CROWDED_WAIT_MS)
    assert len(bench.polls) == MAX_REPLICA_POLLS + MAX_POLLS, "all of them still wait"


def test_polls_of_very_many_partitions_count_as_many(bench: LongPollsBench) -> None:
    halves = [Poll(*[bench.a] * (MAX_WATCHED // 2)) for _ in range(2)]
    connections = [RecordingConnection() for _ in range(2)]
    for half, connection in zip(halves, connections, strict=True):
        assert bench.polls.park(half, connection, 60_000)
    late = Poll(bench.a)
    assert bench.polls.park(late, bench.connection, 60_000)
    bench.clock.advance(CROWDED_WAIT_MS)
    assert late.tries == [True]
    connections[0].hang_up()
    assert bench.polls.park(late, bench.connection, 60_000)
    bench.node.produce("a", b"1")
    assert (late.tries, len(bench.polls)) == ([True, False], 0)


def test_a_poll_that_fails_costs_its_connection_and_no_other_poll(bench: LongPollsBench) -> None:
    """Answers leave in the order of their requests: behind an answer that never comes all later answers would wait."""
    failing, other = FailingPoll(bench.a, tries_needed=9), Poll(bench.a)
    connection = RecordingConnection()
    bench.polls.park(failing, connection, 500)
    bench.polls.park(other, bench.connection, 500)
    with pytest.raises(ZeroDivisionError):
        bench.node.produce("a", b"1")
    assert (failing.tries, other.tries) == ([False], [False])
    assert (connection.is_open, bench.connection.is_open) == (False, True)
    assert len(bench.polls) == len(bench.deadlines) == 0
    poll = Poll(bench.a)
    bench.polls.park(poll, bench.connection, 500)
    bench.node.produce("a", b"2")
    assert poll.tries == [False]


def test_a_poll_that_fails_at_its_deadline_costs_its_connection_and_no_other_poll(bench: LongPollsBench) -> None:
    failing, other = FailingPoll(bench.a), Poll(bench.a)
    connection = RecordingConnection()
    bench.polls.park(failing, connection, 500)
    bench.polls.park(other, bench.connection, 500)
    with pytest.raises(ZeroDivisionError):
        bench.clock.advance(500)
    assert (failing.tries, other.tries) == ([True], [True])
    assert not connection.is_open
    assert len(bench.polls) == len(bench.deadlines) == 0


def test_a_poll_whose_answer_closes_its_connection_is_dropped_once(bench: LongPollsBench) -> None:
    """A response that cannot be encoded closes its connection in this way."""
    connection = RecordingConnection()

    class Closing(Poll):
        def retry(self, moved: Mapping[Partition | None, int], *, is_last: bool) -> bool:
            connection.close("the answer has no form")
            return super().retry(moved, is_last=is_last)

    for tries_needed in (1, 2):
        connection.is_open = True
        bench.polls.park(Closing(bench.a, tries_needed=tries_needed), connection, 500)
        bench.node.produce("a", b"1")
        assert len(bench.polls) == len(bench.deadlines) == 0


def test_before_a_stop_a_poll_that_fails_keeps_no_other_from_its_answer(bench: LongPollsBench) -> None:
    failing, other = FailingPoll(bench.a), Poll(bench.a)
    bench.polls.park(failing, RecordingConnection(), 500)
    bench.polls.park(other, bench.connection, 500)
    with pytest.raises(ZeroDivisionError):
        bench.polls.answer_all()
    assert other.tries == [True]


def test_a_broken_invariant_in_a_poll_is_raised_at_once(bench: LongPollsBench) -> None:
    """The process stops: no answer is right any more."""

    class BrokenPoll(Poll):
        def retry(self, moved: Mapping[Partition | None, int], *, is_last: bool) -> bool:
            raise AssertionError

    other = Poll(bench.a)
    bench.polls.park(BrokenPoll(bench.a), RecordingConnection(), 500)
    bench.polls.park(other, bench.connection, 500)
    with pytest.raises(AssertionError):
        bench.node.produce("a", b"1")
    assert other.tries == []


def test_very_many_woken_polls_are_answered_in_several_turns(bench: LongPollsBench) -> None:
    """Otherwise all their records would be in memory at once, and every other request would wait for the last poll."""
    polls = [SlowPoll(bench.clock, bench.a) for _ in range(10)]
    for poll in polls:
        bench.polls.park(poll, bench.connection, 60_000)
    answered: list[int] = []
    end_turn = bench.clock.on_turn_end

    def count_and_end_turn() -> None:
        answered.append(sum(len(poll.tries) for poll in polls))
        end_turn()

    bench.clock.on_turn_end = count_and_end_turn
    bench.node.produce("a", b"1")
    while len(bench.polls):
        bench.clock.advance(10)
    assert sorted({0, *answered}) == [0, 3, 6, 9, 10]
    assert all(poll.tries == [False] for poll in polls)
