"""The rules of sinks: repeated batches, runs that follow each other, and members before and after their batch."""

from dataclasses import replace

import pytest

from tailrace.coordinators.transactions.commands import InitializeProducer, ProducerIdentity, SinkMemberIdentity
from tailrace.coordinators.transactions.records import SinkRecord
from tailrace.coordinators.transactions.sink import MOST_PAST_RUNS
from tailrace.coordinators.transactions.transaction import LAST_EPOCH, TransactionState
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import RowsDigest, SinkMember
from testkit.coordinators.sink_coordinator import (
    DECIDED,
    NOW,
    REPEATED,
    SinkCoordinator,
    addition,
    after,
    commit,
    ending,
    initialization,
    of,
    unknown_member,
)

E, S = ErrorCode, TransactionState


# Repetitions and runs


def test_a_batch_that_was_decided_is_answered_as_the_first_time() -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 0))
    assert coordinator.decide(commit("r1", 0, member)) == DECIDED
    for _ in range(2):
        assert coordinator.machine.decide(commit("r1", 0, member), NOW).records == ()
        assert coordinator.decide(commit("r1", 0, member)) == REPEATED
        coordinator.complete(of("r1", 0))


def test_a_late_repetition_of_an_earlier_batch_of_the_run_is_answered_as_the_first_time() -> None:
    coordinator = after(5)
    assert coordinator.decide(commit("r1", 3)) == REPEATED
    assert coordinator.machine.sinks.last_batch("s") == 5


def test_a_batch_that_a_new_run_has_written_again_is_aborted_and_the_run_is_the_current_one() -> None:
    coordinator = SinkCoordinator()
    again = coordinator.begin(of("r2", 0, 0))
    coordinator.decide(commit("r1", 0, coordinator.begin(of("r1", 0, 0))))
    coordinator.begin(of("r1", 1, 0))
    assert coordinator.decide(commit("r2", 0, again)) == REPEATED
    assert coordinator.state(of("r2", 0, 0)) is S.PREPARE_ABORT
    assert coordinator.state(of("r1", 0, 0)) is S.PREPARE_COMMIT
    assert coordinator.state(of("r1", 1, 0)) is S.PREPARE_ABORT, "its run was followed"
    assert coordinator.sink is not None
    assert (coordinator.sink.run, coordinator.sink.last_batch) == ("r2", 0)
    assert coordinator.code(commit("r1", 1)) is E.PRODUCER_FENCED


def test_a_new_run_with_an_earlier_batch_is_refused_and_says_the_way_out() -> None:
    refusal = after(5).refusal(commit("r2", 4))
    assert refusal.code is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    for part in ("up to 5", "batch 4", "the checkpoint that the sink was written with", "another sink id"):
        assert part in refusal.detail


@pytest.mark.parametrize("batch", [0, 1, 2, 9])
def test_a_run_that_was_followed_is_refused_for_good(batch: int) -> None:
    coordinator = after(1, "r2", past_runs=("r0", "r1"))
    for past in ("r0", "r1"):
        refusal = coordinator.refusal(commit(past, batch, unknown_member(past, batch)))
        assert refusal.code is E.PRODUCER_FENCED
        assert f"run '{past}'" in refusal.detail


def test_past_runs_are_bounded() -> None:
    coordinator = SinkCoordinator()
    for number in range(MOST_PAST_RUNS + 2):
        coordinator.decide(commit(f"r{number}", number))
    assert coordinator.sink is not None
    assert len(coordinator.sink.past_runs) == MOST_PAST_RUNS
    assert coordinator.code(commit("r1", 1_000)) is E.PRODUCER_FENCED
    assert coordinator.decide(commit("r0", 1_000)) == DECIDED, "forgotten: a new run"


# Rows

ROWS = RowsDigest(100, 7)


@pytest.mark.parametrize("others", [RowsDigest(200, 7), RowsDigest(100, 8), RowsDigest(0, 0), RowsDigest(200, 7, 2)])
@pytest.mark.parametrize("run", ["r1", "r2"])
def test_a_batch_that_comes_again_with_other_rows_is_refused_and_changes_nothing(run: str, others: RowsDigest) -> None:
    coordinator = after(5, rows=ROWS)
    refusal = coordinator.refusal(commit(run, 5, rows=others))
    assert refusal.code is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    for part in ("batch 5", "100 rows", "other rows", f"{others.row_count} of them", "nothing"):
        assert part in refusal.detail
    assert coordinator.decide(commit("r1", 6)) == DECIDED, "the refused run follows nothing"


