"""The sections about clusters in the report of a failed test, in runs of pytest of their own."""

import re

import pytest

from tailrace.testing import Cluster
from tailrace.testing.failure_report import FEWEST_LINES, sections

TESTS = """
import unittest

import pytest

from tailrace import Producer
from tailrace.testing import Cluster, KafkaContainer

def test_with_the_fixture(tailrace_cluster, tailrace_topic):
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(8):
            producer.send(tailrace_topic, b"tea-%d" % number)
        producer.send("written-by-a-service", b"milk")
    raise AssertionError("on purpose")

def test_without_a_cluster():
    raise AssertionError("on purpose")

def test_with_a_block():
    with Cluster() as cluster:
        cluster.produce("of-the-block", ["rum"])
        cluster.kill()
        raise AssertionError("on purpose")

class OfUnittest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())

    def test_with_the_class(self):
        self.cluster.produce("of-the-class", ["gin"])
        self.fail("on purpose")

def test_with_the_fixture_again(tailrace_cluster, tailrace_topic):
    tailrace_cluster.wait_for_lag("group", "no-topic", timeout=0)

@pytest.fixture(scope="module")
def container():
    with KafkaContainer() as container:
        container.cluster.produce("of-the-container", ["beer"])
        yield container

def test_with_a_container(container):
    raise AssertionError("on purpose")

@pytest.mark.xfail
def test_that_is_expected_to_fail(tailrace_cluster):
    raise AssertionError("on purpose")
"""


def test_a_failed_test_shows_logs_and_last_records_of_its_clusters(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    pytester.makeconftest("from tailrace.testing import failure_report\n\nfailure_report.TIME_S = 120\n")
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=6, xfailed=1)
    _, *parts = re.split(r"^_{5,} (\S+) _{5,}$", str(result.stdout), flags=re.MULTILINE)
    reports = dict(zip(parts[::2], parts[1::2], strict=True))
    by_fixture, without, by_block, by_container, by_class = (
        reports[f"test_{name}"] if name != "class" else reports["OfUnittest.test_with_the_class"]
        for name in ("with_the_fixture", "without_a_cluster", "with_a_block", "with_a_container", "class")
    )
    assert "Tailrace node 1: its log since the test began" in by_fixture
    assert "event=node-started" in by_fixture
    assert [f"tea-{number}" in by_fixture for number in range(8)] == [False] * 3 + [True] * 5
    assert "written-by-a-service:" in by_fixture
    assert "milk" in by_fixture
    again = reports["test_with_the_fixture_again"]
    assert "test_with_the_fixture_again-" in again
    assert "tea-7" not in again, "the topic of another test"
    assert "topic_calls.py" not in again, "the traceback ends in the test"
    assert "Tailrace" not in without
    assert "Tailrace node 1 (not running): its log since the test began" in by_block
    assert "event=node-started" in by_block
    assert "(no records: " in by_block
    assert "no broker of the cluster runs" in by_block
    assert "value=b'beer'" in by_container
    assert "of-the-class:" in by_class
    assert "value=b'gin'" in by_class
    assert "tea-7" not in by_class


def test_the_report_has_the_lines_of_the_log_since_the_test_began() -> None:
    with Cluster() as cluster:
        assert "event=node-started" in dict(sections(cluster, 0))["Tailrace node 1: its log since the test began"]
        cluster.create_topic("of-another-test")
        cluster.mark_logs()
        for number in range(8):
            cluster.create_topic(f"of-this-test-{number}")
        lines = dict(sections(cluster, 0))["Tailrace node 1: its log since the test began"]
        assert [f"of-this-test-{number}" in lines for number in range(8)] == [True] * 8
        assert "of-another-test" not in lines
        assert "event=node-started" not in lines
        cluster.mark_logs()
        few = dict(sections(cluster, 0))["Tailrace node 1: the last lines of its log"]
        assert len(few.splitlines()) == FEWEST_LINES
        assert "of-this-test-7" in few


def test_the_report_is_bounded_in_size_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.testing.failure_report.TIME_S", 120)
    with Cluster() as cluster:
        for number in range(12):
            cluster.produce(f"topic-{number}", ["x" * 5_000] * 30, partitions=3)
        found = dict(sections(cluster, 0))
        records = found["Tailrace topics: the last records"]
        assert records.count("value=b'xxx") == 8 * 5
        assert "... and 4 more topics" in records
        assert sum(map(len, found.values())) < 30_000
        cluster.pause()
        monkeypatch.setattr("tailrace.testing.failure_report.TIME_S", 0.2)
        assert "(no records: " in dict(sections(cluster, 0))["Tailrace topics: the last records"]
        cluster.resume()
