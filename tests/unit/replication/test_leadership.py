from dataclasses import replace

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState
from tailrace.replication.leadership import AfterAnswer, Horizon, InSyncProposal, Leadership
from tailrace.replication.replica_progress import FollowerFetch, SessionVisits

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
LAG_MS = 1000


def state(*in_sync: BrokerId, epoch: int = 0, **options: object) -> PartitionState:
    made = PartitionState(
        topic_id=TopicId(b"t" * 16),
        replicas=(ONE, TWO, THREE),
        in_sync_replicas=in_sync,
        leader=ONE,
        leader_epoch=LeaderEpoch(5),
        partition_epoch=epoch,
    )
    return replace(made, **options)  # type: ignore[arg-type]


class LeadershipBench:
    """A leader whose log ends at 20, whose epoch began at 10 and whose high watermark is 12."""

    def __init__(self, state: PartitionState) -> None:
        self.now_ms = 0
        self.high_watermark = 12
        self.leadership = Leadership(state, own_id=ONE, now_ms=0)

    @property
    def horizon(self) -> Horizon:
        return Horizon(self.high_watermark, 10, 20, self.now_ms, LAG_MS)

    def fetch(self, replica: BrokerId, offset: int, *, broker_epoch: int = -1, may_join: bool = True) -> bool:
        return self.leadership.take_fetch(replica, FollowerFetch(offset, 0, broker_epoch, may_join), self.horizon)

    def safe(self, own: int = 20) -> int:
        return self.leadership.safe_end_offset(own, log_end_offset=20, now_ms=self.now_ms, lag_ms=LAG_MS)

    def proposed(self) -> InSyncProposal:
        proposal = self.leadership.propose(self.horizon)
        assert proposal is not None
        return proposal

    def propose(self) -> tuple[int, ...] | None:
        proposal = self.leadership.propose(self.horizon)
        return None if proposal is None else tuple(member for member, _ in proposal.members)


def test_the_high_watermark_is_the_smallest_end_of_those_in_sync() -> None:
    bench = LeadershipBench(state(ONE, TWO))
    assert bench.safe() == -1, "a replica that has not fetched holds the safe end"
    bench.fetch(TWO, 17)
    assert (bench.safe(), bench.safe(own=15)) == (17, 15)


def test_a_replica_that_keeps_up_holds_the_high_watermark_before_it_is_in_sync() -> None:
    bench = LeadershipBench(state(ONE))
    assert bench.safe() == 20
    bench.fetch(TWO, 20)
    bench.leadership.replicas[TWO].end_offset = 18
    assert bench.safe() == 18
    bench.now_ms = LAG_MS + 1
    assert bench.safe() == 20, "it has not caught up for too long"


def test_a_dead_replica_that_is_not_in_sync_is_not_waited_for() -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 20)
    bench.leadership.replicas[TWO].end_offset = 18
    assert bench.leadership.exclude([TWO, BrokerId(9)]), "it may have held the high watermark back"
    assert not bench.leadership.exclude([TWO]), "it does so no more"
    assert bench.safe() == 20
    assert bench.propose() is None
    bench.fetch(TWO, 3)
    assert bench.safe() == 20, "back, and far behind"


@pytest.mark.parametrize(("offset", "joins"), [(9, False), (11, False), (12, True), (20, True)])
def test_a_replica_joins_at_the_high_watermark(offset: int, joins: bool) -> None:
    bench = LeadershipBench(state(ONE))
    assert bench.fetch(TWO, offset) is joins
    assert bench.propose() == ((ONE, TWO) if joins else None)


def test_a_replica_joins_when_it_has_reached_the_leaders_epoch() -> None:
    bench = LeadershipBench(state(ONE))
    bench.high_watermark = 5
    assert not bench.fetch(TWO, 9)
    assert bench.fetch(TWO, 10)


def test_a_fenced_replica_does_not_join() -> None:
    bench = LeadershipBench(state(ONE))
    assert not bench.fetch(TWO, 20, may_join=False)
    assert bench.propose() is None


def test_a_replica_leaves_when_it_has_lagged_for_too_long() -> None:
    bench = LeadershipBench(state(ONE, TWO, THREE))
    bench.now_ms = LAG_MS
    bench.fetch(TWO, 20)
    assert bench.propose() is None, "a new leader gives every follower the permitted lag"
    bench.now_ms += 1
    assert bench.propose() == (ONE, TWO)


