"""A foreign peer for clients: librdkafka's mock cluster, three brokers in this process."""

from collections.abc import Iterator

import confluent_kafka
import pytest


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[str]:
    """The bootstrap servers of a cluster that is not ours. It creates topics of four partitions when asked for them."""
    owner = confluent_kafka.Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "mock", "log_level": 0})
    brokers = owner.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    owner.flush(0)
