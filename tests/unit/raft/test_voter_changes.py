import pytest

from simulation.raft.bench import CLUSTER, RaftBench, voter_set
from simulation.raft.state import key_of
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.events import AddVoter, RemoveVoter, UpdateVoter, VoterChange
from tailrace.raft.rpc import BeginEpoch, EndEpoch
from tailrace.raft.voters import ReplicaKey, Voter, VoterHistory, VoterListener, VotersAt, VoterSet

FIRST = 3
"""The end of the new leader's log."""


def leader(*voters: int) -> RaftBench:
    """Node 1 leads, everything is committed, and node 4 has caught up."""
    ids = voters or (1, 2, 3)
    bench = RaftBench(voters=voter_set(*ids))
    bench.elect(*ids[1 : len(ids) // 2 + 1])
    for node_id in (*ids[1:], 4):
        bench.fetch(node_id, FIRST, 1)
    assert bench.node.high_watermark == FIRST
    return bench


def change(bench: RaftBench, what: VoterChange, timeout_ms: int = 30_000) -> do.VoterChangeDone | None:
    """The immediate answer."""
    bench.forget()
    bench.step(events.ChangeVoters("change", what, timeout_ms, ack_when_committed=True))
    done = bench.all(do.VoterChangeDone)
    return done[0] if done else None


def refusal(bench: RaftBench, what: VoterChange) -> ErrorCode:
    done = change(bench, what)
    assert done is not None
    assert bench.all(do.AppendAsLeader) == []
    return done.error


class TestAdding:
    def test_a_voter_set_with_an_added_voter_is_in_force_when_it_is_appended_and_done_when_committed(self) -> None:
        bench = leader()
        assert change(bench, AddVoter(Voter(key_of(4)))) is None
        assert bench.last(do.AppendAsLeader).control == (do.Voters(voter_set(1, 2, 3, 4)),)
        assert bench.node.voters == voter_set(1, 2, 3, 4)
        bench.fetch(2, FIRST + 1, 1)
        assert bench.all(do.VoterChangeDone) == []  # two of four
        bench.fetch(4, FIRST + 1, 1)
        assert bench.last(do.VoterChangeDone) == do.VoterChangeDone("change", ErrorCode.NONE)

    def test_an_added_voter_that_votes_already_is_a_duplicate_whatever_its_directory(self) -> None:
        assert refusal(leader(), AddVoter(Voter(key_of(3)))) is ErrorCode.DUPLICATE_VOTER
        assert refusal(leader(), AddVoter(Voter(key_of(3, directory=2)))) is ErrorCode.DUPLICATE_VOTER

    def test_an_added_voter_must_have_caught_up(self) -> None:
        bench = leader()
        assert refusal(bench, AddVoter(Voter(key_of(5)))) is ErrorCode.REQUEST_TIMED_OUT
        bench.fetch(5, 1, 1)
        assert refusal(bench, AddVoter(Voter(key_of(5)))) is ErrorCode.REQUEST_TIMED_OUT

    def test_an_added_voter_that_has_fallen_silent_must_come_back_first(self) -> None:
        """An only voter would lose its majority for good with a silent voter beside it."""
        bench = leader()
        bench.advance(1000)
        assert refusal(bench, AddVoter(Voter(key_of(4)))) is ErrorCode.REQUEST_TIMED_OUT
        bench.fetch(4, FIRST, 1)
        assert change(bench, AddVoter(Voter(key_of(4)))) is None

    @pytest.mark.parametrize("voter", [Voter(ReplicaKey(4)), Voter(key_of(4), max_kraft_version=0)])
    def test_an_added_voter_without_a_directory_or_too_old_is_refused(self, voter: Voter) -> None:
        assert refusal(leader(), AddVoter(voter)) is ErrorCode.INVALID_REQUEST

    def test_a_second_change_of_voters_waits_for_the_first(self) -> None:
        bench = leader()
        change(bench, AddVoter(Voter(key_of(4))))
        assert refusal(bench, RemoveVoter(key_of(2))) is ErrorCode.REQUEST_TIMED_OUT

    def test_a_leader_adds_no_voter_before_it_has_committed_a_record_of_its_own(self) -> None:
        bench = RaftBench()
        bench.elect()
        bench.fetch(4, FIRST, 1)
        assert refusal(bench, AddVoter(Voter(key_of(4)))) is ErrorCode.REQUEST_TIMED_OUT

    def test_only_the_leader_changes_voters(self) -> None:
        assert refusal(RaftBench(), AddVoter(Voter(key_of(4)))) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_the_voters_of_a_static_quorum_do_not_change(self) -> None:
        bench = RaftBench(voters=VoterSet.of(Voter(ReplicaKey(node_id)) for node_id in (1, 2, 3)))
        bench.elect()
        bench.fetch(2, 1, 1)
        assert bench.node.high_watermark == 1
        assert refusal(bench, AddVoter(Voter(key_of(4)))) is ErrorCode.UNSUPPORTED_VERSION

    def test_a_change_of_voters_that_takes_too_long_is_answered_and_may_still_happen(self) -> None:
        bench = leader()
        change(bench, AddVoter(Voter(key_of(4))), timeout_ms=100)
        bench.advance(100)
        assert bench.last(do.VoterChangeDone).error is ErrorCode.REQUEST_TIMED_OUT
        bench.fetch(2, FIRST + 1, 1)
        bench.fetch(4, FIRST + 1, 1)
        assert (bench.node.high_watermark, len(bench.all(do.VoterChangeDone))) == (FIRST + 1, 1)

    def test_a_client_that_does_not_wait_for_the_commit_of_a_change_of_voters_is_answered_at_once(self) -> None:
        bench = leader()
        bench.step(events.ChangeVoters("change", AddVoter(Voter(key_of(4))), 30_000, ack_when_committed=False))
        assert bench.last(do.VoterChangeDone) == do.VoterChangeDone("change", ErrorCode.NONE)
        assert bench.node.high_watermark == FIRST
        assert refusal(bench, RemoveVoter(key_of(2))) is ErrorCode.REQUEST_TIMED_OUT

    def test_the_fate_of_a_change_of_voters_is_open_when_the_leadership_ends(self) -> None:
        bench = leader()
        change(bench, AddVoter(Voter(key_of(4))))
        begin = BeginEpoch(cluster_id=CLUSTER, leader_id=3, leader_epoch=9, voter=key_of(1))
        bench.receive(begin)
        assert bench.last(do.VoterChangeDone).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert bench.node.voters == voter_set(1, 2, 3, 4)


class TestRemoving:
    def test_the_voters_that_remain_after_a_removal_are_the_majority(self) -> None:
        bench = leader()
        change(bench, RemoveVoter(key_of(3)))
        bench.fetch(3, FIRST + 1, 1)
        assert bench.node.high_watermark == FIRST
        bench.fetch(2, FIRST + 1, 1)
        assert bench.last(do.VoterChangeDone).error is ErrorCode.NONE
        assert bench.node.voters == voter_set(1, 2)

    def test_a_leader_that_removes_itself_leads_until_it_is_committed_without_counting(self) -> None:
        bench = leader()
        change(bench, RemoveVoter(key_of(1)))
        bench.fetch(2, FIRST + 1, 1)
        assert (bench.role, bench.node.high_watermark) == ("Leader", FIRST)
        bench.fetch(3, FIRST + 1, 1)
        assert bench.node.high_watermark == FIRST + 1
        assert bench.last(do.VoterChangeDone).error is ErrorCode.NONE
        assert bench.role == "Resigned"
        bench.advance(1)
        assert [message.destination for message in bench.sent(EndEpoch)] == [2, 3]
        bench.advance(60_000)
        assert bench.role == "Unattached"

    def test_a_leader_of_two_voters_that_was_removing_itself_still_stands_for_election_after_a_crash(self) -> None:
        """The other one's log is shorter: no other replica can be elected."""
        bench = leader(1, 2)
        change(bench, RemoveVoter(key_of(1)))
        bench.start()
        bench.advance(2000)
        bench.elect(2)
        bench.fetch(2, bench.log.end_offset, bench.node.epoch)
        assert bench.role == "Resigned"
        bench.advance(60_000)
        assert bench.role == "Unattached"

    def test_the_removal_of_a_replica_that_does_not_vote_finds_no_voter(self) -> None:
        assert refusal(leader(), RemoveVoter(key_of(4))) is ErrorCode.VOTER_NOT_FOUND
        assert refusal(leader(), RemoveVoter(key_of(3, directory=2))) is ErrorCode.VOTER_NOT_FOUND

    def test_the_last_voter_is_not_removed(self) -> None:
        bench = RaftBench(voters=voter_set(1))
        bench.step(Tick())
        assert refusal(bench, RemoveVoter(key_of(1))) is ErrorCode.INVALID_REQUEST


class TestUpdating:
    def test_an_update_of_a_voter_changes_its_endpoints_and_not_its_directory(self) -> None:
        bench = leader()
        moved = Voter(key_of(3), (VoterListener("CONTROLLER", "elsewhere", 9093),))
        change(bench, UpdateVoter(moved))
        bench.fetch(2, FIRST + 1, 1)
        assert bench.last(do.VoterChangeDone).error is ErrorCode.NONE
        assert bench.node.voters.find(3) == moved
        assert refusal(bench, UpdateVoter(Voter(key_of(3, directory=2)))) is ErrorCode.VOTER_NOT_FOUND

    def test_an_update_of_a_voter_to_its_present_state_is_done_at_once(self) -> None:
        bench = leader()
        assert change(bench, UpdateVoter(Voter(key_of(3)))) == do.VoterChangeDone("change", ErrorCode.NONE)
        assert bench.all(do.AppendAsLeader) == []


class TestHistory:
    def test_the_newest_voter_set_of_the_history_counts_and_a_set_that_is_cut_is_gone(self) -> None:
        history = VoterHistory(voter_set(1), [VotersAt(3, voter_set(1, 2)), VotersAt(7, voter_set(1, 2, 3))])
        assert history.current == voter_set(1, 2, 3)
        assert [len(history.at(offset) or ()) for offset in (0, 3, 4, 7, 8)] == [0, 0, 2, 2, 3]
        history.truncate(7)
        assert history.current == voter_set(1, 2)
        history.truncate(0)
        assert history.current == voter_set(1)
        assert not history.is_in_log

    def test_a_trim_of_the_history_keeps_the_voter_set_in_force(self) -> None:
        history = VoterHistory(voter_set(1), [VotersAt(3, voter_set(1, 2)), VotersAt(7, voter_set(1, 2, 3))])
        history.trim(5)
        assert history.at(6) == voter_set(1, 2)
        history.trim(8)
        assert history.at(8) == voter_set(1, 2, 3)
        assert history.is_in_log

    def test_a_snapshot_replaces_the_history_of_voter_sets(self) -> None:
        history = VoterHistory(voter_set(1), [VotersAt(3, voter_set(1, 2))])
        history.load(40, voter_set(1, 2, 3))
        assert (history.at(40), history.last.offset) == (voter_set(1, 2, 3), 39)
        history.load(50, None)
        assert history.current == voter_set(1)
