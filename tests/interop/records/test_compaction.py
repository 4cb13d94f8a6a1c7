"""Foreign consumers read a compacted topic, whose offsets have gaps and some of whose batches are empty."""

import random
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest
from confluent_kafka import Producer

from interop.clients import CLIENTS, CODECS, ForeignClient, absent, knows
from interop.kafka_tools import absent as tools_absent
from interop.kafka_tools import dump_log_segments
from interop.librdkafka import DEADLINE_S, Message
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.key_hash import coordinator_partition
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record, read_records
from tailrace.storage import OsFiles, checkpoints
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.interop

CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}
KEYS = 7
ROUNDS = 8
DELETED = 3
OFFSETS_PARTITIONS = 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = {
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "offsets.topic.segment.bytes": "1500",
        "offsets.topic.num.partitions": f"{OFFSETS_PARTITIONS}",
    }
    with Cluster(directory=tmp_path_factory.mktemp("node"), config=config) as cluster:
        yield cluster


def round_of(number: int) -> list[Message]:
    """The messages of a round: every key once more; the last round deletes a key."""
    is_last = number == ROUNDS - 1
    return [
        Message(
            b"key-%d" % key,
            None if is_last and key == DELETED else b"round %d of key %d" % (number, key) * 5,
            (("round", b"%d" % number),),
        )
        for key in range(KEYS)
    ]


def compacted_topic(cluster: Cluster, writer: ForeignClient, codec: str) -> tuple[str, Path]:
    """A topic of many rounds of which the older ones are compacted away; its directory."""
    topic = f"compacted-{writer.name}-{codec}"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=topic, partitions=1, configs=CONFIGS)])
    for number in range(ROUNDS):
        writer.produce(cluster.bootstrap_servers, topic, round_of(number), codec)
    for _ in range(2):  # too large for what is left of a segment: all before them is compacted
        noise = random.Random(topic).randbytes(750).hex().encode()
        writer.produce(cluster.bootstrap_servers, topic, [Message(b"end", noise)], codec)
    (directory,) = cluster.data_dir().glob(f"**/{topic}-0")
    wait_until(lambda: is_compacted(directory), f"{topic} is compacted")
    return topic, directory


def is_compacted(directory: Path) -> bool:
    active = max(int(path.stem) for path in directory.glob("*.log"))
    offsets = checkpoints.read_offsets(OsFiles(), str(directory.parent), checkpoints.CLEANER_OFFSETS)
    return any(str(partition) == directory.name and offset == active for partition, offset in offsets.items())


def stored(directory: Path) -> tuple[list[Record], int]:
    """The records in the log's files, and the number of empty batches."""
    records: list[Record] = []
    empty = 0
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        for position, header in iter_batches(content):
            records += read_records(content, position)
            empty += header.records_count == 0
    return records, empty


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_the_last_record_of_each_key(cluster: Cluster, codec: str) -> None:
    topic, directory = compacted_topic(cluster, CLIENTS[0], codec)
    records, empty_batches = stored(directory)
    assert empty_batches > 0
    assert records[-1].offset > 2 * len(records)
    expected = [Message(record.key, record.value, record.headers) for record in records]
    assert expected[-KEYS - 2 : -2] == round_of(ROUNDS - 1) or expected[-KEYS - 1 : -1] == round_of(ROUNDS - 1)
    for reader in CLIENTS:
        if not absent(reader) and knows(reader, codec):
            read = reader.consume(cluster.bootstrap_servers, topic, len(expected))
            assert read == expected, f"{reader.name} read something else"


def test_every_client_reads_over_small_segments_without_a_record(cluster: Cluster) -> None:
    """Producers with an id leave their last batch, emptied. librdkafka gives up after ten answers without a record.

    And the producer without an id leaves nothing.
    """
    topic, keys = "small-segments", 161
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=topic, partitions=1, configs={**CONFIGS, "segment.bytes": "200"})])
    each_alone = {"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 1}
    for _ in range(30):
        producer = Producer({**each_alone, "enable.idempotence": True})
        producer.produce(topic, b"later another", b"key-0", partition=0)
        assert producer.flush(DEADLINE_S) == 0
    producer = Producer(each_alone)
    for number in range(460):
        producer.produce(topic, b"%d" % number, b"key-%d" % (number % keys), partition=0)
    assert producer.flush(DEADLINE_S) == 0
    (directory,) = cluster.data_dir().glob(f"**/{topic}-0")
    wait_until(lambda: is_compacted(directory), f"{topic} is compacted")
    records, empty_batches = stored(directory)
    assert 30 <= empty_batches <= 31, "of each producer with an id; and perhaps where the rewritten part ends"
    assert {record.key for record in records} == {b"key-%d" % key for key in range(keys)}
    expected = [Message(record.key, record.value, record.headers) for record in records]
    for reader in CLIENTS:
        if not absent(reader):
            assert reader.consume(cluster.bootstrap_servers, topic, len(expected)) == expected, reader.name


def test_committed_offsets_are_compacted_and_still_there_after_a_restart(cluster: Cluster) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id="keeper", enable_auto_commit=False
    )
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({"kept": 2})
    partitions = [kafka.TopicPartition("kept", number) for number in range(2)]
    consumer.assign(partitions)
    for offset in range(60):
        consumer.commit({partition: kafka.OffsetAndMetadata(offset, "", -1) for partition in partitions})
    consumer.close()
    number = coordinator_partition("keeper", OFFSETS_PARTITIONS)
    (directory,) = cluster.data_dir().glob(f"**/{GROUP_OFFSETS_TOPIC}-{number}")
    wait_until(lambda: is_compacted(directory), "the offsets are compacted")
    assert len(stored(directory)[0]) < 60
    for end in (cluster.stop, cluster.kill):
        end()
        cluster.restart()
        consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id="keeper")
        assert [consumer.committed(partition) for partition in partitions] == [59, 59]
        consumer.close()


def test_kafkas_log_dump_finds_nothing_wrong(cluster: Cluster) -> None:
    if why := tools_absent():
        pytest.skip(why)
    _, directory = compacted_topic(cluster, CLIENTS[1], "lz4")
    files = sorted(path.name for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    dump = dump_log_segments(directory, files, "--deep-iteration", "--print-data-log")
    assert "deleteHorizonMs: OptionalLong[" in dump.out
    assert f"round {ROUNDS - 1} of key 6" in dump.out
    for word in ("Mismatch", "mismatch", "not valid", "isvalid: false", "Found timestamp", "corrupt"):
        assert word not in dump.out + dump.err