def test_a_batch_that_comes_again_with_its_rows_is_a_repetition() -> None:
    coordinator = after(5, rows=ROWS)
    for run in ("r1", "r2", "r2"):
        assert coordinator.decide(commit(run, 5, rows=ROWS)) == REPEATED
    assert coordinator.code(commit("r2", 5, rows=RowsDigest())) is E.OUT_OF_ORDER_SEQUENCE_NUMBER, "rows are kept"


def test_rows_that_one_side_does_not_know_are_not_compared() -> None:
    """A decision of an older broker or client has none, and a writer may accept that its rows are dropped."""
    coordinator = after(5, rows=ROWS)
    assert coordinator.decide(commit("r2", 5)) == REPEATED
    assert coordinator.sink is not None
    assert coordinator.sink.rows == ROWS
    older = SinkCoordinator()
    older.decide(commit("r1", 5, older.begin(of("r1", 5))))
    older.complete(of("r1", 5))
    assert older.decide(commit("r2", 5, rows=ROWS)) == REPEATED
    assert older.sink is not None
    assert older.sink.rows is None


@pytest.mark.parametrize("first", [None, RowsDigest()])
def test_a_batch_that_was_given_up_does_not_pass_for_written(first: RowsDigest | None) -> None:
    """An empty batch gives up the failed batch. A checkpoint older by two batches brings the failed batch again."""
    coordinator = after(4, rows=ROWS)
    assert coordinator.decide(commit("r1", 5, rows=first)) == DECIDED
    assert coordinator.code(commit("r2", 5, rows=ROWS)) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert coordinator.decide(commit("r2", 5, rows=RowsDigest())) == REPEATED
    assert coordinator.decide(commit("r2", 6, rows=ROWS)) == DECIDED


def test_the_rows_of_the_last_batch_replace_those_of_the_one_before() -> None:
    coordinator = after(5, rows=ROWS)
    assert coordinator.decide(commit("r2", 6, rows=RowsDigest(3, 1))) == DECIDED
    assert coordinator.code(commit("r2", 6, rows=ROWS)) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert coordinator.decide(commit("r2", 7, coordinator.begin(of("r2", 7)))) == DECIDED
    assert coordinator.sink is not None
    assert coordinator.sink.rows is None


# Origins


def test_another_origin_is_refused_by_name_with_the_way_out() -> None:
    refusal = after(1, origin="/one").refusal(commit("r2", 2, origin="/two"))
    assert refusal.code is E.DUPLICATE_RESOURCE
    for part in ("'/one'", "'/two'", "a sink id of its own", "takes over"):
        assert part in refusal.detail


def test_a_moved_checkpoint_takes_over() -> None:
    coordinator = after(1, origin="/one")
    assert coordinator.decide(commit("r2", 2, origin="/two", takes_over=True)) == DECIDED
    assert coordinator.sink is not None
    assert coordinator.sink.origin == "/two"
    assert coordinator.code(commit("r3", 3, origin="/one")) is E.DUPLICATE_RESOURCE


def test_a_take_over_does_not_bring_a_run_back() -> None:
    coordinator = after(1, "r2", origin="/one", past_runs=("r1",))
    assert coordinator.code(commit("r1", 2, origin="/two", takes_over=True)) is E.PRODUCER_FENCED


def test_no_origin_makes_no_claim() -> None:
    coordinator = after(1, origin="/one")
    coordinator.decide(commit("r1", 2))
    assert coordinator.sink is not None
    assert coordinator.sink.origin == "/one"
    nameless = after(1)
    nameless.decide(commit("r1", 2, origin="/two"))
    assert nameless.sink is not None
    assert nameless.sink.origin == "/two"


