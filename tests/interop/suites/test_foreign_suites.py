"""Tests of a broker by other projects pass against a node of the kit, with one fixture swapped."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.peers.kafka import ONE_REPLICA
from interop import kafka_tools
from interop.differential.apache import ApacheKafka
from interop.suites.foreign_suites import ARROYO, SUITES, TESTLESS, PackageWithoutTests, arroyo_absent
from interop.suites.source_suite import ForeignSuite, fetched_sources, run_suite, run_until_passed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(3600)]

AGAIN = 2
"""Times that what has failed is run once more: some tests give a broker a second."""


@pytest.fixture(name="say")
def _say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text)

    return say


def test_arroyo_processes_a_topic_in_a_group_of_kip_848(tmp_path: Path) -> None:
    if why := arroyo_absent():
        pytest.skip(why)
    run = run_suite(ARROYO.tests, tmp_path, only=("test_kip848_e2e.py",))
    assert (run.passed, run.failed) == ({"test_kip848_e2e.py::test_kip848_e2e"}, {})


@pytest.mark.soak
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.tests.project)
def test_the_broker_tests_of_a_project_pass(suite: ForeignSuite, tmp_path: Path, say: Callable[[str], None]) -> None:
    if why := suite.tests.absent():
        pytest.skip(why)
    run = run_until_passed(suite.tests, tmp_path, say, without=suite.left_out, times=AGAIN)
    assert run.skipped == suite.skipped
    assert run.collected == suite.collected == len(run.passed) + len(run.skipped) + len(suite.left_out)


@pytest.mark.soak
@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite.left_out], ids=lambda suite: suite.tests.project)
def test_left_out_tests_fail_with_apache_kafka_too(suite: ForeignSuite, tmp_path: Path) -> None:
    if why := suite.tests.absent() or kafka_tools.absent():
        pytest.skip(why)
    with ApacheKafka(ONE_REPLICA) as kafka:
        run = run_suite(suite.tests, tmp_path, only=suite.left_out, elsewhere=kafka.address)
    assert (run.failed.keys(), run.passed) == (suite.left_out.keys(), set())


@pytest.mark.soak
@pytest.mark.parametrize("package", TESTLESS, ids=lambda package: package.project)
def test_a_source_distribution_has_no_tests(package: PackageWithoutTests, tmp_path: Path) -> None:
    """Otherwise the tests could run here."""
    root = fetched_sources(package.project, package.version, tmp_path)
    assert (root is not None) == package.has_sources
    if root is not None:
        names = [str(path.relative_to(root)) for path in root.rglob("*.py")]
        assert names
        assert [name for name in names if re.search(r"(^|/)(tests?/|test_[^/]*$|conftest)", name)] == []
