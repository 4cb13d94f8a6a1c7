"""Streamz: `kafka_service`, which starts a container, and the commands that the tests run in the container."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count, pairwise
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tailrace.testing import Cluster

_NUMBERS = count()


def pytest_load_initial_conftests() -> None:
    os.environ["STREAMZ_LAUNCH_KAFKA"] = "true"


@pytest.fixture(scope="session", autouse=True)
def closed_consumers(tailrace_cluster: Cluster) -> Iterator[None]:
    """Consumers that the tests leave open would wait for the node at the end of the process, when there is no node."""
    opened = []

    def open_consumer(*arguments: Any) -> Any:
        opened.append(Consumer(*arguments))
        return opened[-1]

    confluent_kafka.Consumer = open_consumer
    yield
    for consumer in opened:
        with suppress(RuntimeError):  # it is closed
            consumer.close()


@pytest.fixture(autouse=True)
def swapped(tailrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = {"bootstrap.servers": tailrace_cluster.bootstrap_servers}
    monkeypatch.setenv("NODE_ADDRESS", tailrace_cluster.bootstrap_servers)
    admin = AdminClient(servers)

    def shape(topic: str, partitions: int, *, create: bool) -> None:
        if create:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        else:
            admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    @contextmanager
    def kafka_service() -> Iterator[tuple[Producer, str]]:
        topic = f"test-{next(_NUMBERS)}"
        shape(topic, 1, create=True)  # consumers of librdkafka before 1.6 created topics, as the tests expect
        yield Producer({**servers, "topic.metadata.refresh.interval.ms": "5000"}), topic

    def call(words: Sequence[str]) -> None:
        """`docker exec streamz-kafka .../kafka-topics.sh`."""
        options = dict(pairwise(words))
        shape(options["--topic"], int(options["--partitions"]), create="--create" in words)

    tests = import_module("streamz.tests.test_kafka")
    monkeypatch.setattr(tests, "kafka_service", kafka_service)
    monkeypatch.setattr(tests.subprocess, "call", call)
