from dataclasses import replace
from typing import Any

import pytest

from simulation.raft.bench import CLUSTER, RaftBench, error_of, voter_set
from simulation.raft.state import key_of
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import QuorumState
from tailrace.raft.rpc import (
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    EndEpochReply,
    FetchRecords,
    FetchRecordsReply,
    FetchSnapshot,
    FetchSnapshotReply,
    SnapshotId,
    Vote,
    VoteReply,
)
from tailrace.raft.voters import ReplicaKey


@pytest.fixture
def bench() -> RaftBench:
    return RaftBench()


def vote(
    epoch: int,
    candidate: int | ReplicaKey = 3,
    *,
    last: tuple[int, int] = (0, 0),
    pre_vote: bool = False,
    **more: Any,
) -> Vote:
    fields: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "candidate_epoch": epoch,
        "candidate": key_of(candidate) if isinstance(candidate, int) else candidate,
        "voter": key_of(1),
        "last_epoch": last[0],
        "last_offset": last[1],
        "pre_vote": pre_vote,
    }
    return Vote(**(fields | more))


def begin(leader: int, epoch: int, **more: Any) -> BeginEpoch:
    fields: dict[str, Any] = {"cluster_id": CLUSTER, "leader_id": leader, "leader_epoch": epoch, "voter": key_of(1)}
    return BeginEpoch(**(fields | more))


def end(leader: int, epoch: int, *preferred: int) -> EndEpoch:
    return EndEpoch(
        cluster_id=CLUSTER,
        leader_id=leader,
        leader_epoch=epoch,
        preferred_candidates=tuple(key_of(node_id) for node_id in preferred),
    )


def granted(bench: RaftBench, request: Vote) -> bool:
    response = bench.receive(request)
    assert isinstance(response, VoteReply)
    return response.vote_granted


