"""The rules of sinks: state x request -> records and answer."""

from dataclasses import replace

import pytest

from tailrace.coordinators.config import TransactionConfig
from tailrace.coordinators.transactions.commands import (
    AbortTimedOut,
    Command,
    CommitSink,
    CompleteTransaction,
    ForgetSink,
    SinkMemberIdentity,
    SweepSink,
)
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.records import CoordinatorRecord, most_bytes
from tailrace.coordinators.transactions.sink import LONGEST_ORIGIN, Sink
from tailrace.coordinators.transactions.sinks import MOST_DECISION_BYTES, MOST_MEMBERS
from tailrace.coordinators.transactions.transaction import TransactionState
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SinkMember, sink_key
from testkit.coordinators.sink_coordinator import (
    DECIDED,
    NOW,
    ORDERS,
    SinkCoordinator,
    addition,
    after,
    commit,
    ending,
    initialization,
    keys,
    of,
    unknown_member,
)

E, S = ErrorCode, TransactionState

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
                        unknown_member("r", 0),
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
