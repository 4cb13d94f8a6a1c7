"""kafka-python's own integration tests pass against a node, all but the tests that are named here with the reason."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from interop.suites.kafka_python_suite import absent, run_suite
from tailrace.testing import Cluster

SETTINGS = {
    "node.id": "0",
    "num.partitions": "4",
    "offsets.topic.num.partitions": "2",
    "group.min.session.timeout.ms": "1000",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
}
"""As in the broker settings that the tests bring along for Apache Kafka."""

_NO_ACLS = "a node has no ACLs"
_NO_TLS = "needs a broker with TLS"
NOT_RUN = {
    "test_admin_integration.py::test_create_describe_delete_acls": _NO_ACLS,
    "test_ssl_integration.py::TestSSLConnection::test_ssl_handshake": _NO_TLS,
    "test_ssl_integration.py::TestSSLConnection::test_legacy_kafka_client_ssl": _NO_TLS,
}
"""Tests that would fail, with the reasons."""

_SASL = "Testing on external Kafka Broker"
SKIPPED = {
    "test_consumer_integration.py::test_kafka_consumer_offsets_for_time_old": "Requires KAFKA_VERSION < 0.10.1",
    **{
        f"test_sasl_integration.py::{test}[{mechanism}]": _SASL
        for test in ("test_admin", "test_produce_and_consume", "test_client")
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    },
}
"""Tests that are skipped by themselves, with their reason: tests with SASL want to start a broker of their own."""

COLLECTED = 67
"""Tests in the version of constraints.txt."""


AGAIN = 3
"""Times that what has failed is run once more, on a node that knows nothing of the first run.

Some tests give a node half a second or a second. A consumer that subscribes while its first metadata are on their way
may see nothing for 30 s (docs/open-ends.md).
"""


@pytest.mark.interop
@pytest.mark.timeout(900)
def test_the_integration_tests_of_kafka_python_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if why := absent():
        pytest.skip(why)
    with Cluster(config=SETTINGS) as cluster:
        run = run_suite(cluster.bootstrap_servers, tmp_path, without=tuple(NOT_RUN))
    passed, failed, told = run.passed, run.failed, [_told(run.failed)]
    for _ in range(AGAIN):
        if failed:
            with capsys.disabled():
                sys.stdout.write(f"\nkafka-python, run once more: {_told(failed)}\n")
            with Cluster(config=SETTINGS) as cluster:
                again = run_suite(cluster.bootstrap_servers, tmp_path, only=failed)
            passed, failed = passed | again.passed, again.failed
            told.append(_told(failed))
    assert not failed, "\n\nand before:\n\n".join(reversed(told))
    assert run.skipped == SKIPPED
    assert run.collected == COLLECTED == len(passed) + len(run.skipped) + len(NOT_RUN)


def _told(failed: Mapping[str, str]) -> str:
    return "\n\n".join(f"{name}: {message}" for name, message in failed.items())
