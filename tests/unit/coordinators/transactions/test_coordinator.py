"""The machine of transactional ids: state x request -> outcome."""

import dataclasses

import pytest

from tailrace.coordinators.config import TransactionConfig
from tailrace.coordinators.transactions.commands import (
    AbortedFirst,
    AbortTimedOut,
    AddPartitions,
    Command,
    Completed,
    CompleteTransaction,
    EndTransaction,
    ForgetUnused,
    InitializeProducer,
    ListedTransactions,
    MarkersToWrite,
    NeedsProducerId,
    ProducerIdentity,
    Response,
)
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.records import TransactionRecord
from tailrace.coordinators.transactions.transaction import LAST_EPOCH, Transaction, TransactionState
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

E, S = ErrorCode, TransactionState
NOW = 1_000_000
ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 1)
PREPARED = (S.PREPARE_COMMIT, S.PREPARE_ABORT)
IDLE = (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)


def transaction(state: TransactionState, **changes: object) -> Transaction:
    is_open = state not in IDLE
    known = Transaction(
        producer_id=7,
        producer_epoch=3,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset((ORDERS,)) if is_open else frozenset(),
        started_at_ms=NOW - 1_000 if is_open else -1,
        updated_at_ms=NOW - 1_000,
    )
    return dataclasses.replace(known, **changes)  # type: ignore[arg-type]


def machine(known: Transaction | None, *, is_pending: bool = False) -> TransactionCoordinator:
    coordinator = TransactionCoordinator(config=TransactionConfig())
    if known is not None:
        coordinator.apply(TransactionRecord(transactional_id="pay", transaction=known))
    if is_pending:
        coordinator.stage((TransactionRecord(transactional_id="pay", transaction=known),))
    return coordinator


def outcome(
    known: Transaction | None, command: Command, *, is_pending: bool = False
) -> tuple[Transaction | None, Response | ErrorCode]:
    """The new state of the id, None if it stays the same, and the answer."""
    try:
        decision = machine(known, is_pending=is_pending).decide(command, NOW)
    except KafkaError as refusal:
        return None, refusal.code
    (record,) = decision.records or (None,)
    return (record.transaction if isinstance(record, TransactionRecord) else None), decision.response


INITIALIZE = InitializeProducer(transactional_id="pay", timeout_ms=5_000)


def naming(producer_id: int, producer_epoch: int) -> InitializeProducer:
    """InitProducerId with the identity that the producer has (KIP-360)."""
    return dataclasses.replace(INITIALIZE, expected_producer_id=producer_id, expected_producer_epoch=producer_epoch)


ADD = AddPartitions(transactional_id="pay", producer_id=7, producer_epoch=3, partitions=frozenset((BILLS,)))
COMMIT = EndTransaction(transactional_id="pay", producer_id=7, producer_epoch=3, is_commit=True)
ABORT = dataclasses.replace(COMMIT, is_commit=False)
COMMIT_2, ABORT_2 = (dataclasses.replace(command, client_version=2) for command in (COMMIT, ABORT))