def test_a_proposed_replica_holds_the_high_watermark_until_the_outcome_is_known() -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 15, may_join=True)
    proposal = bench.proposed()
    assert proposal == InSyncProposal(5, 0, ((ONE, -1), (TWO, -1)))
    bench.now_ms = 10 * LAG_MS
    assert bench.safe() == 15
    assert bench.propose() is None, "a single change at a time"


def refused() -> LeadershipBench:
    """A leader that has proposed replica 2 at offset 15, and was refused."""
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 15)
    proposal = bench.proposed()
    assert bench.leadership.on_response(proposal, KafkaError(ErrorCode.INELIGIBLE_REPLICA)) is AfterAnswer.PROPOSE_ANEW
    bench.now_ms = 10 * LAG_MS
    return bench


def test_a_refused_replica_holds_the_high_watermark_until_no_late_copy_of_the_proposal_can_be_carried_out() -> None:
    bench = refused()
    assert bench.safe() == 15
    barrier = bench.leadership.propose(bench.horizon)
    assert barrier == InSyncProposal(5, 0, ((ONE, -1),)), "the present in-sync replicas, for a later partition epoch"
    assert bench.safe() == 15
    assert bench.leadership.on_response(barrier, state(ONE, epoch=1)) is AfterAnswer.NOTHING
    bench.leadership.take_state(state(ONE, epoch=1))
    assert (bench.leadership.pending, bench.safe()) == (None, 20)


def test_a_refused_replica_is_not_proposed_again_before_the_partition_epoch_has_risen() -> None:
    bench = refused()
    assert not bench.fetch(TWO, 20)
    assert bench.propose() == (ONE,)
    bench.leadership.take_state(state(ONE, epoch=1))
    assert bench.fetch(TWO, 20)
    assert bench.propose() == (ONE, TWO)


def test_a_late_copy_of_an_isr_proposal_that_is_carried_out_after_all_ends_the_doubt() -> None:
    bench = refused()
    barrier = bench.proposed()
    outcome = KafkaError(ErrorCode.INVALID_UPDATE_VERSION)
    assert bench.leadership.on_response(barrier, outcome) is AfterAnswer.NOTHING
    bench.leadership.take_state(state(ONE, TWO, epoch=1))
    assert (bench.leadership.pending, bench.safe()) == (None, 15)


def test_a_controller_that_changes_nothing_ends_the_doubt_about_an_isr_proposal() -> None:
    """Apache Kafka's controller answers a proposal that changes nothing with the unchanged partition epoch."""
    bench = refused()
    barrier = bench.proposed()
    bench.leadership.on_response(barrier, state(ONE))
    assert (bench.leadership.pending, bench.safe()) == (None, 20)


def test_a_refused_barrier_of_an_isr_proposal_is_tried_again_at_the_next_look_and_not_at_once() -> None:
    bench = refused()
    barrier = bench.proposed()
    outcome = KafkaError(ErrorCode.INELIGIBLE_REPLICA)
    assert bench.leadership.on_response(barrier, outcome) is AfterAnswer.NOTHING
    assert (bench.safe(), bench.propose()) == (15, (ONE,))


def test_a_refused_departure_from_the_isr_leaves_no_doubt() -> None:
    bench = LeadershipBench(state(ONE, TWO, THREE))
    bench.now_ms = LAG_MS + 1
    bench.fetch(TWO, 20)
    proposal = bench.proposed()
    outcome = KafkaError(ErrorCode.INELIGIBLE_REPLICA)
    assert bench.leadership.on_response(proposal, outcome) is AfterAnswer.NOTHING
    assert bench.propose() == (ONE, TWO), "looked at again"


def test_a_state_of_the_same_partition_epoch_does_not_end_an_isr_proposal() -> None:
    """The state that a leader has is followed again whenever a setting of its topic changes."""
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 15)
    proposal = bench.leadership.propose(bench.horizon)
    bench.leadership.take_state(state(ONE))
    bench.now_ms = 10 * LAG_MS
    assert (bench.leadership.pending, bench.safe()) == (proposal, 15)


def test_a_state_of_the_same_partition_epoch_does_not_end_a_doubt_about_an_isr_proposal() -> None:
    bench = refused()
    bench.leadership.take_state(state(ONE))
    assert bench.safe() == 15


def test_a_silent_replica_does_not_come_in_sync_with_another_one() -> None:
    bench = LeadershipBench(state(ONE, TWO, THREE))
    bench.fetch(TWO, 19)
    bench.fetch(THREE, 19)
    bench.now_ms = LAG_MS + 1
    assert bench.propose() == (ONE,)
    bench.leadership.take_state(state(ONE, epoch=1))
    assert bench.propose() is None, "both have all below the high watermark, and their last fetches are too old"
    assert bench.fetch(TWO, 19)
    assert bench.propose() == (ONE, TWO)


