"""The pytest fixtures of the kit. Every run of pytest loads this module: it imports nothing of the product."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tailrace.testing.cluster import Cluster
    from tailrace.testing.topic_names import TopicFactory


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "tailrace_topic(partitions=1, replication_factor=None, config=None): the topic of tailrace_topic"
    )


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