class TestGranting:
    @pytest.mark.parametrize(
        ("last", "is_granted"), [((2, 3), True), ((3, 1), True), ((2, 4), True), ((2, 2), False), ((1, 90), False)]
    )
    def test_a_voter_grants_its_vote_only_to_a_log_that_reaches_as_far(
        self, last: tuple[int, int], is_granted: bool
    ) -> None:
        assert granted(RaftBench(log=[1, 2, 2]), vote(4, last=last)) is is_granted

    def test_a_voter_votes_once_in_an_epoch_and_for_the_same_candidate_again(self, bench: RaftBench) -> None:
        assert granted(bench, vote(4, 3))
        assert not granted(bench, vote(4, 2))
        assert granted(bench, vote(4, 3))
        assert granted(bench, vote(5, 2))

    def test_a_vote_survives_a_restart_of_the_voter(self, bench: RaftBench) -> None:
        assert granted(bench, vote(4, 3))
        bench.start()
        assert bench.node.quorum_state == QuorumState(4, -1, key_of(3))
        assert not granted(bench, vote(4, 2))
        assert granted(bench, vote(4, 3))

    def test_another_directory_of_a_candidate_is_another_candidate_to_a_voter(self, bench: RaftBench) -> None:
        assert granted(bench, vote(4, 3))
        assert not granted(bench, vote(4, candidate=key_of(3, directory=2)))

    def test_a_voter_answers_when_its_vote_is_on_disk(self) -> None:
        bench = RaftBench(instant_disk=False)
        assert bench.receive(vote(4, 3)) is None
        assert bench.last(do.Persist).state == QuorumState(4, -1, key_of(3))
        bench.flush()
        response = bench.answer_to(bench.last_token)
        assert isinstance(response, VoteReply)
        assert response.vote_granted

    def test_only_the_newest_quorum_state_counts_as_durable(self) -> None:
        bench = RaftBench(instant_disk=False)
        bench.receive(vote(4, 3, last=(0, 0)))
        first = bench.all(do.Persist)[0]
        assert len(bench.all(do.Persist)) == 2  # the epoch, then the vote
        bench.step(events.QuorumStatePersisted(first.number))
        assert bench.answer_to(bench.last_token) is None

    def test_a_voter_adopts_the_epoch_of_a_vote_that_it_refuses(self) -> None:
        bench = RaftBench(log=[3])
        assert not granted(bench, vote(7, last=(2, 9)))
        assert (bench.node.epoch, bench.role) == (7, "Unattached")

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            (vote(4, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
            (vote(4, cluster_id=None), ErrorCode.NONE),
            (vote(2), ErrorCode.FENCED_LEADER_EPOCH),
            (vote(4, voter=key_of(1, directory=2)), ErrorCode.INVALID_VOTER_KEY),
            (vote(4, voter=ReplicaKey(2)), ErrorCode.INVALID_VOTER_KEY),
            (vote(4, voter=ReplicaKey(1)), ErrorCode.NONE),
            (vote(4, voter=None), ErrorCode.NONE),
            (vote(4, last=(4, 9)), ErrorCode.INVALID_REQUEST),
            (vote(4, last=(4, 9), pre_vote=True), ErrorCode.NONE),
            (vote(4, last=(-1, 9)), ErrorCode.INVALID_REQUEST),
            (vote(4, last=(1, -1)), ErrorCode.INVALID_REQUEST),
            (vote(4, candidate=ReplicaKey(-1)), ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_each_faulty_vote_request_gets_its_code(self, request_: Vote, error: ErrorCode) -> None:
        bench = RaftBench(state=QuorumState(3))
        assert error_of(bench.receive(request_)) is error
        assert bench.node.epoch == (4 if error is ErrorCode.NONE else 3)

    def test_a_replica_with_a_failed_disk_does_not_vote(self, bench: RaftBench) -> None:
        bench.step(events.StorageFailed("damaged at 7"))
        assert not granted(bench, vote(4))


class TestPreVotes:
    def test_pre_votes_bind_no_replica(self, bench: RaftBench) -> None:
        assert granted(bench, vote(0, 3, pre_vote=True))
        assert granted(bench, vote(0, 2, pre_vote=True))
        assert bench.all(do.Persist) == []

    def test_pre_votes_are_refused_by_a_replica_that_hears_from_the_leader(self, bench: RaftBench) -> None:
        bench.receive(begin(2, 5))
        assert granted(bench, vote(5, 3, pre_vote=True))  # it has not heard yet
        (sent,) = bench.sent(FetchRecords)
        bench.answer(sent, bench.led(high_watermark=0, log_start_offset=0))
        assert not granted(bench, vote(5, 3, pre_vote=True))

    def test_pre_votes_are_granted_by_a_replica_that_takes_a_snapshot_and_has_no_contact_with_the_leader_for_long(
        self, bench: RaftBench
    ) -> None:
        """The voter fetches nothing meanwhile and notices nothing; other voters must not have to wait for its disk."""
        bench.receive(begin(2, 5))
        snapshot_id = SnapshotId(3, 5)
        (fetch,) = bench.sent(FetchRecords)
        bench.answer(fetch, bench.led(high_watermark=3, log_start_offset=3, snapshot_id=snapshot_id))
        (part,) = bench.sent(FetchSnapshot)
        whole = FetchSnapshotReply(leader_id=2, leader_epoch=5, snapshot_id=snapshot_id, size=2, position=0, data=b"ab")
        bench.answer(part, whole)
        assert bench.last(do.InstallSnapshot) == do.InstallSnapshot(snapshot_id)
        assert not granted(bench, vote(5, 3, last=(5, 3), pre_vote=True))
        bench.advance(2000)
        assert granted(bench, vote(5, 3, last=(5, 3), pre_vote=True))

    def test_pre_votes_are_refused_by_a_leader(self, bench: RaftBench) -> None:
        bench.elect()
        assert not granted(bench, vote(1, 3, last=(1, 9), pre_vote=True))
        assert bench.role == "Leader"

    def test_pre_votes_are_refused_to_a_shorter_log(self) -> None:
        assert not granted(RaftBench(log=[1, 1]), vote(1, last=(1, 1), pre_vote=True))

    def test_a_candidate_that_was_cut_off_does_not_raise_its_epoch(self) -> None:
        bench = RaftBench(state=QuorumState(5, 2), log=[5])
        bench.advance(60_000)
        assert bench.node.epoch == 5
        assert bench.sent(Vote)
        assert all(message.request.pre_vote for message in bench.sent(Vote))  # type: ignore[union-attr]

    def test_a_candidate_that_loses_its_pre_votes_goes_back_to_the_leader(self) -> None:
        bench = RaftBench(state=QuorumState(5, 2), log=[5])
        bench.advance(1000)
        assert bench.role == "Prospective"
        for sent in bench.sent(Vote):
            bench.answer(sent, VoteReply(leader_id=2, leader_epoch=5))
        assert (bench.role, bench.node.leader_id) == ("Follower", 2)


class TestLookingForTheLeader:
    PLACES = voter_set(2, 3)

    def asked(self, bench: RaftBench) -> list[int]:
        return [sent.destination for sent in bench.sent(FetchRecords)]

    def test_an_observer_asks_one_bootstrap_server_after_the_other_for_the_leader(self) -> None:
        bench = RaftBench(key=key_of(9), voters=self.PLACES)
        bench.step(Tick())
        assert self.asked(bench) == [2]
        bench.step(events.RequestFailed(bench.sent(FetchRecords)[0].request_id))
        bench.advance(20)
        assert self.asked(bench) == [2, 3]

    def test_an_observer_does_not_wait_for_a_silent_bootstrap_server_until_the_request_times_out(self) -> None:
        """A replica that stood for election begins with the first place again, which may be silent for ever."""
        bench = RaftBench(key=key_of(9), voters=self.PLACES)
        bench.step(Tick())
        bench.advance(124)
        assert self.asked(bench) == [2]
        bench.advance(1)
        assert self.asked(bench) == [2, 3]
        bench.advance(400)
        assert self.asked(bench) == [2, 3], "each has a question open"


class TestStanding:
    def test_the_lowest_voter_of_a_new_quorum_stands_for_election_at_once(self, bench: RaftBench) -> None:
        bench.step(Tick())
        assert bench.role == "Prospective"
        other = RaftBench(key=key_of(2))
        other.step(Tick())
        assert other.role == "Unattached"
        again = RaftBench(log=[1])
        again.step(Tick())
        assert again.role == "Unattached"

    def test_an_only_voter_elects_itself_at_once_and_again_after_a_restart(self) -> None:
        bench = RaftBench(voters=voter_set(1))
        bench.step(Tick())
        assert (bench.role, bench.node.epoch, bench.node.high_watermark) == ("Leader", 1, 3)
        bench.start()
        bench.step(Tick())
        assert (bench.role, bench.node.epoch) == ("Leader", 3)  # 2 is given up: it led in 1

    def test_an_observer_never_stands_for_election(self) -> None:
        bench = RaftBench(key=key_of(9))
        bench.advance(60_000)
        assert bench.sent(Vote) == []
        assert bench.role == "Unattached"

    def test_another_directory_of_a_voter_is_an_observer(self) -> None:
        bench = RaftBench(key=key_of(1, directory=2))
        bench.advance(60_000)
        assert bench.sent(Vote) == []

    def test_a_candidate_asks_for_votes_when_its_own_vote_is_on_disk(self) -> None:
        bench = RaftBench(instant_disk=False)
        bench.step(Tick())
        for sent in bench.sent(Vote):
            bench.answer(sent, VoteReply(leader_epoch=0, vote_granted=True))
        assert bench.role == "Candidate"
        assert all(message.request.pre_vote for message in bench.sent(Vote))  # type: ignore[union-attr]
        bench.flush()
        assert bench.disk.quorum_state == QuorumState(1, -1, key_of(1))
        assert [message.destination for message in bench.sent(Vote)[2:]] == [2, 3]

    def test_a_late_pre_vote_is_no_vote(self) -> None:
        bench = RaftBench(voters=voter_set(1, 2, 3, 4, 5))
        bench.step(Tick())
        pre = bench.sent(Vote)
        for sent in pre[:2]:
            bench.answer(sent, VoteReply(leader_epoch=0, vote_granted=True))
        assert bench.role == "Candidate"
        for sent in pre[2:]:
            bench.answer(sent, VoteReply(leader_epoch=1, vote_granted=True))
        assert bench.role == "Candidate"

    def test_a_lost_election_is_tried_again_after_a_while(self, bench: RaftBench) -> None:
        bench.step(Tick())
        bench.answer(bench.sent(Vote)[0], VoteReply(leader_epoch=0, vote_granted=True))
        for sent in bench.sent(Vote)[2:]:
            bench.answer(sent, VoteReply(leader_epoch=1))
        bench.forget()
        bench.advance(249)
        assert (bench.role, bench.all(do.SendRequest)) == ("Candidate", [])
        bench.advance(2)
        assert bench.role == "Prospective"

    def test_a_higher_epoch_in_the_answer_of_a_voter_ends_the_candidacy(self, bench: RaftBench) -> None:
        bench.step(Tick())
        bench.answer(bench.sent(Vote)[0], VoteReply(leader_epoch=8, leader_id=3))
        assert (bench.role, bench.node.epoch, bench.node.leader_id) == ("Follower", 8, 3)

    def test_a_candidate_learns_nothing_from_an_answer_of_another_cluster(self, bench: RaftBench) -> None:
        bench.step(Tick())
        foreign = VoteReply(error=ErrorCode.INCONSISTENT_CLUSTER_ID, leader_epoch=50, leader_id=3)
        bench.answer(bench.sent(Vote)[0], foreign)
        assert (bench.role, bench.node.epoch) == ("Prospective", 0)

    def test_a_candidate_ignores_a_vote_of_an_older_epoch(self) -> None:
        bench = RaftBench(state=QuorumState(3))
        bench.advance(1000)
        bench.answer(bench.sent(Vote)[0], VoteReply(leader_epoch=2, vote_granted=True))
        assert bench.role == "Prospective"


class TestLearningOfLeaders:
    def test_begin_quorum_epoch_makes_a_raft_follower(self, bench: RaftBench) -> None:
        assert bench.receive(begin(2, 5)) == BeginEpochReply(leader_id=2, leader_epoch=5)
        assert (bench.role, bench.disk.quorum_state) == ("Follower", QuorumState(5, 2))

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            (begin(2, 4), ErrorCode.FENCED_LEADER_EPOCH),
            (begin(2, 6, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
            (begin(2, 6, voter=key_of(1, directory=2)), ErrorCode.INVALID_VOTER_KEY),
            (begin(2, 5), ErrorCode.INVALID_REQUEST),
            (begin(1, 6), ErrorCode.INVALID_REQUEST),
            (begin(-1, 6), ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_each_faulty_begin_quorum_epoch_gets_its_code(self, request_: BeginEpoch, error: ErrorCode) -> None:
        bench = RaftBench(state=QuorumState(5, 3), log=[5])
        assert error_of(bench.receive(request_)) is error
        assert (bench.role, bench.node.epoch, bench.node.leader_id) == ("Follower", 5, 3)

    def test_a_replica_without_a_leader_asks_every_voter_in_turn(self) -> None:
        bench = RaftBench(key=key_of(9))
        for destination in (1, 2, 3, 1):
            bench.forget()
            bench.advance(60)
            (sent,) = bench.sent(FetchRecords)
            assert sent.destination == destination
            bench.answer(sent, FetchRecordsReply(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=0))

    def test_a_replica_without_a_leader_asks_not_only_the_voters_of_long_ago_in_its_log(self) -> None:
        """An only voter lost its disk, came back as an observer, and has fetched the time when it was alone."""
        bench = RaftBench(key=key_of(1, directory=2), state=QuorumState(5, 7))
        bench.step(Tick())
        alone = bench.records(4).records[0]._replace(value=do.Voters(voter_set(1)))  # type: ignore[index]
        bench.answer(bench.sent(FetchRecords)[0], bench.led(records=(alone,), high_watermark=1, log_start_offset=0))
        bench.advance(1000)
        assert (bench.role, bench.node.voters) == ("Unattached", voter_set(1))
        asked = []
        for _ in range(3):
            sent = bench.sent(FetchRecords)[-1]
            asked.append(sent.destination)
            bench.answer(sent, FetchRecordsReply(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=5))
            bench.advance(60)
        assert asked == [2, 3, 7]

    def test_an_answer_that_names_the_leader_makes_a_raft_follower(self) -> None:
        bench = RaftBench(key=key_of(9))
        bench.step(Tick())
        (sent,) = bench.sent(FetchRecords)
        fenced = FetchRecordsReply(error=ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=7, leader_id=2)
        bench.answer(sent, fenced)
        assert (bench.role, bench.node.epoch, bench.node.leader_id) == ("Follower", 7, 2)


class TestSuccession:
    def follower(self) -> RaftBench:
        bench = RaftBench(voters=voter_set(1, 2, 3, 4))
        bench.receive(begin(2, 5))
        (sent,) = bench.sent(FetchRecords)
        bench.answer(sent, bench.led(high_watermark=0, log_start_offset=0))
        return bench

    @pytest.mark.parametrize(
        ("preferred", "after_ms"), [((1, 3, 4), 0), ((3, 1, 4), 125), ((3, 4, 1), 250), ((3, 4), 500), ((), 500)]
    )
    def test_the_best_candidate_after_a_resignation_stands_at_once_and_other_candidates_after_it(
        self, preferred: tuple[int, ...], after_ms: int
    ) -> None:
        bench = self.follower()
        assert bench.receive(end(2, 5, *preferred)) == EndEpochReply(leader_id=2, leader_epoch=5)
        if after_ms:
            bench.advance(after_ms - 1)
            assert bench.role == "Follower"
            bench.advance(1)
        assert bench.role == "Prospective"

    def test_preferred_candidates_without_directories_are_known_by_id(self) -> None:
        """So names them EndQuorumEpoch v0, with which Kafka's leaders of a static quorum resign."""
        bench = self.follower()
        bench.receive(replace(end(2, 5), preferred_candidates=(ReplicaKey(1), ReplicaKey(3))))
        assert bench.role == "Prospective"

    def test_no_raft_replica_holds_on_to_a_leader_that_has_resigned(self) -> None:
        bench = self.follower()
        assert not granted(bench, vote(5, 3, pre_vote=True))
        bench.receive(end(2, 5, 3, 1))
        assert granted(bench, vote(5, 3, pre_vote=True))

    def test_end_quorum_epoch_of_an_older_epoch_is_refused(self) -> None:
        bench = self.follower()
        assert error_of(bench.receive(end(3, 4, 1))) is ErrorCode.FENCED_LEADER_EPOCH
        assert bench.role == "Follower"


class TestRestarts:
    def test_a_raft_leader_comes_back_resigned_after_a_restart_and_gives_its_epoch_up(self, bench: RaftBench) -> None:
        bench.elect()
        bench.start()
        bench.step(Tick())
        assert bench.role == "Resigned"
        assert [message.destination for message in bench.sent(EndEpoch)] == [2, 3]
        bench.advance(1000)
        assert (bench.node.epoch, bench.node.leader_id) == (2, -1)

    def test_a_raft_follower_goes_on_following_after_a_restart(self) -> None:
        bench = RaftBench(state=QuorumState(5, 2), log=[5])
        bench.step(Tick())
        assert (bench.role, bench.sent(FetchRecords)[0].destination) == ("Follower", 2)

    def test_a_log_that_has_seen_more_than_the_quorum_state_file_wins_at_a_restart(self) -> None:
        bench = RaftBench(state=QuorumState(3, -1, key_of(2)), log=[3, 6])
        assert bench.node.quorum_state == QuorumState(6)

    def test_a_replica_that_voted_for_itself_does_not_stand_in_that_epoch_again(self) -> None:
        bench = RaftBench(state=QuorumState(3, -1, key_of(1)))
        assert bench.role == "Unattached"
        assert not granted(bench, vote(3, 2))


class TestJitter:
    @pytest.mark.parametrize(("jitter", "expected_ms"), [(0.0, 800), (0.5, 1000), (0.999999, 1200)])
    def test_fetch_timeouts_of_voters_differ_by_a_fifth(self, jitter: float, expected_ms: int) -> None:
        bench = RaftBench(state=QuorumState(5, 2), log=[5], jitter=jitter)
        bench.advance(expected_ms - 1)
        assert bench.role == "Follower"
        bench.advance(1)
        assert bench.role == "Prospective"
