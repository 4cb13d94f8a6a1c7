"""A foreign peer for clients: librdkafka's mock cluster of three brokers; and a longer wait for unknown topics."""

from collections.abc import Iterator

import pytest

from interop.librdkafka import librdkafka
from tailrace.client import producer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for a topic that the first record creates: on a slow machine the topic is late, and not missing."""
    monkeypatch.setattr(producer, "UNKNOWN_TOPIC_WAIT_MS", 60_000)


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[str]:
    """The bootstrap servers of a cluster that is not ours. Unknown topics get four partitions."""
    cluster = librdkafka().MockCluster()
    yield cluster.bootstrap()
    del cluster  # it lives as long as its stand-in