def test_a_slow_replica_comes_in_sync_by_its_own_fetch_only() -> None:
    """The replica was not caught up for replica.lag.time.max.ms, and has everything below the high watermark."""
    bench = LeadershipBench(state(ONE))
    bench.now_ms = 10 * LAG_MS
    assert bench.fetch(TWO, 12)
    bench.fetch(THREE, 11)
    assert bench.propose() == (ONE, TWO)
    bench.leadership.take_state(state(ONE, epoch=1))
    assert bench.propose() is None, "a fetch counts for one look"
    assert bench.fetch(TWO, 13)
    bench.now_ms += LAG_MS + 1
    assert bench.propose() is None, "this look came too late"


def test_a_replica_that_is_to_leave_holds_the_high_watermark_until_it_has_left() -> None:
    bench = LeadershipBench(state(ONE, TWO))
    bench.fetch(TWO, 15)
    bench.now_ms = 2 * LAG_MS
    assert bench.propose() == (ONE,)
    assert bench.safe() == 15
    bench.leadership.take_state(state(ONE, epoch=1))
    assert (bench.leadership.pending, bench.safe()) == (None, 20)


@pytest.mark.parametrize(
    ("code", "next_step", "is_pending"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, AfterAnswer.REPEAT, True),
        (ErrorCode.NOT_CONTROLLER, AfterAnswer.REPEAT, True),
        (ErrorCode.INVALID_UPDATE_VERSION, AfterAnswer.NOTHING, True),
        (ErrorCode.FENCED_LEADER_EPOCH, AfterAnswer.NOTHING, True),
        (ErrorCode.NEW_LEADER_ELECTED, AfterAnswer.NOTHING, True),
        (ErrorCode.INELIGIBLE_REPLICA, AfterAnswer.PROPOSE_ANEW, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, AfterAnswer.PROPOSE_ANEW, False),
        (ErrorCode.INVALID_REQUEST, AfterAnswer.NOTHING, False),
    ],
)
def test_an_isr_proposal_that_may_have_been_carried_out_stays_pending(
    code: ErrorCode, next_step: AfterAnswer, is_pending: bool
) -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 20)
    proposal = bench.proposed()
    assert bench.leadership.on_response(proposal, KafkaError(code)) is next_step
    assert (bench.leadership.pending is proposal) is is_pending


def test_an_answer_that_changes_nothing_ends_the_isr_proposal() -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 20)
    proposal = bench.proposed()
    assert bench.leadership.on_response(proposal, state(ONE, TWO)) is AfterAnswer.NOTHING
    assert bench.leadership.pending is None


def test_a_leader_reports_its_recovery_before_any_replica_joins() -> None:
    bench = LeadershipBench(state(ONE, is_recovering=True))
    assert not bench.fetch(TWO, 20)
    assert bench.propose() == (ONE,)
    bench.leadership.take_state(state(ONE, epoch=1))
    assert bench.propose() == (ONE, TWO)


def test_the_epochs_of_registrations_go_with_an_isr_proposal() -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 20, broker_epoch=77)
    proposal = bench.proposed()
    assert proposal.members == ((ONE, -1), (TWO, 77))


def test_a_leader_refuses_a_fetch_of_an_earlier_registration() -> None:
    bench = LeadershipBench(state(ONE, TWO))
    bench.fetch(TWO, 13, broker_epoch=8)
    with pytest.raises(KafkaError) as refusal:
        bench.fetch(TWO, 19, broker_epoch=7)
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.safe() == 13


def test_a_leader_refuses_a_stranger_and_not_a_new_replica() -> None:
    bench = LeadershipBench(state(ONE, TWO))
    four = BrokerId(4)
    with pytest.raises(KafkaError) as refusal:
        bench.fetch(four, 19)
    assert refusal.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH
    bench.leadership.take_state(state(ONE, TWO, epoch=1, replicas=(ONE, TWO, four)))
    bench.fetch(four, 19)
    assert sorted(bench.leadership.replicas) == [TWO, four]


