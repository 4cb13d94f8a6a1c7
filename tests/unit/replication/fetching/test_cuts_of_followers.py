"""The log of a follower that parts from its leader's: where it is cut, and where it begins anew."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.replication.fetcher_events import (
    AskLogStart,
    Cut,
    FetchAnswer,
    LogStartKnown,
    Position,
    Restart,
    Unfollow,
)
from tailrace.replication.follower_replica import cut_offset, may_cut
from tailrace.storage.epoch_cache import EpochCache, EpochEntry
from unit.replication.fetching.fetcher_bench import A, B, ReplicaFetcherBench, error


def epochs(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(tuple(EpochEntry(epoch, start) for epoch, start in entries))


def test_a_followers_log_that_diverges_is_cut_while_other_partitions_go_on() -> None:
    bench = ReplicaFetcherBench(A, B)
    parting = OffsetAndEpoch(4, LeaderEpoch(2))
    bench.answer(FetchAnswer(A, ErrorCode.NONE, 9, 0, b"", parting))
    assert bench.effects[0] == Cut(key=A, leader_epoch=3, diverging=parting)
    assert bench.requested == [(B, 0)]
    bench.stored(A, 4)
    bench.answer()
    assert bench.requested == [(B, 0), (A, 4)]


@pytest.mark.parametrize(
    "position", [Position(5, 2, 0, 5), Position(50, -1, 50, 50)], ids=["it ends before", "it is empty"]
)
def test_a_followers_log_that_is_out_of_its_leaders_range_starts_anew_where_the_leaders_begins(
    position: Position,
) -> None:
    answer = error(A, ErrorCode.OFFSET_OUT_OF_RANGE, log_start=8)
    assert ReplicaFetcherBench.at(position).answer(answer) == [Restart(key=A, leader_epoch=3, log_start_offset=8)]


def test_a_followers_log_with_records_is_not_dropped_because_a_leader_says_out_of_range() -> None:
    bench = ReplicaFetcherBench.at(Position(50, 2, 0, 50))
    assert bench.answer(error(A, ErrorCode.OFFSET_OUT_OF_RANGE, log_start=8)) == []
    assert bench.machine.next_deadline_ms == 50


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
def test_a_followers_log_is_cut_where_its_epochs_part_from_the_leaders(
    own: EpochCache, end: int, diverging: tuple[int, int], cut: int
) -> None:
    offset, epoch = diverging
    assert cut_offset(own, end, OffsetAndEpoch(offset, LeaderEpoch(epoch))) == cut


@pytest.mark.parametrize(
    ("position", "log_start"),
    [(Position(10, 2, 0, 10), 11), (Position(0, -1, 0, 0), 7), (Position(9, -1, 9, 0), 4)],
    ids=["its log ends before", "it is new", "it is empty"],
)
def test_a_followers_log_that_is_out_of_a_kafka_leaders_range_begins_where_the_leaders_does(
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


def test_a_leaders_log_start_that_comes_late_counts_for_nothing() -> None:
    bench = out_of_range(Position(10, 2, 0, 10))
    assert bench.step(known(50, epoch=2)) == []
    bench.later(50)
    assert bench.requested == [(A, 10)]
    assert bench.step(known(50)) == [], "another fetch is under way"
    bench.answer(error(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.step(known(50)) == [], "the leader refuses it for another reason by now"
    bench.step(Unfollow(key=A))
    assert bench.step(known(50)) == []


def test_a_followers_log_is_cut_at_a_leader_epoch_that_no_leader_had() -> None:
    """No checksum covers the leader epoch: after one damaged bit the leader would never know the epoch of the fetch."""
    bench = ReplicaFetcherBench.at(Position(160, 536870916, 0, 150))
    cut = Cut(key=A, leader_epoch=3, diverging=OffsetAndEpoch(160, LeaderEpoch(3)))
    assert bench.answer(error(A, ErrorCode.OFFSET_OUT_OF_RANGE, log_start=8)) == [cut]
    assert cut_offset(epochs((0, 0), (2, 100), (536870916, 155)), 160, cut.diverging) == 155
    bench.stored(A, 155)
    assert bench.requested == [(A, 155)]


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
def test_a_followers_log_is_cut_below_its_high_watermark_after_an_unclean_election_only(
    offset: int, agreed_epoch: int, unclean_epoch: int, expected: bool
) -> None:
    found = may_cut(offset, high_watermark=50, agreed_epoch=agreed_epoch, unclean_epoch=unclean_epoch)
    assert found is expected


KAFKAS_REFUSAL = FetchAnswer(A, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, b"")
ASKED = AskLogStart(key=A, leader_epoch=3)


def known(log_start_offset: int, *, epoch: int = 3) -> LogStartKnown:
    return LogStartKnown(key=A, leader_epoch=epoch, log_start_offset=log_start_offset)


def out_of_range(position: Position) -> ReplicaFetcherBench:
    """A follower whose leader, a Kafka broker, has refused it without a log start."""
    bench = ReplicaFetcherBench.at(position)
    assert bench.answer(KAFKAS_REFUSAL) == [ASKED]
    return bench


def test_a_follower_does_not_ask_for_a_log_start_after_a_refusal_with_a_log_start() -> None:
    bench = ReplicaFetcherBench.at(Position(10, 2, 0, 10))
    assert bench.answer(KAFKAS_REFUSAL._replace(log_start_offset=3)) == []
