"""The machine of transactional ids: partitions that a transaction adds, and the changes of its own."""

import dataclasses

import pytest

from tailrace.coordinators.transactions.commands import (
    AbortTimedOut,
    Command,
    Completed,
    CompleteTransaction,
    ForgetUnused,
    ListedTransactions,
)
from tailrace.coordinators.transactions.records import TransactionRecord
from tailrace.coordinators.transactions.transaction import TransactionState
from tailrace.model.errors import ErrorCode, KafkaError
from unit.coordinators.transactions.transactional_ids import (
    ABORT_2,
    ADD,
    BILLS,
    COMMIT,
    IDLE,
    INITIALIZE,
    NOW,
    ORDERS,
    PREPARED,
    E,
    S,
    machine,
    outcome,
    transaction,
)


class TestAddPartitions:
    @pytest.mark.parametrize("state", IDLE)
    def test_the_first_partition_begins_the_transaction(self, state: TransactionState) -> None:
        following, answer = outcome(transaction(state), ADD)
        assert answer == Completed()
        assert following is not None
        assert (following.state, following.partitions, following.started_at_ms) == (S.ONGOING, {BILLS}, NOW)

    def test_more_partitions_do_not_begin_the_transaction_again(self) -> None:
        following, _ = outcome(transaction(S.ONGOING), ADD)
        assert following is not None
        assert (following.partitions, following.started_at_ms) == ({ORDERS, BILLS}, NOW - 1_000)

    def test_a_partition_in_the_transaction_is_not_written_again(self) -> None:
        assert outcome(transaction(S.ONGOING), dataclasses.replace(ADD, partitions=frozenset((ORDERS,)))) == (
            None,
            Completed(),
        )

    @pytest.mark.parametrize("state", PREPARED)
    def test_a_transaction_that_is_being_ended_takes_no_more_partitions(self, state: TransactionState) -> None:
        assert outcome(transaction(state), ADD) == (None, E.CONCURRENT_TRANSACTIONS)

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"producer_id": 8}, E.INVALID_PRODUCER_ID_MAPPING),
            ({"producer_epoch": 2}, E.PRODUCER_FENCED),
            ({"producer_epoch": 4}, E.PRODUCER_FENCED),
        ],
    )
    def test_another_producer_is_refused(self, changes: dict[str, int], code: ErrorCode) -> None:
        assert outcome(transaction(S.ONGOING), dataclasses.replace(ADD, **changes)) == (None, code)  # type: ignore[arg-type]
        with pytest.raises(KafkaError) as refusal:
            machine(transaction(S.ONGOING)).verify(dataclasses.replace(ADD, **changes))  # type: ignore[arg-type]
        assert refusal.value.code is code

    def test_a_verification_tells_the_partitions_of_the_transaction(self) -> None:
        """KIP-890."""
        command = dataclasses.replace(ADD, partitions=frozenset((ORDERS, BILLS)))
        assert machine(transaction(S.ONGOING)).verify(command) == {ORDERS: E.NONE, BILLS: E.TRANSACTION_ABORTABLE}
        assert set(machine(transaction(S.COMPLETE_ABORT)).verify(command).values()) == {E.TRANSACTION_ABORTABLE}


@pytest.mark.parametrize("command", [INITIALIZE, ADD, COMMIT, ABORT_2])
def test_a_transactional_id_has_one_change_at_a_time(command: Command) -> None:
    known = transaction(S.ONGOING)
    assert outcome(known, command, is_pending=True) == (None, E.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("command", [CompleteTransaction, AbortTimedOut, ForgetUnused])
def test_the_coordinators_own_changes_of_a_transaction_wait_for_the_change_under_way(
    command: type[AbortTimedOut],
) -> None:
    for known in (transaction(S.PREPARE_COMMIT), transaction(S.ONGOING, started_at_ms=0)):
        assert outcome(known, command(transactional_id="pay"), is_pending=True) == (None, Completed())


def test_only_an_open_transaction_times_out() -> None:
    late = NOW - 60_001
    for state in S:
        if state in (S.DEAD, S.PREPARE_EPOCH_FENCE):
            continue
        known = transaction(state, started_at_ms=late)
        following, _ = outcome(known, AbortTimedOut(transactional_id="pay"))
        assert machine(known).timed_out(NOW) == (["pay"] if state is S.ONGOING else [])
        if state is S.ONGOING:
            assert following is not None
            assert (following.state, following.producer_epoch) == (S.PREPARE_ABORT, 4)
        else:
            assert following is None
    assert machine(transaction(S.ONGOING, started_at_ms=late + 1)).timed_out(NOW) == []


def test_a_coordinator_forgets_only_unused_transactional_ids() -> None:
    week_ms = 604_800_000
    for state in (*IDLE, S.ONGOING, *PREPARED):
        known = transaction(state, updated_at_ms=NOW - week_ms)
        decision = machine(known).decide(ForgetUnused(transactional_id="pay"), NOW)
        assert bool(decision.records) is (state in IDLE)
        assert machine(known).unused(NOW) == (["pay"] if state in IDLE else [])
        if decision.records:
            coordinator = machine(known)
            coordinator.apply(*decision.records)
            assert not coordinator.transactions


def test_a_list_of_transactions_has_what_passes_every_filter() -> None:
    coordinator = machine(None)
    states = {"a": transaction(S.EMPTY), "b": transaction(S.ONGOING), "c": transaction(S.ONGOING, producer_id=8)}
    for name, known in states.items():
        coordinator.apply(TransactionRecord(transactional_id=name, transaction=known))

    def names(**wanted: object) -> set[str]:
        return {name for name, _ in coordinator.listed(ListedTransactions(**wanted), NOW)}  # type: ignore[arg-type]

    assert names() == {"a", "b", "c"}
    assert names(states=frozenset((S.ONGOING,))) == {"b", "c"}
    assert names(states=frozenset()) == set()
    assert names(states=frozenset((S.ONGOING,)), producer_ids=frozenset((8,))) == {"c"}
    assert names(states=frozenset((S.ONGOING,)), longer_than_ms=999) == {"b", "c"}
    assert names(states=frozenset((S.ONGOING,)), longer_than_ms=1_000) == set()