def test_a_replica_that_has_left_holds_nothing_and_is_not_wanted_before_it_asks_again() -> None:
    bench = LeadershipBench(state(ONE, TWO, THREE))
    bench.fetch(TWO, 20)
    bench.fetch(THREE, 15)
    assert bench.safe() == 15
    bench.leadership.take_state(state(ONE, TWO, epoch=1))
    assert bench.safe() == 20, "it was caught up a moment ago, and has said that it cannot store"
    assert bench.propose() is None
    bench.fetch(THREE, 20)
    assert bench.propose() == (ONE, TWO, THREE)


def test_the_last_fetch_of_a_replica_that_has_left_holds_the_high_watermark_for_a_second() -> None:
    bench = LeadershipBench(state(ONE, THREE))
    bench.fetch(THREE, 20)
    bench.leadership.take_state(state(ONE, epoch=1))
    bench.fetch(THREE, 20)
    safe = bench.leadership.safe_end_offset
    assert safe(25, log_end_offset=25, now_ms=1_000, lag_ms=30_000) == 20, "it may be about to join"
    assert safe(25, log_end_offset=25, now_ms=1_001, lag_ms=30_000) == 25


def test_a_leader_knows_until_when_a_joining_replica_holds_the_high_watermark_back() -> None:
    bench = LeadershipBench(state(ONE))
    assert (bench.safe(), bench.leadership.held_until_ms) == (20, None)
    bench.now_ms = 100
    bench.fetch(TWO, 20)
    bench.leadership.replicas[TWO].end_offset = 18
    assert (bench.safe(), bench.leadership.held_until_ms) == (18, 1_101)
    assert (bench.safe(own=18), bench.leadership.held_until_ms) == (18, None)
    bench.safe()
    bench.now_ms = 1_101
    assert (bench.safe(), bench.leadership.held_until_ms) == (20, None)


def test_a_replica_in_sync_that_is_behind_the_joining_one_has_no_time_that_ends() -> None:
    bench = LeadershipBench(state(ONE, THREE))
    bench.fetch(THREE, 17)
    bench.fetch(TWO, 20)
    bench.leadership.replicas[TWO].end_offset = 18
    assert (bench.safe(), bench.leadership.held_until_ms) == (17, None)


def pending(bench: LeadershipBench) -> InSyncProposal:
    assert bench.leadership.pending is not None
    return bench.leadership.pending


def test_a_replica_that_may_join_is_reconsidered_when_no_proposal_is_pending() -> None:
    bench = LeadershipBench(state(ONE))
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.NOTHING
    bench.fetch(TWO, 20)
    assert bench.propose() == (ONE, TWO)
    bench.fetch(THREE, 20)
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.NOTHING, "a change is pending"
    bench.leadership.take_state(state(ONE, TWO, epoch=1))
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.PROPOSE_ANEW
    bench.now_ms = LAG_MS + 1
    assert bench.propose() is None
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.NOTHING, "it has been silent for too long"


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST])
def test_a_refused_replica_is_reconsidered_after_a_while_and_any_other_one_at_once(code: ErrorCode) -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 20)
    bench.propose()
    bench.leadership.on_response(pending(bench), KafkaError(code))
    bench.leadership.take_state(state(ONE, epoch=1))
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.PROPOSE_LATER
    bench.fetch(THREE, 20)
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.PROPOSE_ANEW


def test_a_refused_replica_that_fetches_again_is_as_good_as_any_other() -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 20)
    bench.propose()
    bench.leadership.on_response(pending(bench), KafkaError(ErrorCode.INVALID_REQUEST))
    bench.fetch(TWO, 20)
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.PROPOSE_ANEW


def test_a_leader_whose_doubts_about_isr_proposals_are_refused_asks_again_after_a_while() -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 20)
    refusal = KafkaError(ErrorCode.INELIGIBLE_REPLICA)
    bench.propose()
    assert bench.leadership.on_response(pending(bench), refusal) is AfterAnswer.PROPOSE_ANEW
    assert bench.propose() == (ONE,)
    assert bench.leadership.on_response(pending(bench), refusal) is AfterAnswer.NOTHING
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.PROPOSE_LATER


def test_a_resting_replica_that_may_join_is_reconsidered_long_after_its_last_recorded_fetch() -> None:
    bench = LeadershipBench(state(ONE))
    bench.fetch(TWO, 20)
    visits = SessionVisits(broker_epoch=-1, may_join=True)
    assert bench.leadership.replicas[TWO].rest(visits, leader_end_offset=20)
    bench.now_ms = 100 * LAG_MS
    bench.leadership.replicas[TWO].looked_at()
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.NOTHING
    visits.fetched(bench.now_ms)
    assert bench.leadership.reconsider(bench.horizon) is AfterAnswer.PROPOSE_ANEW