# Members before and after their batch


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (of("r2", 5), E.DUPLICATE_SEQUENCE_NUMBER),
        (of("r2", 4), E.DUPLICATE_SEQUENCE_NUMBER),
        (of("r3", 5), E.DUPLICATE_SEQUENCE_NUMBER),
        (of("r3", 4), E.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (of("r1", 5), E.PRODUCER_FENCED),
        (of("r1", 6), E.PRODUCER_FENCED),
        (of("r2", 6), None),
        (of("r3", 6), None),
    ],
)
def test_a_member_is_initialized_for_a_batch_to_come(member: SinkMember, code: ErrorCode | None) -> None:
    coordinator = after(5, "r2", past_runs=("r1",))
    if code is None:
        assert coordinator.begin(member).producer_epoch == 0
    else:
        assert coordinator.code(initialization(member)) is code


@pytest.mark.parametrize("name", ["__tailrace_sink/s", "__tailrace_sink/s/r/x/0.0"])
def test_a_malformed_member_is_not_initialized(name: str) -> None:
    command = InitializeProducer(transactional_id=name, timeout_ms=1_000, fresh_producer_id=1)
    assert SinkCoordinator().code(command) is E.INVALID_REQUEST


def test_a_member_does_not_begin_after_the_decision() -> None:
    """The member was initialized before, and its deletion is on its way or does not fit."""
    coordinator = SinkCoordinator()
    late = coordinator.initialize(of("r1", 0, 0, 1))
    decision = coordinator.machine.decide(commit("r1", 0), NOW)
    of_sink = tuple(record for record in decision.records if isinstance(record, SinkRecord))
    coordinator.machine.stage(of_sink)
    assert coordinator.code(addition(late)) is E.CONCURRENT_TRANSACTIONS, "the decision may be lost"
    assert coordinator.code(initialization(of("r1", 0, 9))) is E.CONCURRENT_TRANSACTIONS
    coordinator.machine.commit(of_sink)
    assert coordinator.code(addition(late)) is E.PRODUCER_FENCED
    with pytest.raises(KafkaError) as refused:
        coordinator.machine.verify(addition(late))
    assert refused.value.code is E.PRODUCER_FENCED


def test_members_of_the_next_batch_go_on_while_a_decision_is_staged() -> None:
    coordinator = SinkCoordinator()
    coordinator.machine.stage(coordinator.machine.decide(commit("r1", 0), NOW).records)
    assert coordinator.begin(of("r1", 1)).producer_epoch == 0


def test_a_member_commits_by_the_decision_of_its_batch_alone() -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 0))
    for version in (0, 2):
        refusal = coordinator.refusal(ending(member, is_commit=True, version=version))
        assert refusal.code is E.INVALID_TXN_STATE
        assert "CommitSink" in refusal.detail
    assert coordinator.state(of("r1", 0)) is S.ONGOING


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_member_leaves_the_log_when_its_end_is_complete(is_commit: bool) -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 0))
    coordinator.decide(commit("r1", 0, member) if is_commit else ending(member, is_commit=False))
    assert coordinator.machine.sinks.is_complete("s", 0) is not is_commit
    coordinator.complete(of("r1", 0))
    assert coordinator.state(of("r1", 0)) is None
    assert coordinator.machine.sinks.is_complete("s", 0)


def test_a_batch_is_complete_when_it_and_those_before_are() -> None:
    coordinator = SinkCoordinator()
    for batch in (0, 1):
        coordinator.decide(commit("r1", batch, coordinator.begin(of("r1", batch))))
    sinks = coordinator.machine.sinks
    coordinator.complete(of("r1", 1))
    assert not sinks.is_complete("s", 1)
    coordinator.complete(of("r1", 0))
    assert sinks.is_complete("s", 1)


def test_the_last_epoch_of_a_producer_is_followed_by_the_one_that_fences() -> None:
    coordinator = SinkCoordinator()
    member = of("r1", 0)
    command = replace(initialization(member), fresh_producer_epoch=LAST_EPOCH)
    identity = coordinator.decide(command)
    assert isinstance(identity, ProducerIdentity)
    named = SinkMemberIdentity(
        transactional_id=member.transactional_id, producer_id=99, producer_epoch=identity.producer_epoch
    )
    coordinator.decide(addition(named))
    coordinator.decide(commit("r1", 0, named))
    markers = coordinator.machine.markers(member.transactional_id)
    assert markers is not None
    assert markers.producer_epoch == LAST_EPOCH + 1 == 2**15 - 1
