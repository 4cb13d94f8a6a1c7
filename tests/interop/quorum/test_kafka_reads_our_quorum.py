"""Apache Kafka's own tools on a cluster of three: its answers to the tools, and its directories."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import kafka as kafka_python
import kafka.admin
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentTopic

from benchmarks.wire import Wire
from interop.kafka_tools import absent, dump_log_segments, run, shell_absent
from interop.librdkafka import DEADLINE_S
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.ids import TopicId, format_topic_id
from tailrace.protocol.messages.fetch import WireSnapshotId
from tailrace.protocol.messages.quorum import FetchSnapshotRequest, SnapshotPosition, SnapshotTopic
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CONFIG = {
    "metadata.log.max.record.bytes.between.snapshots": "5000",
    "metadata.snapshot.min.changed_records.ratio": "0",
    "offsets.topic.num.partitions": "1",
    # The leader stays and no broker is fenced, however busy the machine is.
    "controller.quorum.fetch.timeout.ms": "30000",
    "broker.session.timeout.ms": "30000",
}
TOPICS = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three nodes with topics, settings and snapshots."""
    if why := absent():
        pytest.skip(why)
    with Cluster(3, racks=["a", "b", "c"], config=CONFIG) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            for number in range(TOPICS):
                topic = NewTopic(
                    name=f"topic-{number}",
                    partitions=2,
                    replication_factor=3,
                    configs={"retention.ms": str(number + 1)},
                )
                admin.create_topics([topic])
        yield cluster


def test_kafka_describes_the_quorum_through_every_broker(cluster: Cluster) -> None:
    leader = cluster.controller_id
    with Admin(cluster.bootstrap_servers) as admin:
        directories = {
            int(voter.replica_id): format_topic_id(voter.directory_id) for voter in admin.describe_quorum().voters
        }
    for node in cluster.node_ids:
        where = ("--bootstrap-server", cluster.address(node), "describe")
        status = dict(
            line.split(":", 1) for line in run("kafka-metadata-quorum", *where, "--status").out.splitlines() if line
        )
        assert status["LeaderId"].strip() == str(leader)
        voters = json.loads(status["CurrentVoters"])
        assert {voter["id"]: voter["directoryId"] for voter in voters} == directories
        assert all(voter["endpoints"][0].startswith("CONTROLLER://127.0.0.1:") for voter in voters)
        table = run("kafka-metadata-quorum", *where, "--replication").out.splitlines()
        rows = [line.split() for line in table[1:] if line.strip()]
        assert {int(row[0]): row[-1] for row in rows} == {
            node_id: "Leader" if node_id == leader else "Follower" for node_id in cluster.node_ids
        }
        assert {int(row[0]): row[1] for row in rows} == directories


def test_real_clients_administer_through_any_broker(cluster: Cluster) -> None:
    expected = set()
    for node in cluster.node_ids:
        address = cluster.address(node)
        names = {client: f"by-{client}-{node}" for client in ("librdkafka", "kafka-python", "java")}
        confluent = AdminClient({"bootstrap.servers": address})
        (created,) = confluent.create_topics([ConfluentTopic(names["librdkafka"], 3, 3)]).values()
        created.result(DEADLINE_S)
        python = kafka_python.admin.KafkaAdminClient(bootstrap_servers=address)
        python.create_topics([kafka_python.admin.NewTopic(names["kafka-python"], 3, 3)])
        python.close()
        of_topic = ("--topic", names["java"], "--partitions", "3", "--replication-factor", "3")
        run("kafka-topics", "--bootstrap-server", address, "--create", *of_topic)
        expected |= set(names.values())
        wait_until_all_know(cluster, expected)
        entity = ("--entity-type", "topics", "--entity-name", names["java"])
        alter = ("--alter", *entity, "--add-config", f"retention.ms={7_000 + node}")
        run("kafka-configs", "--bootstrap-server", address, *alter)
        for other in cluster.node_ids:
            wait_until_described(cluster.address(other), entity, f"retention.ms={7_000 + node}")
    for name in expected:
        run("kafka-topics", "--bootstrap-server", cluster.address(2), "--delete", "--topic", name)


def wait_until_described(address: str, entity: tuple[str, ...], setting: str) -> None:
    describe = ("--bootstrap-server", address, "--describe", *entity)
    wait_until(lambda: setting in run("kafka-configs", *describe).out, f"{address} describes {setting}")


def wait_until_all_know(cluster: Cluster, topics: set[str]) -> None:
    """A tool of Java's asks any node, whatever address it is given."""
    for node in cluster.node_ids:
        wait_until(partial(_knows, cluster, node, topics), f"node {node} knows all topics")


def _knows(cluster: Cluster, node: int, topics: set[str]) -> bool:
    with Admin(cluster.address(node)) as admin:
        return topics <= {topic.name for topic in admin.list_topics()}


def metadata_directory(cluster: Cluster, node: int) -> Path:
    return cluster.data_dir(node) / "__cluster_metadata-0"


