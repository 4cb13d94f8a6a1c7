from typing import Any

import pytest

from simulation.raft.bench import CLUSTER, RaftBench, voter_set
from simulation.raft.state import key_of
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import QuorumState
from tailrace.raft.rpc import FetchRecords, FetchRecordsReply, LogEnd
from tailrace.raft.voters import VotersAt


def follower(*, log: tuple[int, ...] = (), **more: Any) -> RaftBench:
    """Node 1, following node 2 in epoch 5."""
    bench = RaftBench(log=log, state=QuorumState(5, 2), **more)
    bench.step(Tick())
    return bench


def fetches(bench: RaftBench) -> list[tuple[int, int]]:
    """(offset, epoch) of every Fetch that was sent."""
    requests = [message.request for message in bench.sent(FetchRecords)]
    return [
        (request.fetch_offset, request.last_fetched_epoch) for request in requests if isinstance(request, FetchRecords)
    ]


class TestFetching:
    def test_a_fetch_of_a_raft_follower_names_the_replica_and_the_end_of_its_log(self) -> None:
        bench = follower(log=(1, 1, 3))
        (sent,) = bench.sent(FetchRecords, 2)
        assert sent.request == FetchRecords(
            cluster_id=CLUSTER,
            replica=key_of(1),
            leader_epoch=5,
            fetch_offset=3,
            last_fetched_epoch=3,
            max_wait_ms=500,
            high_watermark=-1,
        )

    def test_the_next_fetch_of_a_raft_follower_leaves_when_the_records_are_on_disk(self) -> None:
        bench = follower(instant_disk=False)
        bench.answer(bench.sent(FetchRecords)[0], bench.records(5, 5))
        assert (bench.node.end_offset, bench.node.flushed_end_offset, fetches(bench)) == (2, 0, [(0, 0)])
        bench.flush()
        assert fetches(bench) == [(0, 0), (2, 5)]

    def test_a_raft_follower_has_one_fetch_open_at_a_time(self) -> None:
        bench = follower()
        bench.advance(700)
        assert len(bench.sent(FetchRecords)) == 1

    def test_a_raft_follower_hands_records_to_its_host_with_the_offset_that_they_must_have(self) -> None:
        bench = follower(log=(1,))
        answer = bench.records(5)
        bench.answer(bench.sent(FetchRecords)[0], answer)
        assert bench.last(do.AppendFetched) == do.AppendFetched(1, 5, answer.records)

    def test_the_high_watermark_of_a_raft_follower_is_the_leaders_as_far_as_its_log_goes(self) -> None:
        bench = follower()
        answer = FetchRecordsReply(
            leader_id=2, leader_epoch=5, high_watermark=9, log_start_offset=0, records=bench.records(5, 5).records
        )
        bench.answer(bench.sent(FetchRecords)[0], answer)
        assert bench.last(do.HighWatermarkMoved) == do.HighWatermarkMoved(2)

    def test_a_raft_follower_fetches_damaged_records_again(self) -> None:
        node = follower().node
        opened = FetchRecordsReply(
            leader_id=2, leader_epoch=5, high_watermark=0, log_start_offset=0, records=("damaged",)
        )
        effects = node.step(events.ResponseReceived(1, opened), 1001)
        assert effects == [do.AppendFetched(0, 5, ("damaged",))]
        assert node.step(events.AppendRejected("a checksum"), 1001) == []
        assert node.step(Tick(), 1250) == []
        (again,) = node.step(Tick(), 1251)
        assert isinstance(again, do.SendRequest)
        assert isinstance(again.request, FetchRecords)
        assert again.request.fetch_offset == 0

    def test_errors_of_fetches_of_a_raft_follower_lead_to_another_try_and_not_to_a_storm(self) -> None:
        bench = follower()
        for count in (2, 3, 4):
            bench.answer(bench.sent(FetchRecords)[-1], bench.led(error=ErrorCode.UNKNOWN_SERVER_ERROR))
            bench.advance(19)
            assert len(bench.sent(FetchRecords)) == count - 1
            bench.advance(1)
            assert len(bench.sent(FetchRecords)) == count

    def test_an_answer_to_a_fetch_that_a_raft_follower_gave_up_is_no_answer(self) -> None:
        bench = follower()
        (sent,) = bench.sent(FetchRecords)
        bench.step(events.RequestFailed(sent.request_id))
        bench.answer(sent, bench.records(5))
        assert bench.all(do.AppendFetched) == []


