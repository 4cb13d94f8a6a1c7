"""The phases of a transactional producer, its errors, and the steps at the end of a transaction. No IO."""

from collections.abc import Callable

import pytest

from tailrace.client.errors import AbortableTransactionError, FatalTransactionError, ProducerFenced
from tailrace.client.transactions.producer_transaction import EndStep, Identity, ProducerTransaction
from tailrace.client.transactions.producer_transaction import TransactionPhase as P
from tailrace.client.transactions.verdicts import TransactionCall as C
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

FIRST, SECOND = Identity(7, 0, True), Identity(7, 1, True)
ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 0)

CALLS: dict[str, Callable[[ProducerTransaction], None]] = {
    "init_transactions": ProducerTransaction.begin_initialization,
    "begin_transaction": ProducerTransaction.begin,
    "send": ProducerTransaction.check_send,
    "commit_transaction": ProducerTransaction.begin_commit,
    "hand_over_transaction": ProducerTransaction.begin_hand_over,
    "abort_transaction": ProducerTransaction.begin_abort,
}


def ready(version: int = 2) -> ProducerTransaction:
    machine = ProducerTransaction("t")
    machine.begin_initialization()
    machine.renewed(FIRST, version=version)
    machine.finish()
    return machine


def begun(version: int = 2) -> ProducerTransaction:
    machine = ready(version)
    machine.begin()
    return machine


def written(version: int = 2) -> ProducerTransaction:
    """A batch was sent to a partition."""
    machine = begun(version)
    if not machine.admits(ORDERS):
        machine.added(machine.take_wanted())
        assert machine.admits(ORDERS)
    return machine


def failed(code: ErrorCode = ErrorCode.MESSAGE_TOO_LARGE, version: int = 2) -> ProducerTransaction:
    machine = written(version)
    machine.batch_failed(KafkaError(code, "orders-0"), is_numbered=True)
    return machine


def committing() -> ProducerTransaction:
    machine = written()
    machine.begin_commit()
    return machine


def handing_over() -> ProducerTransaction:
    machine = written()
    machine.begin_hand_over()
    return machine


def handed_over() -> ProducerTransaction:
    machine = handing_over()
    assert machine.hand_over() == FIRST
    return machine


def aborting() -> ProducerTransaction:
    machine = written()
    machine.begin_abort()
    return machine


def initializing() -> ProducerTransaction:
    machine = ProducerTransaction("t")
    machine.begin_initialization()
    return machine


@pytest.mark.parametrize(
    ("made", "phase", "allowed", "way_out"),
    [
        (lambda: ProducerTransaction("t"), P.UNINITIALIZED, {"init_transactions"}, r"call init_transactions\(\) first"),
        (initializing, P.INITIALIZING, {"init_transactions"}, "did not finish: call it again"),
        (ready, P.READY, {"begin_transaction"}, r"call begin_transaction\(\) first"),
        (
            begun,
            P.IN_TRANSACTION,
            {"send", "commit_transaction", "hand_over_transaction", "abort_transaction"},
            "commit or abort it first",
        ),
        (committing, P.COMMITTING, {"commit_transaction"}, r"commit_transaction\(\) did not finish: call it again"),
        (handing_over, P.HANDING_OVER, {"hand_over_transaction", "abort_transaction"}, "call it again, or abort"),
        (handed_over, P.HANDED_OVER, set(), "make another producer"),
        (aborting, P.ABORTING, {"abort_transaction"}, r"abort_transaction\(\) did not finish: call it again"),
    ],
)
@pytest.mark.parametrize("name", CALLS)
def test_each_phase_allows_its_calls_and_names_the_way_out_for_others(
    name: str, made: Callable[[], ProducerTransaction], phase: P, allowed: set[str], way_out: str
) -> None:
    machine = made()
    assert machine.phase is phase
    if name in allowed:
        CALLS[name](machine)
        return
    expected = "it is called once" if name == "init_transactions" else way_out
    with pytest.raises(KafkaError, match=expected) as refused:
        CALLS[name](machine)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert machine.phase is phase


def test_a_failed_record_leaves_nothing_but_the_abort() -> None:
    machine = failed()
    assert (machine.phase, machine.is_open, machine.is_doomed) == (P.ABORTABLE_ERROR, True, True)
    for name in CALLS.keys() - {"abort_transaction"}:
        with pytest.raises(AbortableTransactionError, match=r"call abort_transaction\(\)") as refused:
            CALLS[name](machine)
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    machine.begin_abort()
    machine.ended(SECOND, version=2)
    machine.finish()
    machine.begin()
    machine.check_send()


