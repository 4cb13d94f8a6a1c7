"""MirrorMaker 2 copies topics, their settings and groups' offsets between Apache Kafka and a node, both ways."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.downloads.kafka_jars import programs_absent
from crash.transactions.committed_reads import committed_values
from interop.differential.apache import ApacheKafka
from interop.kafka_tools import absent
from interop.librdkafka import Message, librdkafka
from interop.programs.java_program import JavaProgram, java_program
from interop.programs.waiting import wait_for
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.soak, pytest.mark.timeout(1200)]

TOPIC = "orders"
SETTINGS = {
    "cleanup.policy": "compact",
    "compression.type": "zstd",
    "compression.zstd.level": "5",  # without effect on a node, and kept like every other setting
    "max.message.bytes": "2000000",
}
GROUP = "billing"
READ, MIRRORED = 3 * (50 + 1), 2 * 50
"""The group's offset behind all records: with aborted records and the transactions' markers, and without."""
BETWEEN = {
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "refresh.topics.interval.seconds": "2",
    "refresh.groups.interval.seconds": "2",
    "sync.topic.configs.interval.seconds": "2",
    "sync.topic.acls.interval.seconds": "2",
    "offset.lag.max": "0",
    "topics": TOPIC,
    "groups": GROUP,
}


class Side:
    """A cluster of the two: what is written there, and what comes from the other cluster."""

    def __init__(self, alias: str, other: str, bootstrap: str) -> None:
        self.alias, self.bootstrap = alias, bootstrap
        self.copied = f"{other}.{TOPIC}"

    def fill(self) -> list[bytes]:
        """Three transactions of a topic, the second aborted, read in part by a group. Returns the committed values."""
        with Admin(self.bootstrap) as admin:
            admin.create_topics([NewTopic(name=TOPIC, partitions=1, replication_factor=1, configs=SETTINGS)])
        writer = librdkafka().Producer(self.bootstrap, {"transactional.id": "mirrored"})
        committed = []
        for round_number in range(3):
            values = [f"{self.alias} {round_number} {number}".encode() for number in range(50)]
            messages = [Message(value, value, (("side", self.alias.encode()), ("null", None))) for value in values]
            is_commit = round_number != 1
            writer.transact(TOPIC, messages, is_commit=is_commit)
            committed += values if is_commit else []
        with Admin(self.bootstrap) as admin:
            admin.commit_offsets(GROUP, {TopicPartition(TOPIC, 0): READ})
        return committed

    def copies(self) -> list[bytes]:
        """The values that came from the other side; none as long as the topic does not exist."""
        with Admin(self.bootstrap) as admin:
            if not admin.existing_topics([self.copied]):
                return []
        return committed_values(self.bootstrap, TopicPartition(self.copied, 0))

    def settings(self) -> dict[str, str | None]:
        described = librdkafka().ConfluentAdmin(self.bootstrap).settings(self.copied)
        return {name: described[name][0] for name in SETTINGS}

    def offset(self) -> int | None:
        """The offset of the group in the copied topic."""
        with Admin(self.bootstrap) as admin:
            offsets = admin.group_offsets(GROUP)
        found = offsets.get(TopicPartition(self.copied, 0))
        return None if found is None else found.offset


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Side, Side]]:
    if why := absent() or programs_absent():
        pytest.skip(why)
    settings = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"}
    with ApacheKafka(settings) as kafka, Cluster() as cluster:
        yield Side("kafka", "tailrace", kafka.address), Side("tailrace", "kafka", cluster.bootstrap_servers)


def _properties(directory: Path, sides: tuple[Side, Side]) -> Path:
    flows = {f"{source.alias}->{target.alias}.enabled": "true" for source, target in (sides, sides[::-1])}
    addresses = {f"{side.alias}.bootstrap.servers": side.bootstrap for side in sides}
    addresses |= {f"{side.alias}.consumer.isolation.level": "read_committed" for side in sides}
    settings = {"clusters": ",".join(side.alias for side in sides), **addresses, **flows, **BETWEEN}
    properties = directory / "mirror.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return properties


def test_topics_settings_and_groups_are_mirrored_both_ways(sides: tuple[Side, Side], tmp_path: Path) -> None:
    kafka, tailrace = sides
    written = {side.alias: side.fill() for side in sides}
    properties = _properties(tmp_path, sides)
    with java_program(
        ("org.apache.kafka.connect.mirror.MirrorMaker", str(properties)), tmp_path / "mirror.log"
    ) as mirror:
        check_mirrored(tailrace, written[kafka.alias], mirror)
        check_mirrored(kafka, written[tailrace.alias], mirror)
        errors = [line for line in mirror.log.read_text().splitlines() if " ERROR " in line]
        assert not errors, errors[:5]


def check_mirrored(side: Side, written: list[bytes], mirror: JavaProgram) -> None:
    """Wait until this side has the other side's committed records, settings and group offset, and nothing else."""
    wait_for(lambda: len(side.copies()) >= len(written), f"{len(written)} records at {side.alias}", mirror.log)
    assert side.copies() == written
    wait_for(lambda: side.settings() == SETTINGS, f"the topic's settings, now {side.settings()}", mirror.log)
    wait_for(lambda: side.offset() == MIRRORED, f"the group's offset, now {side.offset()}", mirror.log)
