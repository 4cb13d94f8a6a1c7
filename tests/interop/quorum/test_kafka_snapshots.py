"""Apache Kafka's own log dump reads the snapshots that we write, and we read snapshots of Kafka's controller."""

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.peers.peer import free_addresses
from benchmarks.peers.process import Process
from interop.kafka_tools import JARS, dump_log_segments, run
from tailrace.cli.main import main
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.brokers import (
    RecordedEndpoint,
    RecordedFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from tailrace.metadata.records.cluster import FeatureLevelRecord, ProducerIdsRecord
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ConfigRecord, PartitionRecord, TopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import SnapshotLoader, snapshot_values
from tailrace.model.partitions import METADATA_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VoterSet
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.records import voters_of_snapshot
from tailrace.storage import OsFiles
from tailrace.storage.snapshots.store import SnapshotStore
from tailrace.storage.snapshots.writer import Publication
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("kafka_tools")]

ID = SnapshotId(12_345, 7)
NAME = "00000000000000012345-0000000007.checkpoint"
NOW_MS = 1_700_000_000_000
TOPICS = 3_000
CLUSTER_ID = "AAECAwQFBgcICQoLDA0ODw"
VOTERS = VoterSet.of(
    Voter(ReplicaKey(number, bytes([number]) * 16), (VoterListener("CONTROLLER", "127.0.0.1", 9090 + number),))
    for number in (1, 2, 3)
)


def image() -> ClusterImage:
    """Something of every kind that an image holds, and enough of it for several batches."""
    endpoint = RecordedEndpoint(name="PLAINTEXT", host="127.0.0.1", port=9092, security_protocol=0)
    records: list[MetadataRecord] = [FeatureLevelRecord(name="metadata.version", feature_level=26)]
    records += [
        RegisterBrokerRecord(
            broker_id=number,
            incarnation_id=bytes([number]) * 16,
            broker_epoch=number,
            end_points=(endpoint,),
            features=(RecordedFeature(name="metadata.version", min_supported_version=25, max_supported_version=26),),
            rack="a" if number % 2 else None,
            fenced=number == 3,
            log_dirs=(bytes([9, number]) * 8,),
        )
        for number in (1, 2, 3)
    ]
    records.append(
        RegisterControllerRecord(
            controller_id=1,
            incarnation_id=bytes(range(16)),
            zk_migration_ready=False,
            end_points=(RecordedEndpoint(name="CONTROLLER", host="127.0.0.1", port=9093, security_protocol=0),),
            features=(),
        )
    )
    for number in range(TOPICS):
        topic_id = (number + 1).to_bytes(16, "big")
        records.append(TopicRecord(name=f"topic-{number}", topic_id=topic_id))
        records.append(
            PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=(1, 2, 3),
                isr=(1, 2),
                leader=1,
                leader_epoch=number % 5,
                partition_epoch=number,
                directories=(bytes([1]) * 16, bytes([2]) * 16, bytes([3]) * 16),
                eligible_leader_replicas=(3,) if number % 2 else None,
            )
        )
    records.append(ConfigRecord(resource_type=2, resource_name="topic-1", name="retention.ms", value="5"))
    records.append(ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=5000))
    return apply_all(EMPTY_IMAGE, records)[0]


def write(directory: Path) -> ClusterImage:
    partition = TopicPartition(METADATA_TOPIC, 0)
    log = QuorumLog.open(str(directory), partition, files=OsFiles(), config=TopicConfig(), now_ms=NOW_MS)
    writer = log.begin_snapshot(ID, last_contained_ms=NOW_MS, voters=VOTERS)
    written = image()
    values = snapshot_values(written)
    while part := list(islice(values, 500)):
        writer.append(part)
    writer.seal()
    publication = Publication(writer.part)
    publication.carry_out()
    log.finish_snapshot(publication)
    loader = SnapshotLoader()
    for content in log.open_snapshot(ID).batches():
        loader.load(content)
    assert loader.image() == written
    log.close()
    return written


def test_kafkas_own_dump_reads_our_snapshots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write(tmp_path)
    kafkas = dump_log_segments(tmp_path, [NAME], "--cluster-metadata-decoder")
    assert kafkas.err == ""
    assert "isvalid: false" not in kafkas.out
    assert "skipping" not in kafkas.out
    topics = set(re.findall(r'"type":"TOPIC_RECORD","version":0,"data":\{"name":"([^"]+)"', kafkas.out))
    assert topics == set(written.topics)
    assert kafkas.out.count("PARTITION_RECORD") == TOPICS
    assert kafkas.out.count("baseOffset: ") >= 4  # header, footer, and several of data
    voters = json.loads(re.findall(r"KRaftVoters (\{.*\})", kafkas.out)[0])
    assert [voter["voterId"] for voter in voters["voters"]] == [1, 2, 3]
    assert "SnapshotHeader" in kafkas.out
    assert "SnapshotFooter" in kafkas.out
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(("dump-log", "--cluster-metadata-decoder", NAME))
    assert capsys.readouterr().out.splitlines() == kafkas.out.splitlines()


KAFKAS_SETTINGS = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{address},CONTROLLER://{controller}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={controller}
log.dirs={data}
metadata.log.max.snapshot.interval.ms=1000
"""


def newest_snapshot_of_kafka(directory: Path) -> Path:
    """Run a node of Apache Kafka until topics have been made and a snapshot has the topics."""
    address, controller = free_addresses(2)
    properties = directory / "server.properties"
    properties.write_text(KAFKAS_SETTINGS.format(address=address, controller=controller, data=directory / "data"))
    options = ("--standalone", "--release-version", "4.1-IV0", "-t", CLUSTER_ID, "-c", str(properties))
    run("kafka-storage", "format", *options)
    java = ["java", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", f"{JARS}/*", "kafka.Kafka", str(properties)]
    node = Process(java, output=directory / "output")
    node.start()
    try:
        for name in ("orders", "flights"):
            create = ("--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=7777")
            run("kafka-topics", "--bootstrap-server", address, *create)
        log = directory / "data" / "__cluster_metadata-0"
        # A snapshot that was begun before the last topic was made may be ready after it.
        wait_until(
            lambda: b"flights" in max(log.glob("*.checkpoint")).read_bytes(), "Kafka writes a snapshot with both topics"
        )
        return max(log.glob("*.checkpoint"))
    finally:
        node.kill()


def test_a_snapshot_that_apache_kafka_has_written_is_checked_and_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = newest_snapshot_of_kafka(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(("snapshots", "verify", "--data-dir", str(tmp_path / "data"), "-o", "json"))
    assert ended.value.code == 0
    assert path.stem in [row["Snapshot"] for row in json.loads(capsys.readouterr().out)]
    store = SnapshotStore.open(str(path.parent), files=OsFiles())
    newest = store.newest
    assert newest is not None
    voters = voters_of_snapshot(newest.header.control)
    assert voters is not None
    assert [key.id for key in voters.keys] == [1]
    reader = store.open_reader(newest.id)
    loader = SnapshotLoader()
    for content in reader.batches():
        loader.load(content)
    reader.close()
    store.close()
    image = loader.image()
    assert {"orders", "flights"} <= set(image.topics)
    assert sorted(image.topics["orders"].partitions) == [0, 1, 2]
    assert image.topic_overrides("orders") == {"retention.ms": "7777"}
    assert list(image.brokers) == [1]