def test_a_record_that_fails_during_the_commit_refuses_it() -> None:
    machine = committing()
    machine.check_commit()
    machine.batch_failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late"), is_numbered=True)
    with pytest.raises(AbortableTransactionError, match="late"):
        machine.check_commit()


def test_a_record_that_fails_during_the_hand_over_refuses_it() -> None:
    machine = handing_over()
    machine.batch_failed(KafkaError(ErrorCode.INVALID_RECORD, "orders-0"), is_numbered=True)
    with pytest.raises(AbortableTransactionError, match="orders-0"):
        machine.hand_over()
    machine.begin_abort()


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_without_records_has_nothing_to_hand_over(version: int) -> None:
    machine = begun(version)
    machine.begin_hand_over()
    assert machine.hand_over() is None
    assert not machine.is_open


def test_the_first_error_is_the_reason() -> None:
    machine = failed()
    machine.batch_failed(KafkaError(ErrorCode.INVALID_RECORD, "another"), is_numbered=False)
    assert machine.error().code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_fenced_producer_can_do_nothing_any_more() -> None:
    machine = committing()
    told = machine.refused(C.END, KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "old"))
    assert isinstance(told, ProducerFenced)
    assert (told.code, machine.phase, machine.is_open) == (ErrorCode.PRODUCER_FENCED, P.FATAL_ERROR, False)
    for call in CALLS.values():
        with pytest.raises(ProducerFenced, match="close this producer"):
            call(machine)
    machine.batch_failed(KafkaError(ErrorCode.INVALID_RECORD, "another"), is_numbered=False)
    assert isinstance(machine.error(), ProducerFenced), "the reason stays the first one"


def test_a_fatal_error_in_any_phase() -> None:
    for made in (initializing, begun, failed, committing, aborting):
        machine = made()
        machine.give_up(KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no"))
        with pytest.raises(FatalTransactionError, match="cannot go on: no") as refused:
            machine.begin()
        assert not isinstance(refused.value, ProducerFenced)


def test_a_fenced_batch_is_fatal_while_the_transaction_is_being_aborted() -> None:
    machine = aborting()
    machine.batch_failed(KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "old"), is_numbered=True)
    assert machine.phase is P.ABORTING, "the coordinator knows better"
    machine.batch_failed(KafkaError(ErrorCode.PRODUCER_FENCED, "fenced"), is_numbered=True)
    assert machine.phase is P.FATAL_ERROR


def test_an_answer_that_may_be_retried_changes_nothing_and_says_what_to_call() -> None:
    machine = committing()
    told = machine.refused(C.END, KafkaError(ErrorCode.NOT_COORDINATOR, "moved"))
    assert told is not None
    assert (told.code, machine.phase) == (ErrorCode.NOT_COORDINATOR, P.COMMITTING)
    assert "commit_transaction() did not finish: call it again" in told.detail
    assert not isinstance(told, AbortableTransactionError | FatalTransactionError)


# the steps of an end


def test_from_version_2_on_a_batch_adds_its_partition_and_the_end_brings_the_next_epoch() -> None:
    machine = begun(2)
    assert machine.admits(ORDERS)
    assert not machine.has_wanted
    machine.begin_commit()
    assert machine.next_step() is EndStep.END
    machine.ended(SECOND, version=2)
    assert (machine.identity, machine.next_step()) == (SECOND, EndStep.DONE)


@pytest.mark.parametrize("version", [0, 1])
def test_before_version_2_a_partition_waits_for_the_coordinator_and_the_epoch_lasts(version: int) -> None:
    machine = begun(version)
    assert not machine.admits(ORDERS)
    assert not machine.admits(BILLS)
    assert machine.take_wanted() == {ORDERS, BILLS}
    assert not machine.admits(ORDERS), "it is being asked for"
    machine.added([ORDERS, BILLS])
    assert machine.admits(ORDERS)
    assert not machine.has_wanted
    machine.begin_commit()
    assert machine.next_step() is EndStep.END
    machine.ended(None, version=version)
    assert (machine.identity, machine.next_step()) == (FIRST, EndStep.DONE)
    machine.finish()
    machine.begin()
    assert not machine.admits(ORDERS), "another transaction"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_coordinator_hears_nothing_of_a_transaction_without_records(version: int) -> None:
    for begin_end in (ProducerTransaction.begin_commit, ProducerTransaction.begin_abort):
        machine = begun(version)
        begin_end(machine)
        assert machine.next_step() is EndStep.DONE
        machine.finish()
        assert (machine.phase, machine.identity) == (P.READY, FIRST)


