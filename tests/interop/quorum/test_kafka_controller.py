"""A replica of ours observes the quorum of a real Apache Kafka controller, and knows what Kafka's own tools tell.

An observer reads the log from its start; another comes when a snapshot stands for most of the log, and fetches that.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.peers.peer import free_addresses
from benchmarks.peers.process import Process
from interop.kafka_tools import JARS, absent, run
from interop.librdkafka import DEADLINE_S
from interop.quorum.observer import Observer
from tailrace.client.blocking import Admin, NewTopic
from tailrace.metadata.feature_levels import METADATA_VERSION
from tailrace.metadata.image import ALL_BROKERS, ClusterImage
from tailrace.metadata.records.quotas import QUOTAS
from tailrace.model.ids import format_topic_id
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CLUSTER_ID = "AAECAwQFBgcICQoLDA0ODw"
RELEASE = {26: "4.1-IV0", 27: "4.1-IV1"}[METADATA_VERSION]
BYTES_BETWEEN_SNAPSHOTS = 30_000
MANY_TOPICS = 60
OF_ORDERS = ("--alter", "--entity-type", "topics", "--entity-name", "orders")

CONTROLLER = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{address},CONTROLLER://{controller}
metadata.log.max.record.bytes.between.snapshots={between}
"""
BROKER = """process.roles=broker
node.id=2
listeners=PLAINTEXT://{address}
"""
BOTH = """controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={controller}
log.dirs={home}/data
broker.rack={rack}
broker.heartbeat.interval.ms=250
broker.session.timeout.ms=9000
offsets.topic.num.partitions=1
"""


class Kafka:
    """A controller that is a broker too, and a second broker."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.address, self.address_of_second, self.controller = free_addresses(3)
        first = CONTROLLER.format(
            address=self.address, controller=self.controller, between=BYTES_BETWEEN_SNAPSHOTS
        ) + self._both(directory / "1", "a")
        second = BROKER.format(address=self.address_of_second) + self._both(directory / "2", "b")
        self.metadata_log = directory / "1" / "data" / "__cluster_metadata-0"
        self.first = self._started(directory / "1", first, stack, "--standalone", "--release-version", RELEASE)
        self.second = self._started(directory / "2", second, stack)

    def _both(self, home: Path, rack: str) -> str:
        return BOTH.format(controller=self.controller, home=home, rack=rack)

    def _started(self, home: Path, settings: str, stack: ExitStack, *form: str) -> Process:
        home.mkdir()
        properties = home / "server.properties"
        properties.write_text(settings)
        run("kafka-storage", "format", *form, "-t", CLUSTER_ID, "-c", str(properties))
        java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx320m", "-cp", f"{JARS}/*", "kafka.Kafka"]
        process = Process([*java, str(properties)], output=home / "output")
        process.start()
        stack.callback(process.kill)
        return process

    def tool(self, script: str, *options: str) -> str:
        """The output of one of Kafka's tools."""
        return run(script, "--bootstrap-server", self.address, *options).out

    def create(self, topic: str, *options: str) -> None:
        """A topic, which the next tool finds at either broker: the controller does not wait until brokers know it."""
        self.tool("kafka-topics", "--create", "--topic", topic, *options)
        for address in (self.address, self.address_of_second):
            with Admin(address) as admin:
                wait_until(lambda: topic in {listed.name for listed in admin.list_topics()}, f"{address} knows {topic}")


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Kafka]:
    if why := absent():
        pytest.skip(why)
    with ExitStack() as stack:
        yield Kafka(tmp_path, stack)


class Told(NamedTuple):
    """The output of kafka-topics --describe."""

    topics: Mapping[str, tuple[str, Mapping[str, str]]]
    """Ids and settings."""
    partitions: Mapping[tuple[str, int], tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    """Leader, replicas, replicas in sync, eligible replicas."""


def told_by_kafka(text: str) -> Told:
    topics: dict[str, tuple[str, Mapping[str, str]]] = {}
    partitions = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+): ?([^\t]*)", line))
        if "TopicId" in fields:
            settings = dict(pair.split("=", 1) for pair in re.split(r",(?=[a-z.]+=)", fields["Configs"]) if pair)
            topics[fields["Topic"]] = fields["TopicId"], settings
        elif "Partition" in fields:
            leader = -1 if fields["Leader"] == "none" else int(fields["Leader"])
            sets = (_numbers(fields[name]) for name in ("Replicas", "Isr", "Elr"))
            partitions[fields["Topic"], int(fields["Partition"])] = (leader, *sets)
    return Told(topics, partitions)  # type: ignore[arg-type]  # three sets


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word.strip().isdecimal())


def known_to_us(image: ClusterImage) -> Told:
    defaults = image.configs.get(ALL_BROKERS, {})
    topics = {
        name: (format_topic_id(topic.topic_id), {**defaults, **image.topic_overrides(name)})
        for name, topic in image.topics.items()
    }
    partitions = {
        (name, number): (state.leader, state.replicas, state.in_sync_replicas, state.eligible_leader_replicas)
        for name, topic in image.topics.items()
        for number, state in topic.partitions.items()
    }
    return Told(topics, partitions)


def in_any_order(image: ClusterImage) -> ClusterImage:
    """Kafka's snapshot states the features of a process in another order than its log."""
    return replace(
        image,
        brokers={
            key: replace(broker, features=tuple(sorted(broker.features))) for key, broker in image.brokers.items()
        },
        controllers={
            key: replace(controller, features=tuple(sorted(controller.features)))
            for key, controller in image.controllers.items()
        },
    )


