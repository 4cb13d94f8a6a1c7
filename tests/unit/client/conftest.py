"""A foreign peer for clients: librdkafka's mock cluster of three brokers; a served node; a longer wait for topics."""

from collections.abc import Iterator

import pytest

from interop.librdkafka import librdkafka
from tailrace.client import producer
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster
from testkit.nodes.admin_server import AdminServer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for a topic that the first record creates: on a slow machine the topic is late, and not missing."""
    monkeypatch.setattr(producer, "UNKNOWN_TOPIC_WAIT_MS", 60_000)


@pytest.fixture
def servers(tailrace_cluster: Cluster) -> str:
    """The bootstrap servers of the node that all tests share."""
    return tailrace_cluster.bootstrap_servers


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[str]:
    """The bootstrap servers of a cluster that is not ours. Unknown topics get four partitions."""
    cluster = librdkafka().MockCluster()
    yield cluster.bootstrap()
    del cluster  # it lives as long as its stand-in


@pytest.fixture
def server() -> Iterator[AdminServer]:
    with AdminServer() as server:
        yield server


@pytest.fixture
def admin(server: AdminServer) -> Iterator[Admin]:
    with Admin(server.bootstrap_servers) as admin:
        yield admin