def newest_snapshot(cluster: Cluster, node: int) -> Path:
    def there() -> list[Path]:
        found = sorted(metadata_directory(cluster, node).glob("*.checkpoint"))
        return [path for path in found if not path.name.startswith("0" * 20)]

    wait_until(lambda: bool(there()), f"node {node} writes a snapshot")
    return there()[-1]


def test_kafkas_dump_reads_the_logs_and_the_snapshots_of_all_nodes(cluster: Cluster) -> None:
    for node in cluster.node_ids:
        newest_snapshot(cluster, node)
        directory = metadata_directory(cluster, node)
        files = sorted(path.name for path in directory.iterdir() if path.suffix in (".log", ".checkpoint"))
        assert len(files) >= 3
        dump = dump_log_segments(directory, files, "--cluster-metadata-decoder")
        assert dump.err == ""
        assert "isvalid: false" not in dump.out
        assert "skipping" not in dump.out
        for kind in ("TOPIC_RECORD", "PARTITION_RECORD", "REGISTER_BROKER_RECORD", "FEATURE_LEVEL_RECORD"):
            assert kind in dump.out
        for kind in ("LeaderChange", "KRaftVersion", "KRaftVoters", "SnapshotHeader", "SnapshotFooter"):
            assert kind in dump.out


def test_the_bytes_that_a_leader_serves_are_a_snapshot_for_kafka(cluster: Cluster, tmp_path: Path) -> None:
    leader = cluster.controller_id
    snapshot = newest_snapshot(cluster, leader)
    end_offset, epoch = map(int, snapshot.stem.split("-"))
    with Admin(cluster.bootstrap_servers) as admin:
        described = admin.describe_quorum()
        (endpoint,) = described.endpoints[described.leader_id]
    served = fetched_snapshot(f"{endpoint.host}:{endpoint.port}", end_offset, epoch, described.leader_epoch)
    (tmp_path / snapshot.name).write_bytes(served)
    dump = dump_log_segments(tmp_path, [snapshot.name], "--cluster-metadata-decoder")
    assert dump.err == ""
    topics = set(re.findall(r'"type":"TOPIC_RECORD","version":0,"data":\{"name":"([^"]+)"', dump.out))
    assert {"topic-0", "topic-1"} <= topics
    assert "SnapshotFooter" in dump.out


def fetched_snapshot(address: str, end_offset: int, epoch: int, leader_epoch: int) -> bytes:
    """The whole snapshot, in parts of 1,000 bytes, as a follower would fetch it."""
    data, size = b"", None
    with Wire(address) as wire:
        while size is None or len(data) < size:
            position = SnapshotPosition(
                partition=0,
                current_leader_epoch=leader_epoch,
                snapshot_id=WireSnapshotId(end_offset=end_offset, epoch=epoch),
                position=len(data),
            )
            topic = SnapshotTopic(name="__cluster_metadata", partitions=(position,))
            (answered,) = wire.ask(FetchSnapshotRequest(max_bytes=1_000, topics=(topic,)), 1).topics
            (part,) = answered.partitions
            assert part.error_code == 0
            assert part.position == len(data)
            assert len(part.unaligned_records) > 0
            data, size = data + bytes(part.unaligned_records), part.size
    return data


def test_kafkas_shell_reads_snapshots_and_the_end_of_the_log(cluster: Cluster) -> None:
    if why := shell_absent():
        pytest.skip(why)
    for node in cluster.node_ids:
        for path in (newest_snapshot(cluster, node), metadata_directory(cluster, node) / f"{0:020}.log"):

            def shell(*words: str, until: str, path: Path = path) -> str:
                # The shell loads the file in a thread of its own and may answer before that is done.
                for _ in range(20):
                    out = run("kafka-metadata-shell", "--snapshot", str(path), *words).out
                    if until in out:
                        return out
                raise AssertionError(f"no {until!r} in what the shell says of {path}: {out!r}")

            names = set(shell("ls", "image/topics/byName", until="topic-1").split())
            assert {"topic-0", "topic-1"} <= names
            shell("cat", "image/topics/byName/topic-1/0", until="replicas")
            brokers = shell("ls", "image/cluster/brokers", until="1").split()
            assert set(brokers) <= {"1", "2", "3"}


def test_kafkas_tool_adds_a_controller_and_removes_it() -> None:
    """The tool reads its settings from the file and the directory that our node was started with."""
    if why := absent():
        pytest.skip(why)
    with Cluster(3, config=CONFIG) as cluster:
        newcomer = cluster.add_node(controller=True)
        cluster.start(newcomer)

        def voters() -> dict[int, str]:
            with Admin(cluster.bootstrap_servers) as admin:
                described = admin.describe_quorum().voters
            return {int(voter.replica_id): format_topic_id(TopicId(voter.directory_id)) for voter in described}

        where = ("--bootstrap-server", cluster.address(newcomer))
        config = ("--command-config", str(cluster.config_file(newcomer)))
        run("kafka-metadata-quorum", *where, *config, "add-controller")
        assert sorted(voters()) == [1, 2, 3, newcomer]
        key = ("--controller-id", str(newcomer), "--controller-directory-id", voters()[newcomer])
        run("kafka-metadata-quorum", *where, "remove-controller", *key)
        assert sorted(voters()) == [1, 2, 3]
