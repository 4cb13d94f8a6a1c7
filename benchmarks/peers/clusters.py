"""Clusters of three nodes in three racks that are compared, each node in a process of its own, on 127.0.0.1."""

import re
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.downloads.kafka_jars import JARS, absent
from benchmarks.peers.kafka import KAFKA, kafka_process
from benchmarks.peers.peer import (
    CREATE_TIMEOUT_MS,
    READY_TIMEOUT_S,
    TAILRACE,
    Absent,
    NotReady,
    directory,
    free_addresses,
)
from benchmarks.peers.process import Process, cpu_clock
from benchmarks.wire import Wire
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.testing import Cluster

RACKS = ("a", "b", "c")
NODES = (1, 2, 3)
"""The brokers, which are controllers too; node n is in the n-th rack."""
RACK_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
METADATA_VERSION = 12
PER_TOPIC = 1_000
_PAUSE_S = 0.01
_JMX_TIMEOUT_S = 60
_FOLLOWERS_VERSION = 13
"""Followers fetch by topic ids; the clients of measurements that count followers' fetches use older versions."""


class PeerCluster(ABC):
    """Three brokers in three racks, running."""

    name: str

    @abstractmethod
    def address(self, node: int) -> str: ...

    @abstractmethod
    def process_id(self, node: int) -> int: ...

    @abstractmethod
    def kill(self, node: int) -> None:
        """SIGKILL, and wait for the end."""

    @abstractmethod
    def start(self, node: int) -> None:
        """Start a killed node again; it need not answer yet."""

    @abstractmethod
    def follower_fetches(self, node: int) -> int:
        """The fetches of followers that this node has taken so far."""

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(map(self.address, NODES))

    def cpu_seconds(self) -> float:
        """The CPU seconds of the nodes together so far."""
        return sum(cpu_clock(self.process_id(node)) for node in NODES)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """A topic with a replica on each node. Returns when all replicas are in sync and the leaders take requests."""
        topic = NewTopic(name=name, partitions=partitions, replication_factor=len(NODES), configs=configs)
        with Admin(self.bootstrap_servers) as admin:
            admin.create_topics([topic], timeout_ms=CREATE_TIMEOUT_MS)
        self.wait_until_in_sync(name, partitions)

    def create_many(self, prefix: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """So many partitions, in topics of at most 1,000, one after the other."""
        for start in range(0, partitions, PER_TOPIC):
            self.create_topic(f"{prefix}-{start}", min(PER_TOPIC, partitions - start), configs)

    def wait_until_in_sync(self, topic: str, partitions: int) -> None:
        """Return when each node says that all replicas of all partitions are in sync."""

        def are_in_sync() -> bool:
            for node in NODES:
                found = self.partitions_of(topic, node)
                if len(found) < partitions or any(len(each.isr_nodes) < len(NODES) for each in found):
                    return False
            return True

        _wait(are_in_sync, f"the replicas of {topic} at {self.name} are not in sync")

    def partitions_of(self, topic: str, node: int) -> Sequence[Any]:
        """The topic's partitions in the metadata of this node."""
        with Wire(self.address(node)) as wire:
            wanted = (MetadataRequestTopic(name=topic),)
            request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
            return tuple(wire.ask(request, METADATA_VERSION).topics[0].partitions)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        (found,) = (each for each in self.partitions_of(topic, NODES[0]) if each.partition_index == partition)
        return int(found.leader_id)


class _TailraceCluster(PeerCluster):
    name = TAILRACE

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def address(self, node: int) -> str:
        return self._cluster.address(node)

    def process_id(self, node: int) -> int:
        return self._cluster.process_id(node)

    def kill(self, node: int) -> None:
        self._cluster.kill(node)

    def start(self, node: int) -> None:
        self._cluster.start(node, wait=False)

    def follower_fetches(self, node: int) -> int:
        address = re.findall(r"event=metrics-served address=(\S+)", self._cluster.log_text(node))[-1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=READY_TIMEOUT_S) as answer:
            page = answer.read().decode()
        found = re.findall(r'requests(?:_total)?\{request="Fetch",version="(\d+)"\} ([0-9.e+]+)', page)
        return sum(int(float(count)) for version, count in found if int(version) >= _FOLLOWERS_VERSION)


@contextmanager
def tailrace_cluster(durability: str, settings: Mapping[str, str] | None = None) -> Iterator[PeerCluster]:
    """A cluster of Tailrace, with `log.durability` and these settings for each node."""
    config = {"dev.mode": "false", "metrics.listener": "127.0.0.1:0", "log.durability": durability, **(settings or {})}
    with Cluster(brokers=len(NODES), racks=RACKS, config=config) as cluster:
        yield _TailraceCluster(cluster)


class _KafkaCluster(PeerCluster):
    name = KAFKA

    def __init__(self, addresses: Mapping[int, str], processes: Mapping[int, Process], jmx: Mapping[int, str]) -> None:
        self._addresses = addresses
        self._processes = processes
        self._jmx = jmx

    def address(self, node: int) -> str:
        return self._addresses[node]

    def process_id(self, node: int) -> int:
        return self._processes[node].pid

    def kill(self, node: int) -> None:
        self._processes[node].kill()

    def start(self, node: int) -> None:
        self._processes[node].start()

    def follower_fetches(self, node: int) -> int:
        url = f"service:jmx:rmi:///jndi/rmi://{self._jmx[node]}/jmxrmi"
        name = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=FetchFollower,*"
        tool = ["java", "-cp", f"{JARS}/*", "org.apache.kafka.tools.JmxTool", "--jmx-url", url]
        tool += ["--object-name", name, "--attributes", "Count", "--one-time", "--report-format", "properties"]
        # The tool ends with 1 although the tool has printed the value.
        done = subprocess.run(tool, capture_output=True, text=True, timeout=_JMX_TIMEOUT_S, check=False)
        if "No matched attributes" in done.stderr + done.stdout:  # no follower has fetched yet
            return 0
        if not (counts := re.findall(r"FetchFollower.*:Count=(\d+)", done.stdout)):
            raise NotReady(f"JmxTool has not read {name}\n{done.stdout[-1000:]}\n{done.stderr[-1000:]}")
        return sum(map(int, counts))

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()

    def wait_until_ready(self) -> None:
        for node, address in self._addresses.items():
            _wait(lambda address=address: _answers(address), f"node {node} of {KAFKA} does not answer")  # type: ignore[misc]


@contextmanager
def kafka_cluster(settings: Mapping[str, str] | None = None) -> Iterator[PeerCluster]:
    """Apache Kafka, with its defaults and these settings for each node. Raises Absent."""
    if why := absent():
        raise Absent(why)
    with directory() as home:
        places = free_addresses(3 * len(NODES))
        addresses, controllers, jmx = (
            dict(zip(NODES, places[first :: len(NODES)], strict=True)) for first in range(len(NODES))
        )
        processes = {
            node: kafka_process(
                Path(home, f"node-{node}"),
                node,
                addresses[node],
                controllers,
                settings={"broker.rack": RACKS[node - 1], **(settings or {})},
                java_options=_jmx_options(jmx[node]),
            )
            for node in NODES
        }
        cluster = _KafkaCluster(addresses, processes, jmx)
        try:
            for node in NODES:
                cluster.start(node)
            cluster.wait_until_ready()
            yield cluster
        finally:
            cluster.kill_all()


def _jmx_options(address: str) -> list[str]:
    host, _, port = address.partition(":")
    return [
        f"-Dcom.sun.management.jmxremote.host={host}",
        f"-Dcom.sun.management.jmxremote.port={port}",
        f"-Dcom.sun.management.jmxremote.rmi.port={port}",
        f"-Djava.rmi.server.hostname={host}",
    ]


def _answers(address: str) -> bool:
    with Wire(address) as wire:
        wire.ask(ApiVersionsRequest(), 0)
    return True


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait until the node answers. A node that refuses connections is still starting."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not _without_refusal(is_so):
        if time.monotonic() > deadline:
            raise NotReady(otherwise)
        time.sleep(_PAUSE_S)


def _without_refusal(is_so: Callable[[], bool]) -> bool:
    try:
        return is_so()
    except OSError:
        return False