def wait_until_known(observer: Observer, condition: Callable[[ClusterImage], bool], what: str) -> None:
    def is_known() -> bool:
        assert not observer.faults, observer.faults
        return condition(observer.image)

    wait_until(is_known, what)


def described_alike(kafka: Kafka, observer: Observer) -> Told:
    """The output of Kafka's tool that we know too. Replicas that come or go in between are asked for again."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        described = told_by_kafka(kafka.tool("kafka-topics", "--describe"))
        known = known_to_us(observer.image)
        if known == described or time.monotonic() > deadline:
            assert known == described
            return described


def test_topics_settings_and_replicas_in_sync_are_those_that_kafka_describes(kafka: Kafka, tmp_path: Path) -> None:
    with ExitStack() as stack:
        by_log = stack.enter_context(Observer(tmp_path / "by-log", kafka.controller))
        wait_until_known(by_log, lambda image: are_both_alive(kafka, image), "both brokers are alive")
        assert {int(broker_id): broker.rack for broker_id, broker in by_log.image.brokers.items()} == {1: "a", 2: "b"}
        assert by_log.leader_id == 1
        assert [key.id for key in by_log.voters.keys] == [1]
        assert by_log.snapshot_ids == []
        change(kafka)
        wait_until_known(by_log, lambda image: "last" in image.topics, "all changes have come")
        assert set(described_alike(kafka, by_log).topics) == {"orders", "flights", "last"}

        kafka.second.kill()
        wait_until_known(by_log, all_led_by_the_first, "the second broker is fenced")
        described = described_alike(kafka, by_log)
        assert described.partitions["orders", 0] == (1, described.partitions["orders", 0][1], (1,), (2,))
        assert by_log.image.brokers.keys() == {1, 2}
        assert [int(broker.broker_id) for broker in by_log.image.alive_brokers()] == [1]

        kafka.tool("kafka-configs", *OF_ORDERS, "--add-config", "min.insync.replicas=1")
        wait_until_known(by_log, no_replica_is_eligible, "Kafka forgets the eligible replicas")
        described_alike(kafka, by_log)

        fill_until_there_is_a_snapshot(kafka)
        by_snapshot = stack.enter_context(Observer(tmp_path / "by-snapshot", kafka.controller, node_id=901))
        for observer in (by_log, by_snapshot):
            wait_until_known(observer, lambda image: "behind-the-snapshot" in image.topics, "both have caught up")
        assert by_snapshot.snapshot_ids != []
        assert by_snapshot.log_start_offset > 0
        assert by_log.log_start_offset == 0
        assert in_any_order(by_snapshot.image) == in_any_order(by_log.image)
        described_alike(kafka, by_snapshot)

        told = kafka.tool("kafka-metadata-quorum", "describe", "--replication")
        observers = {int(line.split()[0]) for line in told.splitlines() if line.rstrip().endswith("Observer")}
        assert {900, 901} <= observers
        a_quota_is_known_too(kafka, by_snapshot)


def are_both_alive(kafka: Kafka, image: ClusterImage) -> bool:
    for process in (kafka.first, kafka.second):
        assert process.is_running, process.output()
    return len(list(image.alive_brokers())) == 2


def change(kafka: Kafka) -> None:
    """Everything that an administrator does, by Kafka's own tools."""
    two = ("--partitions", "2", "--replication-factor", "2")
    kafka.create("orders", *two, "--config", "min.insync.replicas=2")
    kafka.create("gone", *two)
    kafka.create("flights", *two, "--config", "cleanup.policy=compact,delete")
    kafka.tool("kafka-topics", "--alter", "--topic", "flights", "--partitions", "4")
    kafka.tool("kafka-topics", "--delete", "--topic", "gone")
    kafka.tool("kafka-configs", *OF_ORDERS, "--add-config", "retention.ms=7777,segment.ms=8888")
    kafka.tool("kafka-configs", *OF_ORDERS, "--delete-config", "segment.ms")
    kafka.create("last", "--replica-assignment", "2:1,1:2")


def all_led_by_the_first(image: ClusterImage) -> bool:
    states = [state for topic in image.topics.values() for state in topic.partitions.values()]
    return all((state.leader, state.in_sync_replicas) == (1, (1,)) for state in states)


def no_replica_is_eligible(image: ClusterImage) -> bool:
    return not any(state.eligible_leader_replicas for state in image.topics["orders"].partitions.values())


def fill_until_there_is_a_snapshot(kafka: Kafka) -> None:
    with Admin(kafka.address) as admin:
        admin.create_topics([NewTopic(name=f"many-{n}", partitions=10) for n in range(MANY_TOPICS)])
        wait_until(
            lambda: any(not path.name.startswith("0" * 20) for path in kafka.metadata_log.glob("*.checkpoint")),
            "Kafka writes a snapshot",
        )
        admin.create_topics([NewTopic(name="behind-the-snapshot", partitions=1)])


def a_quota_is_known_too(kafka: Kafka, observer: Observer) -> None:
    """A quota that Kafka's tool has set stands in the log of Kafka's controller (KIP-546)."""
    quota = ("--alter", "--entity-type", "clients", "--entity-name", "c", "--add-config", "producer_byte_rate=1000")
    kafka.tool("kafka-configs", *quota)
    wait_until(lambda: bool(QUOTAS.of(observer.image)), "the quota is in the image")
    assert list(QUOTAS.of(observer.image).items()) == [(((("client-id", "c"),), "producer_byte_rate"), 1000.0)]
    assert observer.faults == []