class TestInitialize:
    def test_a_new_id_needs_a_producer_id_and_begins_with_epoch_0(self) -> None:
        assert outcome(None, INITIALIZE) == (None, NeedsProducerId())
        created, answer = outcome(None, dataclasses.replace(INITIALIZE, fresh_producer_id=9))
        assert answer == ProducerIdentity(producer_id=9, producer_epoch=0)
        assert created == Transaction(producer_id=9, producer_epoch=0, timeout_ms=5_000, updated_at_ms=NOW)

    @pytest.mark.parametrize("state", IDLE)
    def test_the_next_instance_gets_the_next_epoch(self, state: TransactionState) -> None:
        following, answer = outcome(transaction(state), INITIALIZE)
        assert answer == ProducerIdentity(producer_id=7, producer_epoch=4)
        assert following is not None
        assert (following.state, following.producer_epoch, following.timeout_ms) == (S.EMPTY, 4, 5_000)

    def test_an_open_transaction_is_aborted_first_under_an_epoch_that_no_producer_gets(self) -> None:
        following, answer = outcome(transaction(S.ONGOING), INITIALIZE)
        assert answer == AbortedFirst()
        assert following is not None
        assert (following.state, following.producer_epoch) == (S.PREPARE_ABORT, 4)
        assert following.partitions == {ORDERS}

    @pytest.mark.parametrize("state", PREPARED)
    def test_a_prepared_transaction_has_to_be_completed_first(self, state: TransactionState) -> None:
        assert outcome(transaction(state), INITIALIZE) == (None, E.CONCURRENT_TRANSACTIONS)

    @pytest.mark.parametrize("state", PREPARED)
    @pytest.mark.parametrize("identity", [(7, 3), (7, 2), (9, 0), (7, 1), (8, 3)])
    def test_an_end_under_way_is_reported_before_a_wrong_identity(
        self, state: TransactionState, identity: tuple[int, int]
    ) -> None:
        """At the hand-over to the id 9 too: its producer may name 9 before the markers of 7 are written."""
        known = transaction(state, client_version=2, last_producer_epoch=2, next_producer_id=9)
        assert outcome(known, naming(*identity)) == (None, E.CONCURRENT_TRANSACTIONS)

    def test_a_producer_goes_on_after_the_abort_of_its_own_open_transaction(self) -> None:
        """KIP-360: the first answer is 51, and the repetition names the same identity."""
        fenced, answer = outcome(transaction(S.ONGOING), naming(7, 3))
        assert answer == AbortedFirst()
        assert fenced is not None
        assert (fenced.state, fenced.producer_epoch) == (S.PREPARE_ABORT, 4)
        aborted, _ = outcome(fenced, CompleteTransaction(transactional_id="pay"))
        following, answer = outcome(aborted, naming(7, 3))
        assert answer == ProducerIdentity(producer_id=7, producer_epoch=4)
        assert following is not None
        assert outcome(following, naming(7, 3))[1] == answer, "it has not heard"
        assert outcome(following, dataclasses.replace(COMMIT_2, producer_epoch=3)) == (None, E.PRODUCER_FENCED)

    def test_a_producer_whose_open_transaction_another_instance_aborts_is_fenced(self) -> None:
        fenced, _ = outcome(transaction(S.ONGOING), INITIALIZE)
        assert fenced is not None
        aborted, _ = outcome(fenced, CompleteTransaction(transactional_id="pay"))
        assert outcome(aborted, naming(7, 3)) == (None, E.PRODUCER_FENCED)
        assert outcome(aborted, INITIALIZE)[1] == ProducerIdentity(producer_id=7, producer_epoch=5)

    def test_a_producer_goes_on_with_another_id_after_the_abort_in_its_last_epoch(self) -> None:
        """The epoch of the abort is reserved: no producer may have this epoch."""
        fenced, _ = outcome(transaction(S.ONGOING, producer_epoch=LAST_EPOCH), naming(7, LAST_EPOCH))
        assert fenced is not None
        assert fenced.producer_epoch == LAST_EPOCH + 1
        aborted, _ = outcome(fenced, CompleteTransaction(transactional_id="pay"))
        assert outcome(aborted, naming(7, LAST_EPOCH)) == (None, NeedsProducerId())
        named = dataclasses.replace(naming(7, LAST_EPOCH), fresh_producer_id=9)
        following, answer = outcome(aborted, named)
        assert answer == ProducerIdentity(producer_id=9, producer_epoch=0)
        assert outcome(following, naming(7, LAST_EPOCH))[1] == answer, "it has not heard"

    def test_epochs_that_are_used_up_make_another_producer_id(self) -> None:
        exhausted = transaction(S.COMPLETE_COMMIT, producer_epoch=LAST_EPOCH)
        assert outcome(exhausted, INITIALIZE) == (None, NeedsProducerId())
        following, answer = outcome(exhausted, dataclasses.replace(INITIALIZE, fresh_producer_id=9))
        assert answer == ProducerIdentity(producer_id=9, producer_epoch=0)
        assert following is not None
        assert following.previous_producer_id == 7

    @pytest.mark.parametrize(
        ("expected", "answer"),
        [
            ((7, 3), ProducerIdentity(producer_id=7, producer_epoch=4)),
            ((7, 2), ProducerIdentity(producer_id=7, producer_epoch=3)),  # has not heard the last answer
            ((7, 1), E.PRODUCER_FENCED),
            ((7, 4), E.PRODUCER_FENCED),
            ((8, 3), E.PRODUCER_FENCED),
        ],
    )
    def test_a_producer_that_names_what_it_has(self, expected: tuple[int, int], answer: object) -> None:
        """KIP-360."""
        command = dataclasses.replace(INITIALIZE, expected_producer_id=expected[0], expected_producer_epoch=expected[1])
        assert outcome(transaction(S.EMPTY, last_producer_epoch=2), command)[1] == answer

    @pytest.mark.parametrize("epoch", [2, 1, 4])
    def test_an_old_instance_does_not_abort_what_the_present_one_has_open(self, epoch: int) -> None:
        """KIP-360: a producer with another epoch than the present epoch is fenced, and nothing else happens."""
        known = transaction(S.ONGOING, last_producer_epoch=2)
        command = dataclasses.replace(INITIALIZE, expected_producer_id=7, expected_producer_epoch=epoch)
        assert outcome(known, command) == (None, E.PRODUCER_FENCED)
        present = dataclasses.replace(command, expected_producer_epoch=3)
        assert outcome(known, present)[1] == AbortedFirst()

    def test_a_producer_with_its_previous_id_receives_its_new_one(self) -> None:
        known = transaction(S.EMPTY, producer_id=9, producer_epoch=0, last_producer_epoch=LAST_EPOCH)
        command = dataclasses.replace(INITIALIZE, expected_producer_id=7, expected_producer_epoch=LAST_EPOCH)
        rotated = dataclasses.replace(known, previous_producer_id=7)
        assert outcome(rotated, command)[1] == ProducerIdentity(producer_id=9, producer_epoch=0)
        assert outcome(known, command)[1] is E.PRODUCER_FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    command = dataclasses.replace(INITIALIZE, timeout_ms=timeout_ms)
    assert outcome(None, command) == (None, E.INVALID_TRANSACTION_TIMEOUT)


