"""kafka-python's own integration tests pass against nodes, with TLS, SASL and ACLs too; skips have their reason."""

import sys
from pathlib import Path

import pytest

from interop.suites.kafka_python_suite import KAFKA_PYTHON, absent
from interop.suites.source_suite import run_until_passed

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

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text)

    run = run_until_passed(KAFKA_PYTHON.tests, tmp_path, say, without=KAFKA_PYTHON.left_out, times=AGAIN)
    assert run.skipped == KAFKA_PYTHON.skipped
    told = len(run.passed) + len(run.skipped) + len(KAFKA_PYTHON.left_out)
    assert run.collected == KAFKA_PYTHON.collected == told
