"""A foreign peer for clients: librdkafka's mock cluster of three brokers."""

from collections.abc import Iterator

import pytest

from interop.librdkafka import librdkafka


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[str]:
    """The bootstrap servers of a cluster that is not ours. It creates topics of four partitions when asked for them."""
    cluster = librdkafka().MockCluster()
    yield cluster.bootstrap()
    del cluster  # it lives as long as its stand-in
