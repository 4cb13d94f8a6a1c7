"""A foreign peer for clients: librdkafka's mock cluster of three brokers. And patience."""

from collections.abc import Iterator

import pytest

from interop.librdkafka import librdkafka
from tailrace.client import producer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that the first record creates may take its time: here the machine is slow, not the topic missing."""
    monkeypatch.setattr(producer, "UNKNOWN_TOPIC_WAIT_MS", 60_000)


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[str]:
    """The bootstrap servers of a cluster that is not ours. It creates topics of four partitions when asked for them."""
    cluster = librdkafka().MockCluster()
    yield cluster.bootstrap()
    del cluster  # it lives as long as its stand-in