class TestLosingTheLeader:
    def test_a_voter_that_follows_stands_for_election_after_the_fetch_timeout(self) -> None:
        bench = follower()
        bench.advance(999)
        assert bench.role == "Follower"
        bench.advance(1)
        assert bench.role == "Prospective"

    def test_each_good_answer_starts_the_fetch_timeout_of_a_raft_follower_anew_and_an_error_does_not(self) -> None:
        bench = follower()
        bench.advance(900)
        bench.answer(bench.sent(FetchRecords)[-1], bench.led(high_watermark=0, log_start_offset=0))
        bench.advance(900)
        assert bench.role == "Follower"
        bench.answer(bench.sent(FetchRecords)[-1], bench.led(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        bench.advance(100)
        assert bench.role == "Prospective"

    def test_an_observer_looks_for_another_leader_after_the_fetch_timeout(self) -> None:
        bench = follower(key=key_of(9))
        bench.advance(1000)
        assert bench.role == "Unattached"
        assert {message.destination for message in bench.sent(FetchRecords)} == {1, 2}

    def test_an_observer_that_has_given_a_leader_up_believes_only_that_leader_that_it_leads(self) -> None:
        """Else two that follow a leader which is gone would tell each other for ever that it is still there."""
        bench = follower(key=key_of(9))
        bench.advance(1000)
        still_leads = FetchRecordsReply(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=2, leader_epoch=5)
        bench.answer(bench.sent(FetchRecords, 1)[-1], still_leads)
        assert bench.role == "Unattached"
        bench.advance(1000)
        bench.answer(bench.sent(FetchRecords, 2)[-1], bench.led(high_watermark=0, log_start_offset=0))
        assert bench.role == "Follower"

    def test_an_observer_that_has_given_a_leader_up_believes_every_replica_about_a_later_leader(self) -> None:
        bench = follower(key=key_of(9))
        bench.advance(1000)
        later = FetchRecordsReply(error=ErrorCode.FENCED_LEADER_EPOCH, leader_id=3, leader_epoch=6)
        bench.answer(bench.sent(FetchRecords, 1)[-1], later)
        assert (bench.role, bench.node.leader_id, bench.node.epoch) == ("Follower", 3, 6)


class TestDiverging:
    @pytest.mark.parametrize(
        ("log", "diverging", "end"),
        [
            ((1, 1, 3, 3), LogEnd(3, 3), 3),  # the leader's epoch 3 is shorter
            ((1, 1, 3, 3), LogEnd(2, 9), 2),  # the leader has no epoch 3: cut it off whole
            ((1, 1, 3, 3), LogEnd(2, 1), 2),  # 1 may be inside of a batch of ours: the next answer will say
            ((4, 4), LogEnd(3, 7), 0),  # nothing in common
        ],
    )
    def test_a_raft_follower_cuts_its_diverging_log_to_where_both_logs_may_be_the_same(
        self, log: tuple[int, ...], diverging: LogEnd, end: int
    ) -> None:
        bench = follower(log=log)
        bench.answer(bench.sent(FetchRecords)[0], bench.led(diverging=diverging))
        assert bench.last(do.Truncate) == do.Truncate(end)
        assert fetches(bench)[-1] == (end, log[end - 1] if end else 0)

    def test_a_raft_follower_cuts_its_log_to_the_high_watermark_at_most(self) -> None:
        bench = follower(log=(1, 1, 3))
        bench.answer(bench.sent(FetchRecords)[0], bench.led(high_watermark=2, log_start_offset=0))
        with pytest.raises(AssertionError, match="committed up to 2"):
            bench.answer(bench.sent(FetchRecords)[1], bench.led(diverging=LogEnd(1, 1)))

    def test_a_diverging_answer_that_cuts_nothing_of_the_log_is_nonsense_to_a_raft_follower(self) -> None:
        bench = follower(log=(1, 1, 3))
        bench.answer(bench.sent(FetchRecords)[0], bench.led(diverging=LogEnd(4, 9)))
        assert bench.all(do.Truncate) == []

    def test_a_flush_of_a_raft_follower_that_was_begun_before_a_cut_does_not_count_for_later_records(self) -> None:
        bench = follower(log=(1,), instant_disk=False)
        bench.answer(bench.sent(FetchRecords)[0], bench.records(4, 4, 4))
        old_flush = bench.held[-1]
        assert isinstance(old_flush, do.Flush)
        bench.instant_disk = True
        bench.step(events.LogFlushed(old_flush.number))
        bench.answer(bench.sent(FetchRecords)[-1], bench.led(diverging=LogEnd(2, 1)))
        bench.instant_disk = False
        bench.answer(bench.sent(FetchRecords)[-1], bench.records(5, 5, 5, 5))
        bench.step(events.LogFlushed(old_flush.number))
        assert bench.node.flushed_end_offset == 1


class TestVoters:
    def test_voters_in_the_log_of_a_raft_follower_are_in_force_when_they_are_appended_and_not_when_they_are_cut(
        self,
    ) -> None:
        bench = follower(log=(1,))
        stated = do.Voters(voter_set(1, 2, 3, 4))
        records = (bench.records(4).records[0]._replace(value=stated),)  # type: ignore[index]
        bench.answer(bench.sent(FetchRecords)[0], bench.led(records=records, high_watermark=1, log_start_offset=0))
        assert bench.node.voters == voter_set(1, 2, 3, 4)
        bench.answer(bench.sent(FetchRecords)[1], bench.led(diverging=LogEnd(1, 1)))
        assert bench.node.voters == voter_set(1, 2, 3)

    def test_voters_in_the_log_of_a_raft_follower_at_its_start_are_in_force(self) -> None:
        bench = RaftBench(log=(1, 1))
        assert bench.log.voters_in_log() == []
        node = RaftBench().node
        assert node.voters == voter_set(1, 2, 3)
        assert VotersAt(3, voter_set(1)).offset == 3