class TestAddPartitions:
    @pytest.mark.parametrize("state", IDLE)
    def test_the_first_partition_begins_the_transaction(self, state: TransactionState) -> None:
        following, answer = outcome(transaction(state), ADD)
        assert answer == Completed()
        assert following is not None
        assert (following.state, following.partitions, following.started_at_ms) == (S.ONGOING, {BILLS}, NOW)

    def test_more_partitions_do_not_begin_it_again(self) -> None:
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

    def test_a_look_tells_what_is_in_it(self) -> None:
        """KIP-890."""
        command = dataclasses.replace(ADD, partitions=frozenset((ORDERS, BILLS)))
        assert machine(transaction(S.ONGOING)).verify(command) == {ORDERS: E.NONE, BILLS: E.TRANSACTION_ABORTABLE}
        assert set(machine(transaction(S.COMPLETE_ABORT)).verify(command).values()) == {E.TRANSACTION_ABORTABLE}


class TestEnd:
    @pytest.mark.parametrize(
        ("state", "commit", "abort"),
        [
            (S.EMPTY, E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
            (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT),
            (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
            (S.PREPARE_ABORT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
            (S.COMPLETE_COMMIT, E.NONE, E.INVALID_TXN_STATE),
            (S.COMPLETE_ABORT, E.INVALID_TXN_STATE, E.NONE),
        ],
    )
    def test_before_kip_890(self, state: TransactionState, commit: object, abort: object) -> None:
        for command, expected in ((COMMIT, commit), (ABORT, abort)):
            following, answer = outcome(transaction(state), command)
            if isinstance(expected, TransactionState):
                assert following is not None
                assert (following.state, following.producer_epoch) == (expected, 3)
            elif expected is E.NONE:
                assert (following, answer) == (None, ProducerIdentity(producer_id=7, producer_epoch=3))
            else:
                assert (following, answer) == (None, expected)

    @pytest.mark.parametrize(
        ("state", "commit", "abort"),
        [
            (S.EMPTY, E.INVALID_TXN_STATE, S.PREPARE_ABORT),
            (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT),
            (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
            (S.PREPARE_ABORT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
            (S.COMPLETE_COMMIT, E.INVALID_TXN_STATE, S.PREPARE_ABORT),
            (S.COMPLETE_ABORT, E.INVALID_TXN_STATE, S.PREPARE_ABORT),
        ],
    )
    def test_with_kip_890_each_end_gives_the_next_epoch(
        self, state: TransactionState, commit: object, abort: object
    ) -> None:
        for command, expected in ((COMMIT_2, commit), (ABORT_2, abort)):
            following, answer = outcome(transaction(state, client_version=2), command)
            if isinstance(expected, TransactionState):
                assert following is not None
                assert (following.state, following.producer_epoch) == (expected, 4)
                assert answer == ProducerIdentity(producer_id=7, producer_epoch=4)
            else:
                assert (following, answer) == (None, expected)

    @pytest.mark.parametrize(
        ("state", "commit", "abort"),
        [
            (S.ONGOING, E.PRODUCER_FENCED, E.PRODUCER_FENCED),
            (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
            (S.PREPARE_ABORT, E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
            (S.COMPLETE_COMMIT, E.NONE, E.INVALID_TXN_STATE),
            (S.COMPLETE_ABORT, E.INVALID_TXN_STATE, E.NONE),
        ],
    )
    def test_a_producer_with_the_epoch_of_before_has_missed_the_answer(
        self, state: TransactionState, commit: ErrorCode, abort: ErrorCode
    ) -> None:
        known = transaction(state, client_version=2, producer_epoch=4, last_producer_epoch=3)
        for command, expected in ((COMMIT_2, commit), (ABORT_2, abort)):
            following, answer = outcome(known, command)
            assert following is None
            assert answer == (ProducerIdentity(producer_id=7, producer_epoch=4) if expected is E.NONE else expected)

    @pytest.mark.parametrize("command", [COMMIT_2, ABORT_2])
    @pytest.mark.parametrize("is_pending", [True, False])
    def test_an_end_under_way_is_reported_before_a_wrong_identity(
        self, command: EndTransaction, *, is_pending: bool
    ) -> None:
        """KIP-890: it may be the producer's own end; the identity is looked at when that is complete."""
        known = transaction(S.ONGOING if is_pending else S.PREPARE_ABORT)
        for other in ({"producer_epoch": 2}, {"producer_id": 8}):
            early = dataclasses.replace(command, **other)  # type: ignore[arg-type]
            assert outcome(known, early, is_pending=is_pending) == (None, E.CONCURRENT_TRANSACTIONS)

    @pytest.mark.parametrize("command", [COMMIT, ABORT])
    @pytest.mark.parametrize("is_pending", [True, False])
    def test_an_older_producer_is_identified_before_an_end_under_way_is_reported(
        self, command: EndTransaction, *, is_pending: bool
    ) -> None:
        """No end gives it another identity: with a wrong one it has been replaced."""
        known = transaction(S.ONGOING if is_pending else S.PREPARE_ABORT)
        assert outcome(known, command, is_pending=is_pending) == (None, E.CONCURRENT_TRANSACTIONS)
        early = dataclasses.replace(command, producer_epoch=2)
        assert outcome(known, early, is_pending=is_pending) == (None, E.PRODUCER_FENCED)
        other = dataclasses.replace(command, producer_id=8)
        assert outcome(known, other, is_pending=is_pending) == (None, E.INVALID_PRODUCER_ID_MAPPING)

    @pytest.mark.parametrize("command", [COMMIT, ABORT])
    def test_the_markers_of_an_older_end_keep_the_epoch_however_the_transaction_began(
        self, command: EndTransaction
    ) -> None:
        """KIP-1228: with version 2 the leaders would wait for a higher epoch."""
        following, _ = outcome(transaction(S.ONGOING, client_version=2), command)
        markers = machine(following).markers("pay")
        assert markers is not None
        assert (markers.producer_epoch, markers.transaction_version) == (3, 0)

    @pytest.mark.parametrize("version", [0, 2])
    def test_markers_of_version_2_are_above_the_epoch_of_their_transaction(self, version: int) -> None:
        known = transaction(S.ONGOING, client_version=version)
        for command in (COMMIT_2, ABORT_2, INITIALIZE, naming(7, 3)):
            following, _ = outcome(known, command)
            markers = machine(following).markers("pay")
            assert markers is not None
            assert markers.producer_epoch > known.producer_epoch or markers.transaction_version < 2

    def test_a_fenced_producer_is_not_taken_for_one_that_has_not_heard(self) -> None:
        fenced = transaction(S.ONGOING, client_version=2).fenced(is_resumed=False, now_ms=NOW).completed(now_ms=NOW)
        assert fenced.producer_epoch == 4
        assert outcome(fenced, ABORT_2) == (None, E.PRODUCER_FENCED)

    def test_no_epoch_is_not_the_one_before_a_fence(self) -> None:
        fenced = transaction(S.ONGOING, client_version=2).fenced(is_resumed=False, now_ms=NOW).completed(now_ms=NOW)
        for command in (ABORT_2, ABORT):
            nobody = dataclasses.replace(command, producer_epoch=-1)
            assert outcome(fenced, nobody) == (None, E.PRODUCER_FENCED)

    def test_the_last_epoch_hands_over_to_another_producer_id(self) -> None:
        known = transaction(S.ONGOING, producer_epoch=LAST_EPOCH, client_version=2)
        command = dataclasses.replace(COMMIT_2, producer_epoch=LAST_EPOCH)
        assert outcome(known, command) == (None, NeedsProducerId())
        prepared, answer = outcome(known, dataclasses.replace(command, fresh_producer_id=9))
        assert answer == ProducerIdentity(producer_id=9, producer_epoch=0)
        assert prepared is not None
        assert (prepared.producer_id, prepared.producer_epoch) == (7, LAST_EPOCH + 1), "the markers are the old one's"
        early = dataclasses.replace(ADD, producer_id=9, producer_epoch=0)
        assert outcome(prepared, early) == (None, E.CONCURRENT_TRANSACTIONS)
        for at_once in (COMMIT_2, ABORT_2, COMMIT, ABORT):
            next_end = dataclasses.replace(at_once, producer_id=9, producer_epoch=0)
            assert outcome(prepared, next_end) == (None, E.CONCURRENT_TRANSACTIONS)
        completed, _ = outcome(prepared, CompleteTransaction(transactional_id="pay"))
        assert completed is not None
        assert (completed.producer_id, completed.producer_epoch, completed.previous_producer_id) == (9, 0, 7)
        assert outcome(completed, command) == (None, answer), "it has not heard"

    @pytest.mark.parametrize("command", [COMMIT, ABORT, COMMIT_2, ABORT_2])
    def test_another_producer_is_refused(self, command: EndTransaction) -> None:
        known = transaction(S.ONGOING)
        assert outcome(None, command)[1] is E.INVALID_PRODUCER_ID_MAPPING
        assert outcome(known, dataclasses.replace(command, producer_id=8))[1] is E.INVALID_PRODUCER_ID_MAPPING
        assert outcome(known, dataclasses.replace(command, producer_epoch=2))[1] is E.PRODUCER_FENCED


@pytest.mark.parametrize("command", [ADD, COMMIT, ABORT, COMMIT_2, ABORT_2])
def test_the_epoch_beyond_the_last_fences_and_is_nobodys(command: AddPartitions | EndTransaction) -> None:
    """No epoch after this is left to fence with, so no producer may begin a transaction under it."""
    known = transaction(S.ONGOING, producer_epoch=LAST_EPOCH).fenced(is_resumed=False, now_ms=NOW).completed(now_ms=NOW)
    assert known.producer_epoch == 2**15 - 1
    asked = dataclasses.replace(command, producer_epoch=2**15 - 1)
    assert outcome(known, asked) == (None, E.PRODUCER_FENCED)


@pytest.mark.parametrize("command", [INITIALIZE, ADD, COMMIT, ABORT_2])
def test_one_change_at_a_time(command: Command) -> None:
    known = transaction(S.ONGOING)
    assert outcome(known, command, is_pending=True) == (None, E.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("command", [CompleteTransaction, AbortTimedOut, ForgetUnused])
def test_the_coordinators_own_changes_wait_for_the_one_under_way(command: type[AbortTimedOut]) -> None:
    for known in (transaction(S.PREPARE_COMMIT), transaction(S.ONGOING, started_at_ms=0)):
        assert outcome(known, command(transactional_id="pay"), is_pending=True) == (None, Completed())


@pytest.mark.parametrize(
    ("state", "following"), [(S.PREPARE_COMMIT, S.COMPLETE_COMMIT), (S.PREPARE_ABORT, S.COMPLETE_ABORT)]
)
def test_a_transaction_ends_as_it_was_decided(state: TransactionState, following: TransactionState) -> None:
    coordinator = machine(transaction(state))
    assert coordinator.markers("pay") == MarkersToWrite(
        transactional_id="pay",
        producer_id=7,
        producer_epoch=3,
        transaction_version=0,
        is_commit=state is S.PREPARE_COMMIT,
        partitions=frozenset((ORDERS,)),
    )
    completed, _ = outcome(transaction(state), CompleteTransaction(transactional_id="pay"))
    assert completed is not None
    assert (completed.state, completed.partitions) == (following, frozenset())
    assert machine(completed).markers("pay") is None


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


def test_only_unused_ids_are_forgotten() -> None:
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


def test_a_list_has_what_passes_every_filter() -> None:
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
