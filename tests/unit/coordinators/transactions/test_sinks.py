"""The rules of sinks: state x request -> records and answer."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pytest

from tailrace.coordinators.config import TransactionConfig
from tailrace.coordinators.transactions.commands import (
    AbortTimedOut,
    AddPartitions,
    Command,
    CommitSink,
    CompleteTransaction,
    EndTransaction,
    ForgetSink,
    InitializeProducer,
    ProducerIdentity,
    SinkCommitted,
    SinkMemberIdentity,
    SweepSink,
)
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.records import CoordinatorRecord, SinkRecord, most_bytes
from tailrace.coordinators.transactions.sink import LONGEST_ORIGIN, MOST_PAST_RUNS, Sink
from tailrace.coordinators.transactions.sinks import MOST_DECISION_BYTES, MOST_MEMBERS
from tailrace.coordinators.transactions.transaction import LAST_EPOCH, TransactionState
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SinkMember, sink_key

E, S = ErrorCode, TransactionState
NOW: Final = 1_000_000
ORDERS = frozenset((TopicPartition("orders", 0),))
DECIDED, REPEATED = SinkCommitted(is_repetition=False), SinkCommitted(is_repetition=True)


class SinkCoordinator:
    """The machine, with every decision committed at once unless it is held."""

    def __init__(self, **config: int) -> None:
        self.machine = TransactionCoordinator(config=TransactionConfig(**config))
        self._producer_ids = iter(range(100, 1_000_000))
        self.now_ms = NOW

    def decide(self, command: Command) -> object:
        decision = self.machine.decide(command, self.now_ms)
        self.machine.stage(decision.records)
        self.machine.commit(decision.records)
        return decision.response

    def refusal(self, command: Command) -> KafkaError:
        with pytest.raises(KafkaError) as refused:
            self.machine.decide(command, self.now_ms)
        return refused.value

    def code(self, command: Command) -> ErrorCode:
        return self.refusal(command).code

    def initialize(self, member: SinkMember, *, producer_id: int | None = None) -> SinkMemberIdentity:
        fresh = next(self._producer_ids) if producer_id is None else producer_id
        identity = self.decide(initialization(member, fresh))
        assert isinstance(identity, ProducerIdentity)
        return SinkMemberIdentity(
            transactional_id=member.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )

    def begin(self, member: SinkMember) -> SinkMemberIdentity:
        identity = self.initialize(member)
        self.decide(addition(identity))
        return identity

    def state(self, member: SinkMember) -> TransactionState | None:
        known = self.machine.transactions.get(member.transactional_id)
        return None if known is None else known.state

    def complete(self, *members: SinkMember) -> None:
        for member in members:
            self.decide(CompleteTransaction(transactional_id=member.transactional_id))

    @property
    def sink(self) -> Sink | None:
        return self.machine.sinks.known.get("s")


def of(run: str, batch: int, task: int = 0, attempt: int = 0) -> SinkMember:
    return SinkMember("s", run, batch, task, attempt)


def initialization(member: SinkMember, fresh: int = 99) -> InitializeProducer:
    return InitializeProducer(
        transactional_id=member.transactional_id, timeout_ms=60_000, fresh_producer_id=fresh, fresh_producer_epoch=0
    )


def addition(identity: SinkMemberIdentity) -> AddPartitions:
    return AddPartitions(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        partitions=ORDERS,
        client_version=2,
    )


def commit(
    run: str,
    batch: int,
    *members: SinkMemberIdentity,
    origin: str | None = None,
    takes_over: bool = False,
) -> CommitSink:
    return CommitSink(sink_id="s", run=run, batch=batch, origin=origin, takes_over=takes_over, members=members)


def keys(records: Iterable[CoordinatorRecord]) -> list[str]:
    return [record.transactional_id for record in records]


def after(
    batch: int, run: str = "r1", *, origin: str | None = None, past_runs: tuple[str, ...] = ()
) -> SinkCoordinator:
    """A coordinator whose sink has taken this batch from this run, and from others before."""
    coordinator = SinkCoordinator()
    for past in past_runs:
        coordinator.decide(commit(past, 0, origin=origin))
    coordinator.decide(commit(run, batch, origin=origin))
    return coordinator


# The decision


def test_a_batch_is_one_decision_of_all_its_members_and_the_sink() -> None:
    coordinator = SinkCoordinator()
    members = [coordinator.begin(of("r1", 0, task)) for task in (0, 1)]
    decision = coordinator.machine.decide(commit("r1", 0, *members, origin="/here"), NOW)
    assert keys(decision.records) == [*(member.transactional_id for member in members), sink_key("s")]
    assert decision.response == DECIDED
    assert coordinator.state(of("r1", 0, 0)) is S.ONGOING, "a decision changes nothing"
    coordinator.decide(commit("r1", 0, *members, origin="/here"))
    assert coordinator.state(of("r1", 0, 0)) is coordinator.state(of("r1", 0, 1)) is S.PREPARE_COMMIT
    assert coordinator.sink == Sink(last_batch=0, run="r1", origin="/here", updated_at_ms=NOW)


def test_the_next_epoch_fences_members_that_commit_and_those_that_do_not() -> None:
    coordinator = SinkCoordinator()
    first, second = coordinator.begin(of("r1", 0, 0, 0)), coordinator.begin(of("r1", 0, 0, 1))
    coordinator.decide(commit("r1", 0, second))
    for identity, is_commit in ((first, False), (second, True)):
        markers = coordinator.machine.markers(identity.transactional_id)
        assert markers is not None
        assert (markers.is_commit, markers.partitions) == (is_commit, ORDERS)
        assert (markers.producer_id, markers.producer_epoch) == (identity.producer_id, identity.producer_epoch + 1)


def test_other_open_transactions_up_to_the_batch_are_aborted_and_later_ones_stay() -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 3))
    other_sink = SinkMember("t", "r1", 3, 0, 0)
    for other in (of("r1", 2), of("r1", 3, 0, 1), of("r0", 3, 7), of("r1", 4), other_sink):
        coordinator.begin(other)
    coordinator.decide(commit("r1", 3, member))
    for aborted in (of("r1", 2), of("r1", 3, 0, 1), of("r0", 3, 7)):
        assert coordinator.state(aborted) is S.PREPARE_ABORT
    for kept in (of("r1", 4), other_sink):
        assert coordinator.state(kept) is S.ONGOING


def test_open_transactions_of_a_run_that_is_followed_are_aborted_whatever_their_batch() -> None:
    coordinator = after(0, "r1")
    coordinator.begin(of("r1", 7))
    coordinator.decide(commit("r2", 1, coordinator.begin(of("r2", 1))))
    assert coordinator.state(of("r1", 7)) is S.PREPARE_ABORT


def test_members_that_never_began_are_deleted() -> None:
    coordinator = SinkCoordinator()
    coordinator.initialize(of("r1", 0, 5))
    coordinator.initialize(of("r1", 1, 5))
    coordinator.decide(commit("r1", 0, coordinator.begin(of("r1", 0))))
    assert coordinator.state(of("r1", 0, 5)) is None
    assert coordinator.state(of("r1", 1, 5)) is S.EMPTY


def test_a_batch_without_members_is_decided_too() -> None:
    coordinator = SinkCoordinator()
    assert coordinator.decide(commit("r1", 4)) == DECIDED
    assert coordinator.machine.sinks.last_batch("s") == 4


def test_the_next_batch_may_leave_numbers_out() -> None:
    coordinator = after(4)
    assert coordinator.decide(commit("r1", 9)) == DECIDED


# Refusals: nothing is decided


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (commit("r1", -1), "batch -1"),
        (commit("r 1", 0), "a run has"),
        (replace(commit("r1", 0), sink_id="s/t"), "a sink id has"),
        (commit("r1", 0, origin="x" * (LONGEST_ORIGIN + 1)), "an origin has"),
    ],
)
def test_a_malformed_request_is_refused(command: CommitSink, text: str) -> None:
    refusal = SinkCoordinator().refusal(command)
    assert refusal.code is E.INVALID_REQUEST
    assert text in refusal.detail


@pytest.mark.parametrize("other", [SinkMember("t", "r1", 0, 0, 0), of("r2", 0), of("r1", 1)])
def test_a_member_of_another_sink_run_or_batch_is_refused_by_name(other: SinkMember) -> None:
    coordinator = SinkCoordinator()
    refusal = coordinator.refusal(commit("r1", 0, coordinator.begin(other)))
    assert refusal.code is E.INVALID_REQUEST
    assert other.transactional_id in refusal.detail


def test_an_ordinary_transactional_id_is_no_member() -> None:
    ordinary = SinkMemberIdentity(transactional_id="pay", producer_id=1, producer_epoch=0)
    assert SinkCoordinator().code(commit("r1", 0, ordinary)) is E.INVALID_REQUEST


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_task_is_named_once(attempt: int) -> None:
    coordinator = SinkCoordinator()
    first = coordinator.begin(of("r1", 0, 3, 0))
    second = first if attempt == 0 else coordinator.begin(of("r1", 0, 3, 1))
    refusal = coordinator.refusal(commit("r1", 0, first, second))
    assert refusal.code is E.INVALID_REQUEST
    assert f"task 3 is named twice, with the attempts 0 and {attempt}" in refusal.detail


def test_an_unknown_member_refuses_the_whole_by_name() -> None:
    coordinator = SinkCoordinator()
    known = coordinator.begin(of("r1", 0, 0))
    unknown = replace(known, transactional_id=of("r1", 0, 1).transactional_id)
    refusal = coordinator.refusal(commit("r1", 0, known, unknown))
    assert refusal.code is E.INVALID_PRODUCER_ID_MAPPING
    assert unknown.transactional_id in refusal.detail


def test_a_member_with_another_producer_is_unknown() -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 0))
    assert coordinator.code(commit("r1", 0, replace(member, producer_id=9))) is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("step", [-1, 1])
def test_a_member_with_another_epoch_is_fenced(step: int) -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 0))
    other = replace(member, producer_epoch=member.producer_epoch + step)
    assert coordinator.code(commit("r1", 0, other)) is E.PRODUCER_FENCED


def test_a_member_that_has_not_begun_has_no_open_transaction() -> None:
    coordinator = SinkCoordinator()
    refusal = coordinator.refusal(commit("r1", 0, coordinator.initialize(of("r1", 0))))
    assert refusal.code is E.INVALID_TXN_STATE
    assert of("r1", 0).transactional_id in refusal.detail


@pytest.mark.parametrize("version", [0, 2])
def test_a_member_that_was_aborted_refuses_the_whole(version: int) -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 0))
    coordinator.decide(ending(member, is_commit=False, version=version))
    assert coordinator.code(commit("r1", 0, member)) is (E.INVALID_TXN_STATE if version == 0 else E.PRODUCER_FENCED)
    coordinator.complete(of("r1", 0))
    assert coordinator.code(commit("r1", 0, member)) is E.INVALID_PRODUCER_ID_MAPPING


def ending(member: SinkMemberIdentity, *, is_commit: bool, version: int = 2) -> EndTransaction:
    return EndTransaction(
        transactional_id=member.transactional_id,
        producer_id=member.producer_id,
        producer_epoch=member.producer_epoch,
        is_commit=is_commit,
        client_version=version,
    )


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_member_that_timed_out_refuses_the_whole(is_complete: bool) -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 0))
    coordinator.now_ms += 60_001
    coordinator.decide(AbortTimedOut(transactional_id=member.transactional_id))
    if is_complete:
        coordinator.complete(of("r1", 0))
    expected = E.INVALID_PRODUCER_ID_MAPPING if is_complete else E.PRODUCER_FENCED
    assert coordinator.code(commit("r1", 0, member)) is expected


def test_nothing_aborts_a_member_after_the_decision() -> None:
    coordinator = SinkCoordinator()
    member = coordinator.begin(of("r1", 0))
    coordinator.decide(commit("r1", 0, member))
    coordinator.now_ms += 10_000_000
    assert coordinator.machine.timed_out(coordinator.now_ms) == []
    coordinator.decide(AbortTimedOut(transactional_id=member.transactional_id))
    assert coordinator.code(ending(member, is_commit=False)) is E.CONCURRENT_TRANSACTIONS
    assert coordinator.state(of("r1", 0)) is S.PREPARE_COMMIT


def test_another_change_under_way_is_retriable() -> None:
    coordinator = SinkCoordinator()
    first, second = coordinator.begin(of("r1", 0, 0)), coordinator.begin(of("r1", 0, 1))
    more = replace(addition(first), partitions=frozenset((TopicPartition("orders", 1),)))
    staged = coordinator.machine.decide(more, NOW).records
    coordinator.machine.stage(staged)
    assert coordinator.code(commit("r1", 0, first, second)) is E.CONCURRENT_TRANSACTIONS
    coordinator.machine.commit(staged)
    decided = coordinator.machine.decide(commit("r1", 0, first, second), NOW).records
    coordinator.machine.stage(decided)
    assert coordinator.code(commit("r1", 0, first, second)) is E.CONCURRENT_TRANSACTIONS
    assert coordinator.code(commit("r1", 1)) is E.CONCURRENT_TRANSACTIONS
    coordinator.machine.discard(decided)
    assert coordinator.decide(commit("r1", 0, first, second)) == DECIDED


def test_a_transaction_that_is_changing_is_swept_when_it_is_not() -> None:
    coordinator = SinkCoordinator()
    member, other = coordinator.begin(of("r1", 0, 0, 0)), coordinator.begin(of("r1", 0, 0, 1))
    more = replace(addition(other), partitions=frozenset((TopicPartition("orders", 1),)))
    staged = coordinator.machine.decide(more, NOW).records
    coordinator.machine.stage(staged)
    coordinator.decide(commit("r1", 0, member))
    coordinator.machine.commit(staged)
    assert coordinator.state(of("r1", 0, 0, 1)) is S.ONGOING
    coordinator.decide(SweepSink(sink_id="s"))
    assert coordinator.state(of("r1", 0, 0, 1)) is S.PREPARE_ABORT
    assert coordinator.machine.decide(SweepSink(sink_id="s"), NOW).records == ()


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
        refusal = coordinator.refusal(commit(past, batch, coordinator_member(past, batch)))
        assert refusal.code is E.PRODUCER_FENCED
        assert f"run '{past}'" in refusal.detail


def coordinator_member(run: str, batch: int) -> SinkMemberIdentity:
    return SinkMemberIdentity(transactional_id=of(run, batch).transactional_id, producer_id=1, producer_epoch=0)


def test_past_runs_are_bounded() -> None:
    coordinator = SinkCoordinator()
    for number in range(MOST_PAST_RUNS + 2):
        coordinator.decide(commit(f"r{number}", number))
    assert coordinator.sink is not None
    assert len(coordinator.sink.past_runs) == MOST_PAST_RUNS
    assert coordinator.code(commit("r1", 1_000)) is E.PRODUCER_FENCED
    assert coordinator.decide(commit("r0", 1_000)) == DECIDED, "forgotten: a new run"


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
    """It was initialized before, and its deletion is on its way or does not fit."""
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


# Size


def test_members_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    coordinator = SinkCoordinator()
    many = frozenset(TopicPartition(f"{'t' * 200}{number}", 0) for number in range(100))
    members = [coordinator.initialize(of("r1", 0, task)) for task in range(60)]
    for member in members:
        coordinator.decide(replace(addition(member), partitions=many))
    refusal = coordinator.refusal(commit("r1", 0, *members))
    assert refusal.code is E.MESSAGE_TOO_LARGE
    assert "fewer tasks" in refusal.detail
    assert coordinator.decide(commit("r1", 0, *members[:40])) == DECIDED


def test_a_request_of_100_000_members_is_refused_without_a_look_at_them() -> None:
    unnamed = SinkMemberIdentity(transactional_id="not even looked at", producer_id=0, producer_epoch=0)
    refusal = SinkCoordinator().refusal(commit("r1", 0, *[unnamed] * 100_000))
    assert refusal.code is E.MESSAGE_TOO_LARGE
    assert MOST_MEMBERS < 100_000


def test_aborts_that_do_not_fit_are_swept_after_the_decision() -> None:
    coordinator = SinkCoordinator()
    many = frozenset(TopicPartition(f"{'t' * 200}{number}", 0) for number in range(100))
    left = [of("r1", 0, task, 1) for task in range(100)]
    for member in left:
        coordinator.decide(replace(addition(coordinator.initialize(member)), partitions=many))
    decision = coordinator.machine.decide(commit("r1", 0, coordinator.begin(of("r1", 0, 0, 0))), NOW)
    assert sum(map(most_bytes, decision.records)) <= MOST_DECISION_BYTES
    assert 1 < len(decision.records) < 100
    coordinator.machine.stage(decision.records)
    coordinator.machine.commit(decision.records)
    sweeps = 0
    while records := coordinator.machine.decide(SweepSink(sink_id="s"), NOW).records:
        assert sum(map(most_bytes, records)) <= MOST_DECISION_BYTES
        coordinator.machine.stage(records)
        coordinator.machine.commit(records)
        sweeps += 1
    assert sweeps > 1
    assert {coordinator.state(member) for member in left} == {S.PREPARE_ABORT}


def test_a_replay_of_the_log_gives_the_same_sinks() -> None:
    coordinator, log = SinkCoordinator(), list[CoordinatorRecord]()

    def carry_out(command: Command) -> None:
        records = coordinator.machine.decide(command, NOW).records
        log.extend(records)
        coordinator.machine.stage(records)
        coordinator.machine.commit(records)

    for batch in range(3):
        members = [of(f"r{batch}", batch, task, attempt) for task in (0, 1) for attempt in (0, 1)]
        for number, member in enumerate(members):
            carry_out(initialization(member, 10 * batch + number))
            carry_out(
                addition(
                    replace(
                        coordinator_member("r", 0),
                        transactional_id=member.transactional_id,
                        producer_id=10 * batch + number,
                    )
                )
            )
        named = [
            SinkMemberIdentity(
                transactional_id=members[index].transactional_id, producer_id=10 * batch + index, producer_epoch=0
            )
            for index in (0, 3)
        ]
        carry_out(commit(f"r{batch}", batch, *named))
        if batch < 2:
            for member in members:
                carry_out(CompleteTransaction(transactional_id=member.transactional_id))
    replayed = TransactionCoordinator(config=TransactionConfig())
    for record in log:
        replayed.apply(record)
    assert replayed.transactions == coordinator.machine.transactions
    assert replayed.sinks.known == coordinator.machine.sinks.known
    assert replayed.sinks.members.of("s") == coordinator.machine.sinks.members.of("s")
    assert replayed.sinks.is_complete("s", 1)
    assert not replayed.sinks.is_complete("s", 2)


# Expiry


def test_a_sink_is_forgotten_when_it_was_unused_for_long_and_has_no_member() -> None:
    coordinator = SinkCoordinator(transactional_id_expiration_ms=1_000)
    coordinator.decide(commit("r1", 5, coordinator.begin(of("r1", 5))))
    coordinator.now_ms += 1_000
    assert coordinator.machine.sinks.unused(coordinator.now_ms) == [], "a member is to be completed"
    coordinator.complete(of("r1", 5))
    assert coordinator.machine.sinks.unused(coordinator.now_ms - 1) == []
    assert coordinator.machine.sinks.unused(coordinator.now_ms) == ["s"]
    coordinator.decide(ForgetSink(sink_id="s"))
    assert coordinator.sink is None
    assert coordinator.machine.decide(ForgetSink(sink_id="s"), NOW).records == ()
    assert coordinator.decide(commit("r2", 3)) == DECIDED, "it begins anew"
