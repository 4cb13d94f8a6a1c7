"""Apache Kafka as a peer: processes that are broker and controller (KRaft), from Maven's jars.

Kafka runs as under its own start script: the heap of kafka-server-start.sh and the flags of kafka-run-class.sh, garbage
collection log and JMX agent included. Its settings are its defaults, except for addresses, the directory and one
replica for its internal topics. Maven does not fetch a logging backend, so Kafka writes no log, which can only help
Kafka.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.downloads.kafka_jars import JARS, absent
from benchmarks.peers.peer import Absent, Peer, directory, free_addresses
from benchmarks.peers.process import Process

KAFKA = "Apache Kafka"
HEAP = ("-Xmx1G", "-Xms1G")
FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
JMX = (
    "-Dcom.sun.management.jmxremote",
    "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false",
)
# Another process holds the pipe's end, so that Kafka goes when this one does, even by kill -9. `exec` keeps the id.
_UNTIL_STDIN_CLOSES = 'exec 3<&0; (cat <&3 >/dev/null; kill -9 $$) & exec "$@" 3<&-'
ONE_REPLICA = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""The settings for the internal topics of a single node."""
_CLUSTER_ID = "dGFpbHJhY2UtYmVuY2hfXw"
_FORMAT_TIMEOUT_S = 60


@contextmanager
def apache_kafka(settings: Mapping[str, str] | None = None) -> Iterator[Peer]:
    """A node with a formatted directory and these settings. Not started yet. Raises Absent."""
    if why := absent():
        raise Absent(why)
    with directory() as home:
        address, controller = free_addresses(2)
        process = kafka_process(home, 1, address, {1: controller}, settings=settings)
        yield Peer(name=KAFKA, process=process, address=address)


def kafka_process(
    home: Path,
    node_id: int,
    address: str,
    controllers: Mapping[int, str],
    *,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
) -> Process:
    """A node with a formatted directory, not started yet; `controllers` has all nodes' listeners for controllers."""
    all_settings = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{voter}@{place}" for voter, place in controllers.items()),
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controllers[node_id]}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(home / "data"),
        **({} if len(controllers) > 1 else ONE_REPLICA),
        **(settings or {}),
    }
    home.mkdir(exist_ok=True)
    properties = home / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in all_settings.items()))
    _format(properties)
    garbage = f"-Xlog:gc*:file={home}/kafkaServer-gc.log:time,tags:filecount=10,filesize=100M"
    java = ["java", *HEAP, *FLAGS, garbage, *JMX, *java_options]
    java += ["-cp", f"{JARS}/*", "kafka.Kafka", str(properties)]
    return Process(["sh", "-c", _UNTIL_STDIN_CLOSES, "sh", *java], output=home / "output")


def _format(properties: Path) -> None:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", "kafka.tools.StorageTool", "format"]
    command += ["-t", _CLUSTER_ID, "-c", str(properties)]
    subprocess.run(command, capture_output=True, timeout=_FORMAT_TIMEOUT_S, check=True)


def flushed_by_message(kafka: Peer) -> Peer:
    """The same server with topics that are flushed before each answer, as Tailrace's topics are."""
    return replace(kafka, topic_configs={"flush.messages": "1"})
