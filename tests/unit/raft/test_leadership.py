from typing import Any

import pytest

from simulation.raft.bench import CLUSTER, RaftBench, error_of, voter_set
from simulation.raft.state import key_of
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import RaftConfig
from tailrace.raft.rpc import (
    BeginEpoch,
    BeginEpochReply,
    DescribeQuorumReply,
    EndEpoch,
    EndEpochReply,
    FetchRecords,
    FetchRecordsReply,
    Vote,
    VoteReply,
)
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet

LOG = [1, 1]
START = 2
"""Start offset of the epoch of the leader that `leader` makes."""
FIRST = 5
"""The end of its log: behind LeaderChange, KRaftVersion and Voters."""


def leader(**more: Any) -> RaftBench:
    """Node 1, leader of epoch 2 from offset 2 on."""
    bench = RaftBench(**({"log": LOG} | more))
    bench.elect()
    return bench


def append(bench: RaftBench, count: int = 1, epoch: int | None = None) -> None:
    epoch = bench.node.epoch if epoch is None else epoch
    bench.step(events.ClientAppend("token", epoch, tuple(f"value {index}" for index in range(count)), count))


class TestTheFirstRecords:
    def test_the_first_records_of_a_raft_leader_name_the_leader_the_voters_and_the_voters_that_granted(self) -> None:
        bench = leader()
        batch = bench.all(do.AppendAsLeader)[0]
        change, version, voters = batch.control
        assert change == do.LeaderChange(1, (key_of(1), key_of(2), key_of(3)), (key_of(1), key_of(2)))
        assert (version, voters) == (do.KRaftVersion(1), do.Voters(voter_set(1, 2, 3)))
        assert (batch.base_offset, batch.leader_epoch) == (START, 2)

    def test_raft_leaders_state_the_voters_once_in_their_first_records(self) -> None:
        bench = leader()
        bench.fetch(2, FIRST, 2)
        bench.start()
        bench.advance(1000)
        bench.forget()
        bench.elect()
        assert [type(record) for record in bench.all(do.AppendAsLeader)[0].control] == [do.LeaderChange]

    def test_the_first_records_of_a_static_quorum_state_only_the_leader(self) -> None:
        """Voters without directories are in the configuration, not in the log (kraft.version 0)."""
        bench = leader(voters=VoterSet.of(Voter(ReplicaKey(node_id)) for node_id in (1, 2, 3)))
        assert [type(record) for record in bench.all(do.AppendAsLeader)[0].control] == [do.LeaderChange]
        bench.fetch(2, START + 1, 2)
        assert bench.node.high_watermark == START + 1

    def test_the_role_of_a_raft_leader_is_reported_with_the_start_of_its_epoch(self) -> None:
        assert leader().last(do.RoleChanged) == do.RoleChanged("Leader", 2, 1, START)


