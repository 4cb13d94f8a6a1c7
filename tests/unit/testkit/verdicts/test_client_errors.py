"""The errors of clients under faults: an error is explained, or is not."""

import pytest

from testkit.verdicts.client_errors import HANGS, ClientError, Excuses, FaultWindow, explanation, unexplained

EXCUSES = Excuses(timeout_ns=10_000_000_000)
KILL = FaultWindow("kill", 100_000_000_000, 103_000_000_000)
STOP = FaultWindow("stop", 100_000_000_000, 103_000_000_000, "java")
TIMED_OUT = "TimeoutException: the records are late"


def error(began_s: float, at_s: float, reason: str = TIMED_OUT, *, client: str = "java") -> ClientError:
    return ClientError(client, True, int(began_s * 1e9), int(at_s * 1e9), reason)


def explained(error: ClientError, *faults: FaultWindow) -> str | None:
    return explanation(error, faults, EXCUSES)


@pytest.mark.parametrize(
    ("began_s", "at_s", "expected"),
    [(90, 99, None), (95, 101, "kill"), (101, 102, "kill"), (107, 109, "kill"), (108.1, 109, None)],
    ids=["before", "into it", "in it", "in its grace", "behind it"],
)
def test_a_fault_explains_an_error_that_it_meets(began_s: float, at_s: float, expected: str | None) -> None:
    assert explained(error(began_s, at_s), KILL) == expected


def test_a_fault_of_one_client_explains_no_error_of_another() -> None:
    assert explained(error(101, 102), STOP) == "stop"
    assert explained(error(101, 102, client="kafkajs"), STOP) is None


@pytest.mark.parametrize(
    "reason",
    [
        "ProducerFencedException: There is a newer producer",
        "KafkaJSProtocolError INVALID_PRODUCER_EPOCH: Producer attempted an operation with an old epoch",
        "InvalidProducerEpochError: [Error 47]",
        "_FENCED: it is fenced by a newer instance",
        "INVALID_PRODUCER_ID_MAPPING: The producer attempted to use a producer id",
    ],
)
def test_only_the_time_of_its_transaction_explains_that_a_producer_is_fenced(reason: str) -> None:
    assert explained(error(101, 102, reason), KILL) is None
    assert explained(error(101, 111, reason)) == "the time of its transaction was over"


def test_a_hang_is_explained_by_faults_alone() -> None:
    assert explained(error(10, 60, HANGS)) is None
    assert explained(error(150, 175, HANGS), KILL) == "kill"
    assert explained(error(164, 190, HANGS), KILL) is None


def test_unexplained_errors_are_sentences() -> None:
    (sentence,) = unexplained([error(1, 3), error(101, 102)], [KILL], EXCUSES)
    assert sentence == f"fatal error without a fault: java, 2.0 s after its begin: {TIMED_OUT}"
