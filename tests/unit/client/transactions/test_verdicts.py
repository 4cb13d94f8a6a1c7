"""Every error code has a consequence for every request of a transaction: the consequence in Kafka's clients."""

import pytest

from tailrace.client.transactions.verdicts import TransactionCall as C
from tailrace.client.transactions.verdicts import TransactionVerdict as V
from tailrace.client.transactions.verdicts import verdict_of
from tailrace.model.errors import ErrorCode as E

AT_COORDINATORS = [call for call in C if call is not C.RECORDS]


@pytest.mark.parametrize("call", AT_COORDINATORS)
@pytest.mark.parametrize(
    "code",
    [
        E.CONCURRENT_TRANSACTIONS,
        E.NOT_COORDINATOR,
        E.COORDINATOR_NOT_AVAILABLE,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.NETWORK_EXCEPTION,
        E.REQUEST_TIMED_OUT,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_a_coordinator_that_moves_or_is_busy_is_asked_again(call: C, code: E) -> None:
    assert verdict_of(call, code) is V.RETRY


@pytest.mark.parametrize("call", AT_COORDINATORS)
@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH])
def test_a_coordinator_knows_another_producer(call: C, code: E) -> None:
    assert verdict_of(call, code) is V.FENCED


def test_a_leader_that_refuses_the_epoch_leaves_the_verdict_to_the_coordinator() -> None:
    assert verdict_of(C.RECORDS, E.INVALID_PRODUCER_EPOCH) is V.ABORT
    assert verdict_of(C.RECORDS, E.PRODUCER_FENCED) is V.FENCED


@pytest.mark.parametrize("call", C)
@pytest.mark.parametrize(
    "code",
    [
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E.CLUSTER_AUTHORIZATION_FAILED,
        E.UNSUPPORTED_VERSION,
        E.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_an_error_that_no_abort_cures(call: C, code: E) -> None:
    assert verdict_of(call, code) is V.FATAL


@pytest.mark.parametrize("call", [call for call in C if call is not C.INITIALIZATION])
@pytest.mark.parametrize("code", [E.TRANSACTION_ABORTABLE, E.UNKNOWN_PRODUCER_ID])
def test_an_error_that_an_abort_cures(call: C, code: E) -> None:
    assert verdict_of(call, code) is V.ABORT


@pytest.mark.parametrize(
    ("call", "code", "verdict"),
    [
        (C.INITIALIZATION, E.INVALID_TRANSACTION_TIMEOUT, V.FATAL),
        (C.INITIALIZATION, E.TRANSACTION_ABORTABLE, V.FATAL),
        (C.PARTITIONS, E.INVALID_TXN_STATE, V.FATAL),
        (C.PARTITIONS, E.TOPIC_AUTHORIZATION_FAILED, V.ABORT),
        (C.PARTITIONS, E.OPERATION_NOT_ATTEMPTED, V.ABORT),
        (C.GROUP, E.GROUP_AUTHORIZATION_FAILED, V.ABORT),
        (C.GROUP, E.INVALID_TXN_STATE, V.FATAL),
        (C.OFFSETS, E.ILLEGAL_GENERATION, V.ABORT),
        (C.OFFSETS, E.UNKNOWN_MEMBER_ID, V.ABORT),
        (C.OFFSETS, E.STALE_MEMBER_EPOCH, V.ABORT),
        (C.OFFSETS, E.FENCED_INSTANCE_ID, V.ABORT),
        (C.OFFSETS, E.UNSUPPORTED_FOR_MESSAGE_FORMAT, V.FATAL),
        (C.END, E.INVALID_TXN_STATE, V.FATAL),
        (C.RECORDS, E.INVALID_TXN_STATE, V.ABORT),
        (C.RECORDS, E.MESSAGE_TOO_LARGE, V.ABORT),
        (C.RECORDS, E.OUT_OF_ORDER_SEQUENCE_NUMBER, V.ABORT),
        (C.RECORDS, E.REQUEST_TIMED_OUT, V.ABORT),  # the sender has retried for delivery.timeout.ms
    ],
)
def test_an_error_that_depends_on_the_request(call: C, code: E, verdict: V) -> None:
    assert verdict_of(call, code) is verdict
