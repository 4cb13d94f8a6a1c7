"""A producer that commits, begins, sends and aborts at once, 100 times: no step may end the producer.

EndTxn is answered before the markers are written (KIP-98). The abort behind it belongs to the next transaction, and
any code but CONCURRENT_TRANSACTIONS is fatal in clients (KAFKA-18464). Java's producer is of KIP-890, librdkafka's is
older.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol
from uuid import uuid4

import confluent_kafka
import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from interop.differential.apache import ApacheKafka
from interop.java_machine import java_machine
from interop.kafka_tools import absent
from interop.librdkafka import DEADLINE_S
from interop.transactions.java_producer import JavaProducer
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ROUNDS = 100
PARTITIONS = 5
Begin = Callable[[str, str], "QuickClient"]
"""The client for bootstrap servers and a topic."""


class QuickClient(Protocol):
    """A transactional producer. The calls raise ProducerEnded when it cannot go on."""

    def begin(self) -> None: ...
    def send(self, partition: int, value: str) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ProducerEnded(Exception):
    """The client says that the producer cannot be used any more."""


class QuickJava:
    """Apache Kafka's own producer. Every exception of its calls but a time-out ends it."""

    def __init__(self, machine: JavaGateway, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = JavaProducer(machine, bootstrap, transactional_id=f"java-{uuid4()}", linger_ms="5000")
        self._producer.calls.initTransactions()

    def begin(self) -> None:
        with _java_errors():
            self._producer.calls.beginTransaction()

    def send(self, partition: int, value: str) -> None:
        with _java_errors():
            self._producer.send(self._topic, partition, value)

    def commit(self) -> None:
        with _java_errors():
            self._producer.calls.commitTransaction()

    def abort(self) -> None:
        with _java_errors():
            self._producer.calls.abortTransaction()

    def close(self) -> None:
        self._producer.calls.close()


@contextmanager
def _java_errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise ProducerEnded(str(error.java_exception)) from error


class QuickLibrdkafka:
    """confluent-kafka's producer. Its records go out at once: by the abort the coordinator may have been asked."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        settings = {"bootstrap.servers": bootstrap, "transactional.id": f"librdkafka-{uuid4()}", "linger.ms": 0}
        self._producer = confluent_kafka.Producer({**settings, "log_level": 0})
        self._producer.init_transactions(DEADLINE_S)

    def begin(self) -> None:
        with _librdkafka_errors():
            self._producer.begin_transaction()

    def send(self, partition: int, value: str) -> None:
        self._producer.produce(self._topic, value.encode(), partition=partition)

    def commit(self) -> None:
        with _librdkafka_errors():
            self._producer.commit_transaction(DEADLINE_S)

    def abort(self) -> None:
        with _librdkafka_errors():
            self._producer.abort_transaction(DEADLINE_S)

    def close(self) -> None:
        self._producer.purge()


@contextmanager
def _librdkafka_errors() -> Iterator[None]:
    try:
        yield
    except confluent_kafka.KafkaException as error:
        raise ProducerEnded(str(error)) from error


def rounds(begin: Begin, bootstrap: str) -> list[str]:
    """The errors that ended a producer; another one goes on with the next round."""
    topic = f"quick-aborts-{uuid4()}"
    with Admin(bootstrap) as admin:
        admin.create_topics({topic: PARTITIONS})
    ended: list[str] = []
    client = begin(bootstrap, topic)
    for number in range(ROUNDS):
        try:
            client.begin()
            for partition in range(PARTITIONS):
                client.send(partition, f"{number}")
            client.commit()
            client.begin()
            client.send(number % PARTITIONS, "aborted")
            client.abort()
        except ProducerEnded as error:
            ended.append(f"round {number}: {error}")
            client.close()
            client = begin(bootstrap, topic)
    client.close()
    return ended


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[str, str]]:
    """Addresses: of a node, and of Apache Kafka."""
    if why := absent():
        pytest.skip(why)
    with Cluster() as ours, ApacheKafka({}) as theirs:
        yield ours.bootstrap_servers, theirs.address


def test_java_aborts_right_behind_a_commit(clusters: tuple[str, str]) -> None:
    ours, theirs = clusters
    with java_machine() as machine:
        ended = [rounds(partial(QuickJava, machine), address) for address in (ours, theirs)]
    assert ended == [[], []]


def test_librdkafka_aborts_right_behind_a_commit(clusters: tuple[str, str]) -> None:
    """Apache Kafka ends this older client at times, with a code that is fatal to it."""
    ours, theirs = clusters
    assert rounds(QuickLibrdkafka, ours) == []
    assert [ended for ended in rounds(QuickLibrdkafka, theirs) if "INVALID_TXN_STATE" not in ended] == []
