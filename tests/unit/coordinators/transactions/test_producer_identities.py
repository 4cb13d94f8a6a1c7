"""The identities that a producer gets when it initializes its transactional id."""

import dataclasses

import pytest

from tailrace.coordinators.transactions.commands import (
    AbortedFirst,
    CompleteTransaction,
    NeedsProducerId,
    ProducerIdentity,
)
from tailrace.coordinators.transactions.transaction import LAST_EPOCH, Transaction, TransactionState
from unit.coordinators.transactions.transactional_ids import (
    COMMIT_2,
    IDLE,
    INITIALIZE,
    NOW,
    ORDERS,
    PREPARED,
    E,
    S,
    naming,
    outcome,
    transaction,
)


class TestInitialize:
    def test_a_new_transactional_id_needs_a_producer_id_and_begins_with_epoch_0(self) -> None:
        assert outcome(None, INITIALIZE) == (None, NeedsProducerId())
        created, answer = outcome(None, dataclasses.replace(INITIALIZE, fresh_producer_id=9))
        assert answer == ProducerIdentity(producer_id=9, producer_epoch=0)
        assert created == Transaction(producer_id=9, producer_epoch=0, timeout_ms=5_000, updated_at_ms=NOW)

    @pytest.mark.parametrize("state", IDLE)
    def test_the_next_instance_of_a_producer_gets_the_next_epoch(self, state: TransactionState) -> None:
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

    def test_producer_epochs_that_are_used_up_make_another_producer_id(self) -> None:
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
    def test_a_producer_that_names_its_identity_gets_the_next_identity_or_is_fenced(
        self, expected: tuple[int, int], answer: object
    ) -> None:
        """KIP-360."""
        command = dataclasses.replace(INITIALIZE, expected_producer_id=expected[0], expected_producer_epoch=expected[1])
        assert outcome(transaction(S.EMPTY, last_producer_epoch=2), command)[1] == answer

    @pytest.mark.parametrize("epoch", [2, 1, 4])
    def test_an_old_instance_of_a_producer_does_not_abort_the_open_transaction_of_the_present_instance(
        self, epoch: int
    ) -> None:
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
def test_a_transaction_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    command = dataclasses.replace(INITIALIZE, timeout_ms=timeout_ms)
    assert outcome(None, command) == (None, E.INVALID_TRANSACTION_TIMEOUT)