class TestCommit:
    def test_a_raft_leader_commits_nothing_before_a_record_of_its_own_epoch(self) -> None:
        """The old records are on every disk; yet they are not committed (the Raft paper, figure 8)."""
        bench = leader()
        bench.fetch(2, START, 1)
        bench.fetch(3, START, 1)
        assert bench.node.high_watermark is None
        bench.fetch(2, FIRST, 2)
        assert bench.last(do.HighWatermarkMoved) == do.HighWatermarkMoved(FIRST)

    def test_a_raft_leader_counts_itself_only_after_its_flush(self) -> None:
        bench = leader()
        bench.fetch(2, FIRST, 2)
        bench.instant_disk = False
        append(bench)
        bench.fetch(2, FIRST + 1, 2)
        assert bench.node.high_watermark == FIRST
        bench.flush()
        assert bench.node.high_watermark == FIRST + 1

    def test_two_raft_followers_are_a_majority_without_the_leader(self) -> None:
        bench = leader()
        bench.instant_disk = False
        append(bench)
        bench.fetch(2, FIRST + 1, 2)
        bench.fetch(3, FIRST + 1, 2)
        assert bench.node.high_watermark == FIRST + 1

    def test_an_observer_does_not_count_for_a_commit_of_a_raft_leader(self) -> None:
        bench = leader()
        bench.fetch(9, FIRST, 2)
        bench.fetch(key_of(2, directory=2), FIRST, 2)
        assert bench.node.high_watermark is None

    def test_a_replica_that_does_not_name_itself_does_not_count_for_a_commit_of_a_raft_leader(self) -> None:
        bench = leader()
        assert error_of(bench.fetch(ReplicaKey(-1), FIRST, 2)) is ErrorCode.NONE
        assert bench.node.high_watermark is None

    def test_the_high_watermark_of_a_raft_leader_never_falls(self) -> None:
        bench = leader()
        bench.fetch(2, FIRST, 2)
        bench.fetch(2, START, 1)
        assert bench.node.high_watermark == FIRST

    @pytest.mark.parametrize(("voters", "acks"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
    def test_a_raft_leader_commits_with_a_majority_of_one_to_five_voters(self, voters: int, acks: int) -> None:
        ids = list(range(1, voters + 1))
        bench = RaftBench(voters=voter_set(*ids))
        if voters == 1:
            bench.step(Tick())
        else:
            bench.elect(*ids[1 : voters // 2 + 1])
        end = bench.log.end_offset
        for node_id in ids[1 : acks + 1]:
            assert bench.node.high_watermark is None
            bench.fetch(node_id, end, 1)
        assert bench.node.high_watermark == end


class TestAppends:
    def test_appends_to_a_raft_leader_are_one_batch_at_the_end_of_the_log(self) -> None:
        bench = leader()
        append(bench, 3)
        batch = bench.last(do.AppendAsLeader)
        assert (batch.base_offset, batch.leader_epoch, batch.token) == (FIRST, 2, "token")
        assert bench.node.end_offset == FIRST + 3

    @pytest.mark.parametrize(
        ("epoch", "error"), [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (3, ErrorCode.UNKNOWN_LEADER_EPOCH)]
    )
    def test_appends_of_another_epoch_to_a_raft_leader_are_refused(self, epoch: int, error: ErrorCode) -> None:
        bench = leader()
        append(bench, epoch=epoch)
        refused = bench.last(do.AppendRefused)
        assert (refused.token, refused.error) == ("token", error)

    def test_appends_to_a_raft_replica_that_does_not_lead_are_refused(self) -> None:
        bench = RaftBench()
        append(bench)
        assert bench.last(do.AppendRefused).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert bench.all(do.AppendAsLeader) == []


class TestAnsweringFetches:
    def test_a_raft_leader_reads_records_when_its_answer_leaves(self) -> None:
        bench = leader()
        response = bench.fetch(2, START, 1)
        assert response == FetchRecordsReply(leader_id=1, leader_epoch=2, high_watermark=-1, log_start_offset=0)
        assert bench.last(do.SendResponse).read == do.ReadLog(START, 1 << 20)

    def test_a_fetch_from_a_raft_leader_by_a_replica_that_has_everything_waits_for_the_next_record(self) -> None:
        bench = leader()
        assert bench.fetch(2, FIRST, 2, max_wait_ms=500) is None
        token = bench.last_token
        append(bench)
        assert bench.answer_to(token) is not None
        assert bench.last(do.SendResponse).read == do.ReadLog(FIRST, 1 << 20)
        assert bench.effects.index(bench.last(do.AppendAsLeader)) < bench.effects.index(bench.last(do.SendResponse))

    def test_a_fetch_from_a_raft_leader_waits_for_the_end_of_its_patience(self) -> None:
        bench = leader()
        bench.fetch(2, FIRST, 2, max_wait_ms=500)
        bench.advance(499)
        assert bench.answer_to(bench.last_token) is None
        bench.advance(1)
        assert error_of(bench.answer_to(bench.last_token)) is ErrorCode.NONE
        assert bench.last(do.SendResponse).read is None

    def test_a_fetch_from_a_raft_leader_waits_for_a_high_watermark_that_the_replica_does_not_know(self) -> None:
        bench = leader()
        assert bench.fetched(3, FIRST, 2, max_wait_ms=500, high_watermark=-1).high_watermark == FIRST
        bench.fetch(3, FIRST, 2, max_wait_ms=500, high_watermark=FIRST)
        token = bench.last_token
        append(bench)
        assert bench.answer_to(token) is not None

    def test_a_replica_waits_for_a_raft_leader_with_one_fetch(self) -> None:
        bench = leader()
        bench.fetch(2, FIRST, 2, max_wait_ms=500)
        first = bench.last_token
        assert bench.fetch(2, FIRST, 2, max_wait_ms=500) is None
        assert error_of(bench.answer_to(first)) is ErrorCode.NONE

    def test_a_fetch_from_a_raft_leader_waits_for_the_end_of_the_leadership(self) -> None:
        bench = leader()
        bench.fetch(2, FIRST, 2, max_wait_ms=500)
        token = bench.last_token
        bench.receive(BeginEpoch(cluster_id=CLUSTER, leader_id=3, leader_epoch=9, voter=key_of(1)))
        assert bench.answer_to(token) == FetchRecordsReply(
            error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=3, leader_epoch=9
        )

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
            ({"leader_epoch": 1}, ErrorCode.FENCED_LEADER_EPOCH),
            ({"leader_epoch": 3}, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ({"fetch_offset": -1}, ErrorCode.INVALID_REQUEST),
            ({"last_fetched_epoch": 3}, ErrorCode.INVALID_REQUEST),
            ({"last_fetched_epoch": -1}, ErrorCode.INVALID_REQUEST),
            ({"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_each_faulty_fetch_from_a_raft_leader_gets_its_code(self, fields: dict[str, Any], error: ErrorCode) -> None:
        good: dict[str, Any] = {
            "cluster_id": CLUSTER,
            "replica": key_of(2),
            "leader_epoch": 2,
            "fetch_offset": FIRST,
            "last_fetched_epoch": 2,
            "max_wait_ms": 0,
        }
        bench = leader()
        assert error_of(bench.receive(FetchRecords(**(good | fields)))) is error
        assert bench.node.high_watermark is None

    def test_a_raft_leader_does_not_adopt_the_epoch_of_a_fetch(self) -> None:
        """Every replica may fetch: only candidates and leaders make an epoch."""
        bench = leader()
        bench.fetch(9, FIRST, 2, leader_epoch=77)
        assert (bench.role, bench.node.epoch) == ("Leader", 2)

    def test_a_fetch_with_a_diverging_log_is_no_acknowledgement_to_a_raft_leader(self) -> None:
        bench = leader()
        response = bench.fetched(2, FIRST + 4, 1)
        assert response.diverging == (1, START)
        assert bench.node.high_watermark is None

    def test_an_answer_of_a_raft_leader_that_waits_for_the_disk_reads_no_log_that_leads_no_more(self) -> None:
        bench = RaftBench(log=LOG)
        while bench.role != "Prospective":
            bench.advance(50)
        bench.answer(bench.sent(Vote, 2)[-1], VoteReply(leader_epoch=1, vote_granted=True))
        bench.instant_disk = False
        bench.answer(bench.sent(Vote, 2)[-1], VoteReply(leader_epoch=2, vote_granted=True))
        assert bench.role == "Leader"
        assert bench.fetch(2, START, 1) is None  # leadership itself is not on disk yet
        token = bench.last_token
        bench.receive(BeginEpoch(cluster_id=CLUSTER, leader_id=3, leader_epoch=9, voter=key_of(1)))
        bench.flush()
        assert error_of(bench.answer_to(token)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [response.read for response in bench.all(do.SendResponse) if response.token == token] == [None]


class TestStayingInOffice:
    def test_a_raft_leader_without_a_majority_resigns_after_one_and_a_half_fetch_timeouts(self) -> None:
        bench = leader()
        bench.advance(1400)
        bench.fetch(2, FIRST, 2)
        bench.advance(1499)
        assert bench.role == "Leader"
        bench.advance(1)
        assert bench.role == "Resigned"
        assert [message.destination for message in bench.sent(EndEpoch)] == [2, 3]

    def test_observers_keep_no_raft_leader_in_office(self) -> None:
        bench = leader()
        for _ in range(4):
            bench.advance(500)
            bench.fetch(9, FIRST, 2)
        assert bench.role == "Resigned"

    def test_a_raft_leader_of_five_voters_needs_two_others_to_stay_in_office(self) -> None:
        bench = RaftBench(voters=voter_set(1, 2, 3, 4, 5))
        bench.elect(2, 3)
        for _ in range(4):
            bench.advance(500)
            bench.fetch(2, 0, 0)
        assert bench.role == "Resigned"

    def test_a_raft_leader_that_resigns_names_the_candidates_that_are_furthest_first(self) -> None:
        bench = leader()
        bench.fetch(3, FIRST, 2)
        bench.step(events.Resign(2))
        (sent, _) = bench.sent(EndEpoch)
        assert sent.request.preferred_candidates == (key_of(3), key_of(2))  # type: ignore[union-attr]

    def test_a_raft_leader_ignores_a_wish_of_another_epoch_to_resign(self) -> None:
        bench = leader()
        bench.step(events.Resign(1))
        assert bench.role == "Leader"

    def test_a_raft_leader_never_leads_in_the_epoch_that_it_gave_up(self) -> None:
        bench = leader()
        bench.step(events.Resign(2))
        bench.advance(5000)
        assert bench.node.epoch > 2

    def test_a_failed_disk_ends_a_raft_leadership_and_keeps_the_replica_out(self) -> None:
        bench = leader()
        bench.step(events.StorageFailed("no space left"))
        assert bench.role == "Resigned"
        bench.forget()
        bench.advance(20_000)
        assert bench.sent(Vote) == []


class TestAnnouncing:
    def test_a_raft_leader_notifies_all_voters_of_its_epoch_at_once(self) -> None:
        bench = leader()
        assert [message.destination for message in bench.sent(BeginEpoch)] == [2, 3]
        assert bench.sent(BeginEpoch)[0].request == BeginEpoch(
            cluster_id=CLUSTER, leader_id=1, leader_epoch=2, voter=key_of(2)
        )

    def test_a_raft_leader_notifies_silent_voters_of_its_epoch_again(self) -> None:
        bench = leader()
        for sent in bench.sent(BeginEpoch):
            bench.answer(sent, BeginEpochReply(leader_id=1, leader_epoch=2))
        bench.fetch(2, FIRST, 2)
        bench.forget()
        bench.advance(400)
        bench.fetch(2, FIRST, 2)
        assert bench.sent(BeginEpoch) == []
        bench.advance(110)
        assert [message.destination for message in bench.sent(BeginEpoch)] == [3]

    def test_a_raft_leader_notifies_a_voter_that_cannot_be_reached_again(self) -> None:
        bench = leader()
        bench.step(events.RequestFailed(bench.sent(BeginEpoch, 3)[0].request_id))
        bench.advance(600)
        assert len(bench.sent(BeginEpoch, 3)) == 2


class TestShutdown:
    def test_a_raft_leader_that_shuts_down_tells_the_voters_first(self) -> None:
        bench = leader()
        bench.step(events.Shutdown())
        assert bench.all(do.ShutdownDone) == []
        for sent in bench.sent(EndEpoch):
            bench.step(events.RequestFailed(sent.request_id))
        bench.advance(25)
        for sent in bench.sent(EndEpoch)[2:]:
            bench.answer(sent, EndEpochReply(leader_id=1, leader_epoch=2))
        assert len(bench.all(do.ShutdownDone)) == 1

    def test_a_raft_leader_that_shuts_down_waits_for_voters_no_longer_than_an_election_takes(self) -> None:
        bench = leader()
        bench.step(events.Shutdown())
        bench.advance(1000)
        assert len(bench.all(do.ShutdownDone)) == 1

    def test_a_voter_that_does_not_lead_just_leaves_at_its_shutdown(self) -> None:
        bench = RaftBench()
        bench.step(events.Shutdown())
        assert bench.all(do.ShutdownDone) == [do.ShutdownDone()]

    def test_a_raft_leader_that_shuts_down_serves_no_replica_any_more(self) -> None:
        bench = leader()
        bench.step(events.Shutdown())
        assert error_of(bench.fetch(2, FIRST, 2)) is ErrorCode.BROKER_NOT_AVAILABLE


class TestDescribing:
    def test_describe_quorum_tells_voters_and_observers_and_how_far_they_are(self) -> None:
        bench = leader(config=RaftConfig())
        bench.fetch(2, FIRST, 2)
        bench.fetch(9, START, 1)
        bench.step(events.DescribeQuorum("ask"))
        answer = bench.answer_to("ask")
        assert isinstance(answer, DescribeQuorumReply)
        assert (answer.leader_id, answer.leader_epoch, answer.high_watermark) == (1, 2, FIRST)
        assert [(voter.key.id, voter.log_end_offset) for voter in answer.voters] == [(1, FIRST), (2, FIRST), (3, -1)]
        assert [(observer.key.id, observer.log_end_offset) for observer in answer.observers] == [(9, START)]
        assert [voter.last_caught_up_ms for voter in answer.voters] == [bench.now_ms, bench.now_ms, -1]

    def test_describe_quorum_forgets_observers_that_have_gone_without_a_snapshot_too(self) -> None:
        bench = leader(config=RaftConfig(live_replica_ms=5000))
        bench.fetch(9, START, 1)
        for _ in range(12):
            bench.advance(500)
            bench.fetch(2, FIRST, 2)
        bench.step(events.DescribeQuorum("ask"))
        answer = bench.answer_to("ask")
        assert isinstance(answer, DescribeQuorumReply)
        assert (bench.role, answer.observers) == ("Leader", ())

    def test_describe_quorum_is_answered_by_the_leader_only(self) -> None:
        bench = RaftBench()
        bench.step(events.DescribeQuorum("ask"))
        assert error_of(bench.answer_to("ask")) is ErrorCode.NOT_LEADER_OR_FOLLOWER
