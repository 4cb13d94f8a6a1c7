"""The pytest fixtures of the kit, and its part of the report of a failed test.

Every run of pytest loads this module: it imports nothing of the product.
"""

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.testing.running_test import RUNNING_TEST, Section

if TYPE_CHECKING:
    from tailrace.testing.cluster import Cluster
    from tailrace.testing.topic_names import TopicFactory


_IS_REPORTED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "tailrace_topic(partitions=1, replication_factor=None, config=None): the topic of tailrace_topic"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    RUNNING_TEST.begin(_describe)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs and the last records of the clusters that a failed test has used."""
    report = yield
    if report.failed and not item.stash.get(_IS_REPORTED, False) and "tailrace.testing.cluster" in sys.modules:
        item.stash[_IS_REPORTED] = True
        try:
            report.sections += _sections(item)
        except Exception as fault:  # noqa: BLE001 - the failure of the test is what counts
            report.sections.append(("Tailrace", f"(no report of the cluster: {fault})"))
    return report


def _describe(cluster: Any, since_ms: int) -> list[Section]:
    from tailrace.testing.failure_report import sections

    return sections(cluster, since_ms)


def _sections(item: pytest.Item) -> list[Section]:
    from tailrace.testing.failure_report import used_clusters

    found = list(RUNNING_TEST.last_words)
    for cluster in used_clusters([*_values(item), *RUNNING_TEST.started]):
        found += _describe(cluster, RUNNING_TEST.since_ms or 0)
    return found


def _values(item: pytest.Item) -> list[Any]:
    """The values of the fixtures of a test, and the attributes of its class."""
    values = list(getattr(item, "funcargs", {}).values())
    for owner in (getattr(item, "instance", None), getattr(item, "cls", None)):
        values += list(getattr(owner, "__dict__", {}).values())
    return values


@pytest.fixture(scope="session")
def tailrace_cluster() -> "Iterator[Cluster]":
    """A cluster of one node for the whole run. Tests share the node: give topics and groups names of their own."""
    from tailrace.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def tailrace_topic_factory(tailrace_cluster: "Cluster", request: pytest.FixtureRequest) -> "TopicFactory":
    """A function that creates a topic and returns its fresh name: `tailrace_topic_factory("orders", partitions=3)`."""
    from tailrace.testing.topic_names import TopicFactory

    return TopicFactory(tailrace_cluster, request.node.name)


@pytest.fixture
def tailrace_topic(tailrace_topic_factory: "TopicFactory", request: pytest.FixtureRequest) -> str:
    """The name of a topic of this test alone, which exists. `@pytest.mark.tailrace_topic(partitions=3)` shapes it."""
    marker = request.node.get_closest_marker("tailrace_topic")
    return tailrace_topic_factory() if marker is None else tailrace_topic_factory.marked(marker.args, marker.kwargs)


@pytest.fixture
def tailrace_group(request: pytest.FixtureRequest) -> str:
    """The name of a group of this test alone."""
    from tailrace.testing.topic_names import fresh_name

    return fresh_name(request.node.name)
