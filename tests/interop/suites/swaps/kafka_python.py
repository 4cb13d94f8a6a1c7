"""kafka-python: its broker, with the settings that the tests bring along for Apache Kafka."""

import os
from collections.abc import Iterator

import pytest

from tailrace.testing import Cluster

SETTINGS = {
    "node.id": "0",
    "num.partitions": "4",
    "offsets.topic.num.partitions": "2",
    "group.min.session.timeout.ms": "1000",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:0",
}


def pytest_load_initial_conftests() -> None:
    # With 4.0 and later the tests look for no ZooKeeper. Modules look for a KAFKA_URI when they are imported.
    os.environ |= {"KAFKA_VERSION": "4.1.0", "KAFKA_ROOT": os.getcwd(), "KAFKA_URI": ""}


@pytest.fixture(scope="session")
def tailrace_cluster() -> Iterator[Cluster]:
    with Cluster(config=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="session", autouse=True)
def swapped(tailrace_cluster: Cluster) -> None:
    os.environ["KAFKA_URI"] = f"kafka://{tailrace_cluster.bootstrap_servers}"
