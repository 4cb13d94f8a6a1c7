"""A real Apache Kafka broker joins a cluster of ours: it fetches our snapshot, registers, serves, and replicates.

The broker reads what our controllers write by its own code: the snapshot and the log behind it, the answers to its
registration, its heartbeats and its changes of the ISR, and topics that it forwards to be made (Envelope). That holds
until a broker is fenced: the changes derived from that are not in the log, and Kafka derives none (decision 0042).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from benchmarks.peers.peer import free_addresses
from benchmarks.peers.process import Process
from interop.kafka_tools import JARS, absent, run
from tailrace.client.blocking import Admin, NewTopic
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KAFKA = 9
TOPICS = 30
OFTEN = {
    "metadata.log.max.record.bytes.between.snapshots": "5000",
    "metadata.snapshot.min.changed_records.ratio": "0",
    "metadata.log.segment.bytes": "10000",
    "metadata.start.offset.lag.time.max.ms": "200",
    "broker.session.timeout.ms": "30000",  # no broker is to be fenced, however busy the machine is
}
SETTINGS = """process.roles=broker
node.id={id}
listeners=PLAINTEXT://{address}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={controllers}
log.dirs={data}
broker.rack=z
broker.heartbeat.interval.ms=500
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes whose log starts at a snapshot."""
    if why := absent():
        pytest.skip(why)
    with Cluster(3, racks=["a", "b", "c"], config=OFTEN) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            for number in range(TOPICS):
                settings = {"retention.ms": str(number + 1)}
                topic = NewTopic(name=f"topic-{number}", partitions=2, replication_factor=3, configs=settings)
                admin.create_topics([topic])
        leader = cluster.data_dir(cluster.controller_id) / "__cluster_metadata-0"
        wait_until(lambda: min(int(log.stem) for log in leader.glob("*.log")) > 0, "the log is cut short")
        yield cluster


@pytest.fixture
def kafka(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The address of a broker of Apache Kafka that the cluster counts among its own."""
    with Admin(cluster.bootstrap_servers) as admin:
        cluster_id = admin.describe_cluster().cluster_id
        endpoints = [each for voter in admin.describe_quorum().endpoints.values() for each in voter]
    (address,) = free_addresses(1)
    controllers = ",".join(f"{each.host}:{each.port}" for each in endpoints)
    properties = tmp_path / "server.properties"
    properties.write_text(SETTINGS.format(id=KAFKA, address=address, controllers=controllers, data=tmp_path / "data"))
    run("kafka-storage", "format", "-t", str(cluster_id), "-c", str(properties))
    java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx320m", "-cp", f"{JARS}/*", "kafka.Kafka"]
    process = Process([*java, str(properties)], output=tmp_path / "output")
    process.start()
    try:
        wait_until(lambda: is_counted_on(cluster, process), "the cluster counts on the broker")
        snapshots = list((tmp_path / "data" / "__cluster_metadata-0").glob("*.checkpoint"))
        assert snapshots != [], "Kafka's broker has fetched a snapshot of ours"
        yield address
    finally:
        process.kill()


def is_counted_on(cluster: Cluster, process: Process) -> bool:
    assert process.is_running, process.output()
    with Admin(cluster.bootstrap_servers) as admin:
        return any(
            (broker.node_id, broker.is_fenced, broker.rack) == (KAFKA, False, "z") for broker in admin.list_brokers()
        )


def test_it_tells_what_we_tell_and_takes_part(cluster: Cluster, kafka: str) -> None:
    def told_alike(described: Callable[[str], str]) -> str:
        """The answers of Kafka's broker and of each of our brokers, which are the same."""
        told = [described(address) for address in (kafka, *map(cluster.address, cluster.broker_ids))]
        assert len(set(told)) == 1, told
        return told[0]

    def topics(address: str) -> str:
        lines = run("kafka-topics", "--bootstrap-server", address, "--describe").out.splitlines()
        return "\n".join(sorted(lines))

    assert told_alike(topics).count("PartitionCount: 2") == TOPICS

    replicas = ("--replica-assignment", f"{KAFKA}:1,1:{KAFKA}")
    run("kafka-topics", "--bootstrap-server", kafka, "--create", "--topic", "mixed", *replicas)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    for number in range(40):
        producer.produce("mixed", str(number).encode(), partition=number % 2)
    assert producer.flush(60) == 0
    del producer
    described = run("kafka-topics", "--bootstrap-server", cluster.address(2), "--describe", "--topic", "mixed").out
    assert f"Leader: {KAFKA}\tReplicas: {KAFKA},1\tIsr: {KAFKA},1\t" in described
    assert f"Leader: 1\tReplicas: 1,{KAFKA}\tIsr: 1,{KAFKA}\t" in described
    for address in (kafka, cluster.address(1)):
        ends = run("kafka-get-offsets", "--bootstrap-server", address, "--topic", "mixed").out
        assert sorted(ends.split()) == ["mixed:0:20", "mixed:1:20"]


def test_our_follower_begins_where_the_log_of_a_kafka_leader_begins(
    cluster: Cluster, kafka: str, tmp_path: Path
) -> None:
    """Kafka's answer to a fetch below its log start does not name it: the follower asks ListOffsets."""
    cut, moves = tmp_path / "cut.json", tmp_path / "moves.json"
    place = {"topic": "cut", "partition": 0}
    cut.write_text(json.dumps({"version": 1, "partitions": [{**place, "offset": 20}]}))
    moves.write_text(json.dumps({"version": 1, "partitions": [{**place, "replicas": [KAFKA, 1]}]}))
    run("kafka-topics", "--bootstrap-server", kafka, "--create", "--topic", "cut", "--replica-assignment", str(KAFKA))
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    for number in range(30):
        producer.produce("cut", str(number).encode())
        assert producer.flush(60) == 0, "a batch for each record: a leader gives whole batches"
    del producer
    told = run("kafka-delete-records", "--bootstrap-server", kafka, "--offset-json-file", str(cut)).out
    assert "low_watermark: 20" in told
    reassign = ("--bootstrap-server", cluster.address(2), "--reassignment-json-file", str(moves), "--execute")
    run("kafka-reassign-partitions", *reassign)

    def are_in_sync() -> bool:
        with Admin(cluster.bootstrap_servers) as admin:
            (topic,) = admin.describe_topics(["cut"])
        return set(topic.partitions[0].in_sync_replicas) == {KAFKA, 1}

    wait_until(are_in_sync, "our replica has fetched all that the leader still has")
    assert "partition=cut-0 end_offset=0 at=20 " in cluster.log_text(1)
    assert [file.stem for file in (cluster.data_dir(1) / "cut-0").glob("*.log")] == [f"{20:020}"]
