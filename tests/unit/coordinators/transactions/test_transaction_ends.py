"""The ends of transactions: state x request -> outcome."""

import dataclasses

import pytest

from tailrace.coordinators.transactions.commands import (
    AddPartitions,
    CompleteTransaction,
    EndTransaction,
    MarkersToWrite,
    NeedsProducerId,
    ProducerIdentity,
)
from tailrace.coordinators.transactions.transaction import LAST_EPOCH, TransactionState
from tailrace.model.errors import ErrorCode
from unit.coordinators.transactions.transactional_ids import (
    ABORT,
    ABORT_2,
    ADD,
    COMMIT,
    COMMIT_2,
    INITIALIZE,
    NOW,
    ORDERS,
    E,
    S,
    machine,
    naming,
    outcome,
    transaction,
)


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
    def test_the_end_of_a_transaction_before_kip_890(
        self, state: TransactionState, commit: object, abort: object
    ) -> None:
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
    def test_with_kip_890_each_end_of_a_transaction_gives_the_next_epoch(
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
    def test_a_producer_with_the_epoch_before_the_end_has_missed_the_answer(
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
    def test_transaction_markers_of_version_2_are_above_the_epoch_of_their_transaction(self, version: int) -> None:
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

    def test_no_producer_epoch_is_not_the_epoch_before_a_fence(self) -> None:
        fenced = transaction(S.ONGOING, client_version=2).fenced(is_resumed=False, now_ms=NOW).completed(now_ms=NOW)
        for command in (ABORT_2, ABORT):
            without_epoch = dataclasses.replace(command, producer_epoch=-1)
            assert outcome(fenced, without_epoch) == (None, E.PRODUCER_FENCED)

    def test_the_last_producer_epoch_hands_over_to_another_producer_id(self) -> None:
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
def test_the_producer_epoch_beyond_the_last_fences_and_no_producer_has_it(
    command: AddPartitions | EndTransaction,
) -> None:
    """No epoch after this is left to fence with, so no producer may begin a transaction under it."""
    known = transaction(S.ONGOING, producer_epoch=LAST_EPOCH).fenced(is_resumed=False, now_ms=NOW).completed(now_ms=NOW)
    assert known.producer_epoch == 2**15 - 1
    asked = dataclasses.replace(command, producer_epoch=2**15 - 1)
    assert outcome(known, asked) == (None, E.PRODUCER_FENCED)


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