def test_an_abort_before_version_2_asks_for_the_next_epoch_only_after_a_gap() -> None:
    machine = written(1)
    machine.begin_abort()
    machine.batch_failed(machine.error(), is_numbered=False)  # dropped, and never numbered
    machine.ended(None, version=1)
    assert machine.next_step() is EndStep.DONE

    machine = written(1)
    machine.begin_abort()
    machine.batch_failed(machine.error(), is_numbered=True)
    machine.ended(None, version=1)
    assert machine.next_step() is EndStep.RENEW
    machine.renewed(SECOND, version=1)
    assert (machine.identity, machine.next_step()) == (SECOND, EndStep.DONE)


def test_an_addition_without_an_answer_is_asked_again_before_the_abort() -> None:
    machine = begun(1)
    assert not machine.admits(ORDERS)
    machine.take_wanted()
    assert not machine.admits(BILLS)
    machine.begin_abort()
    assert machine.next_step() is EndStep.ADD_AGAIN
    assert machine.take_wanted() == {ORDERS}, "what was never asked for is not added for an abort"
    machine.added([ORDERS])
    assert machine.next_step() is EndStep.END


def test_an_addition_without_an_answer_does_not_matter_once_the_coordinator_knows() -> None:
    machine = written(1)
    assert not machine.admits(BILLS)
    machine.take_wanted()
    machine.begin_abort()
    assert machine.next_step() is EndStep.END


@pytest.mark.parametrize("version", [0, 1])
def test_a_group_without_an_answer_is_asked_again_before_the_abort(version: int) -> None:
    machine = begun(version)
    assert machine.must_add_group
    machine.begin_group("g")
    machine.cut_short("the call was cancelled")
    machine.begin_abort()
    assert (machine.next_step(), machine.unanswered_group) == (EndStep.ADD_AGAIN, "g")
    machine.group_added()
    assert machine.next_step() is EndStep.END


def test_from_version_2_on_offsets_are_known_as_soon_as_they_are_sent() -> None:
    machine = begun(2)
    assert not machine.must_add_group
    machine.begin_group("g")
    machine.cut_short("the call was cancelled")
    assert isinstance(machine.error(), AbortableTransactionError)
    machine.begin_abort()
    assert machine.next_step() is EndStep.END


@pytest.mark.parametrize("call", [C.GROUP, C.OFFSETS])
def test_offsets_that_may_be_in_the_transaction_or_not_may_not_be_committed(call: C) -> None:
    machine = written()
    told = machine.refused(call, KafkaError(ErrorCode.NOT_COORDINATOR, "moved"))
    assert isinstance(told, AbortableTransactionError)
    with pytest.raises(AbortableTransactionError, match="moved"):
        machine.begin_commit()


def test_an_end_that_the_coordinator_does_not_take_is_followed_by_the_next_epoch() -> None:
    machine = written(1)
    machine.begin_abort()
    assert machine.refused(C.END, KafkaError(ErrorCode.UNKNOWN_PRODUCER_ID, "?")) is None
    assert (machine.phase, machine.next_step()) == (P.ABORTING, EndStep.RENEW)


def test_a_lost_end_is_carried_on_by_the_same_call() -> None:
    machine = committing()
    machine.begin_commit()
    assert machine.next_step() is EndStep.END
    machine.ended(None, version=2)
    assert machine.next_step() is EndStep.RENEW, "the next epoch was not in the answer"
    machine.begin_commit()
    assert machine.next_step() is EndStep.RENEW, "the end is not decided twice"


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_another_transaction_version_begins_with_the_next_transaction_and_another_epoch(
    before: int, after: int
) -> None:
    machine = written(before)
    machine.begin_commit()
    machine.ended(SECOND if before == 2 else None, version=after)
    assert (machine.version, machine.next_step()) == (before, EndStep.RENEW)
    machine.renewed(Identity(7, 2, True), version=after)
    assert machine.next_step() is EndStep.DONE
    machine.finish()
    assert machine.version == after


def test_records_of_an_abort_without_an_error_are_told_apart() -> None:
    assert aborting().error().code is ErrorCode.OPERATION_NOT_ATTEMPTED
