"""A run of replicated topics under load, with or without faults, and its verdict.

Three brokers in three racks, three replicas, two of which must be in sync. Two idempotent producers and another with
transactions write; three consumers per rack read (`crash.replicas.load`). In the end all faults are over, the readers
read to the ends, and the files of all replicas are compared.
"""

import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from crash.disks.orders import obeying
from crash.networks.proxy_network import ProxyNetwork
from crash.networks.rack_network import NamespaceNetwork, NoNetwork, RackNetwork
from crash.networks.racked_cluster import RackedCluster, nodes_in
from crash.power import Power
from crash.program import DEADLINE_S, text_of
from crash.replicas import load
from crash.replicas.copies import final_log, replica_log
from crash.replicas.faults import Scene, in_turn, possible_faults
from crash.replicas.replicated_load import wait_until_whole
from crash.worker import Worker
from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.verdicts.replica_history import FinalLog, Place, ReplicaHistory, ReplicaLog
from testkit.verdicts.replica_verdict import Evidence

RACKS = ("a", "b", "c")
SELECTOR = "replica.selector.class"
CONFIG = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "log.cleaner.backoff.ms": "500",
    SELECTOR: "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
WRITERS = ("a", "b")
TRANSACTIONS = "t"
_SMALL_SEGMENTS = {"segment.bytes": "1048576", "file.delete.delay.ms": "1000"}
_TOPIC_CONFIGS = {
    load.PLAIN: _SMALL_SEGMENTS,
    load.COMPACTED: {"segment.bytes": "131072", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.05"},
    load.TRANSACTIONAL: _SMALL_SEGMENTS,
    load.TRIMMED: {"segment.bytes": "131072", "file.delete.delay.ms": "1000"},
}
_PLACES: Sequence[Place] = [(topic, number) for topic, count in load.PARTITIONS.items() for number in range(count)]
_KEPT_RECORDS = 500
"""About so many newest records of the trimmed topic stay."""
NO_FAULTS = -1
_LATEST = -1
_NETWORKS: Mapping[str, Callable[[int], RackNetwork]] = {"namespaces": NamespaceNetwork, "proxies": ProxyNetwork}


@dataclass(slots=True)
class Report:
    """The figures of a run."""

    faults: Counter[str] = field(default_factory=Counter)
    network: str = ""
    """The way in which the network can be cut, or the reason why it cannot."""
    fetches: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The fetch requests of librdkafka's readers: at the broker of their rack, and at other brokers."""
    troubles: int = 0
    began_again: int = 0
    """Nodes that had ended by themselves."""
    longest_s: dict[str, float] = field(default_factory=dict)
    """The longest time from the begin of a fault until all clients had got on again, by kind."""
    seconds: float = 0

    def lines(self, evidence: Evidence) -> list[str]:
        history = evidence.history
        outcomes = Counter(history.outcomes.values())
        ended = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ("committed", "aborted", "unknown"))
        work = f"{history.acknowledged} records acknowledged, {history.polled} read"
        transactions = f"{len(history.transactions)} transactions ({ended})"
        lines = [f"{self.seconds:.0f} s, {self.faults.total()} faults, {work}, {transactions}"]
        for kind, count in sorted(self.faults.items()):
            lines.append(f"  {count} x {kind}; all clients got on within {self.longest_s[kind]:.1f} s of its begin")
        if self.network:
            lines.append(f"  network: {self.network}")
        if self.began_again:
            lines.append(f"  {self.began_again} nodes ended by themselves and were started again")
        if self.troubles:
            lines.append(f"  {self.troubles} faults that Tailrace's consumers raised from poll")
        own, others = (sum(counts[number] for counts in self.fetches.values()) for number in range(2))
        return [*lines, f"  librdkafka's fetches: {own} at the broker of the reader's rack, {others} at others"]


class RackLoad:
    """The programs of the load."""

    def __init__(self, cluster: Cluster, network: RackNetwork | None, directory: Path, *, with_readers: bool) -> None:
        servers = cluster.bootstrap_servers
        self._stack = ExitStack()
        self.writers: list[Worker] = []
        self.readers: list[Worker] = []
        directory.mkdir()

        def begin(role: str, name: str, place: Callable[[list[str]], list[str]] = list) -> Worker:
            worker = Worker(f"{role}-{name}", directory, "crash.replicas.load", role, name, servers, place=place)
            self._stack.callback(worker.kill)
            return worker

        try:
            if with_readers:
                for number, rack in enumerate(RACKS, 1):
                    self.readers.append(begin("reader", rack, _in_rack(network, number)))
            self.writers += [begin("writer", name) for name in WRITERS]
            self.writers.append(begin("transactions", TRANSACTIONS))
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self._stack.close()

    @property
    def acknowledged(self) -> int:
        return sum(worker.done for worker in self.writers)

    def wait_for_progress(self) -> None:
        """Wait until every program has got on."""
        before = {worker.name: worker.done for worker in (*self.writers, *self.readers)}
        deadline = time.monotonic() + DEADLINE_S
        while late := [client.name for client in (*self.writers, *self.readers) if client.done == before[client.name]]:
            for worker in (*self.writers, *self.readers):
                worker.check()
            assert time.monotonic() < deadline, f"no progress by {late}"
            time.sleep(0.02)

    def end(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.ask_to_end()
        for worker in workers:
            worker.wait()


def _in_rack(network: RackNetwork | None, number: int) -> Callable[[list[str]], list[str]]:
    return list if network is None else lambda command: network.command(number, command)


@contextmanager
def racked_cluster(directory: Path) -> Iterator[tuple[Cluster, RackNetwork | None, str]]:
    """The cluster, its network, and the network's description. The nodes' disks obey `directory/orders`."""
    with ExitStack() as stack:
        network, manner = best_network(len(RACKS), os.environ.get("REPLICA_NETWORK", "").split())
        if network is not None:
            stack.callback(network.close)
        stack.enter_context(obeying(directory / "orders", directory / "cluster"))
        stack.enter_context(nodes_in(network))
        cluster = RackedCluster(network, RACKS, config=CONFIG, directory=directory / "cluster")
        yield stack.enter_context(cluster), network, manner


def best_network(racks: int, kinds: Sequence[str] = ()) -> tuple[RackNetwork | None, str]:
    """The first network that can be had, of these kinds or of all, and its description; without one the reasons."""
    reasons = []
    for kind, network in _NETWORKS.items():
        if not kinds or kind in kinds:
            try:
                return network(racks), f"{kind}, could be cut"
            except NoNetwork as fault:
                reasons.append(f"{kind}: {fault}")
    return None, f"could not be cut ({'; '.join(reasons) or 'not asked for'})"


def make_topics(cluster: Cluster) -> None:
    """The topics of the load, and the group's first offsets, so that no reader has to choose where it begins."""
    servers = cluster.bootstrap_servers
    wait_for_brokers(servers)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topics = [NewTopic(name, count, 3, config=_TOPIC_CONFIGS[name]) for name, count in load.PARTITIONS.items()]
    for made in admin.create_topics(topics).values():
        made.result(DEADLINE_S)
    settings = {"bootstrap.servers": servers, "group.id": load.GROUP, "enable.auto.commit": False, "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    places = [confluent_kafka.TopicPartition(*place, 0) for place in load.READ]
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            consumer.commit(offsets=places, asynchronous=False)
            break
        except confluent_kafka.KafkaException:
            assert time.monotonic() < deadline, "the first offsets cannot be committed"
    consumer.close()


def wait_for_brokers(servers: str) -> None:
    """Until all brokers are known: three replicas take three."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with Admin(servers) as admin:
                if len(admin.describe_cluster().brokers) == len(RACKS):
                    return
        except KafkaError:
            pass
        assert time.monotonic() < deadline, "not all brokers are there"
        time.sleep(0.05)


def run(directory: Path, chance: random.Random, seconds: float, least_faults: int) -> tuple[Evidence, Report]:
    """A run with a fault every few seconds, or with NO_FAULTS."""
    with racked_cluster(directory) as (cluster, network, manner):
        report = Report(network=manner)
        make_topics(cluster)
        began_s = time.monotonic()
        programs = RackLoad(cluster, network, directory / "load", with_readers=True)
        try:
            programs.wait_for_progress()
            if least_faults == NO_FAULTS:
                _watch(programs, began_s + seconds)
            else:
                scene = Scene(cluster, network, directory / "orders", chance)
                _inject(scene, programs, report, began_s + seconds, least_faults)
            report.seconds = time.monotonic() - began_s
            return finish(cluster, programs, report), report
        finally:
            programs.kill()


def _watch(programs: RackLoad, end_s: float) -> None:
    while time.monotonic() < end_s:
        programs.wait_for_progress()


def _inject(scene: Scene, programs: RackLoad, report: Report, end_s: float, least_faults: int) -> None:
    kinds = possible_faults(scene.network, os.environ.get("REPLICA_FAULT_KINDS", "").split(","))
    story = logging.getLogger("crash.faults")
    for kind in in_turn(kinds, scene.chance):
        if time.monotonic() > end_s and report.faults.total() >= least_faults:
            return
        began_s = time.monotonic()
        story.warning("%s begins", kind)
        story.warning("%s ends: %s", kind, kinds[kind](scene))
        report.faults[kind] += 1
        ended = [node for node in scene.cluster.node_ids if not scene.cluster.is_running(node)]
        report.began_again += len(ended)
        scene.cluster.start(*ended) if ended else None
        programs.wait_for_progress()
        report.longest_s[kind] = max(report.longest_s.get(kind, 0), time.monotonic() - began_s)
        trim(scene.cluster)
        scene.wait(0.5, 2)


def run_power_cuts(directory: Path, chance: random.Random, power: Power, cuts: int) -> tuple[Evidence, Report]:
    """A run in which the power of all nodes goes so often: of each only what it has synced is left."""
    with RackedCluster(None, RACKS, config=CONFIG, directory=directory / "cluster") as cluster:
        report, kind = Report(), "power cut of all nodes"
        make_topics(cluster)
        began_s = time.monotonic()
        programs = RackLoad(cluster, None, directory / "load", with_readers=True)
        try:
            programs.wait_for_progress()
            for _ in range(cuts):
                time.sleep(chance.uniform(0, 1))
                cut_s = time.monotonic()
                power.cut(cluster)
                cluster.start()
                programs.wait_for_progress()
                report.faults[kind] += 1
                report.longest_s[kind] = max(report.longest_s.get(kind, 0), time.monotonic() - cut_s)
                trim(cluster)
            report.seconds = time.monotonic() - began_s
            return finish(cluster, programs, report), report
        finally:
            programs.kill()


def run_to_a_power_cut(directory: Path, power: Power) -> Evidence:
    """Writers alone, which end before the power goes once: all they have sent is acknowledged."""
    with RackedCluster(None, RACKS, config=CONFIG, directory=directory / "cluster") as cluster:
        make_topics(cluster)
        programs = RackLoad(cluster, None, directory / "load", with_readers=False)
        try:
            programs.wait_for_progress()
            programs.end(programs.writers)
        finally:
            programs.kill()
        history = ReplicaHistory()
        for worker in programs.writers:
            history.add(worker.events())
        power.cut(cluster)
        cluster.start()
        wait_for_brokers(cluster.bootstrap_servers)
        high_watermarks = _high_watermarks(cluster)
        for topic in {topic for topic, _ in high_watermarks}:
            wait_until_whole(cluster.bootstrap_servers, topic)
        high_watermarks = _high_watermarks(cluster)
        cluster.stop()
        return gather(cluster, history, high_watermarks)


def trim(cluster: Cluster) -> None:
    """Delete the oldest records of the trimmed topic, if the cluster can do it just now."""
    place = TopicPartition(load.TRIMMED, 0)
    try:
        with Admin(cluster.bootstrap_servers) as admin:
            end = admin.list_offsets({place: _LATEST})[place].offset
            if end > _KEPT_RECORDS:
                admin.delete_records({place: end - _KEPT_RECORDS})
    except KafkaError:
        pass


def finish(cluster: Cluster, programs: RackLoad, report: Report) -> Evidence:
    """Wait for the ends of all programs, stop the nodes, and gather the evidence."""
    programs.end(programs.writers)
    for topic in load.PARTITIONS:
        wait_until_whole(cluster.bootstrap_servers, topic)
    programs.end(programs.readers)
    history = ReplicaHistory()
    for worker in (*programs.writers, *programs.readers):
        history.add(_without_figures(worker.events(), report, worker))
    high_watermarks = _high_watermarks(cluster)
    cluster.stop()
    return gather(cluster, history, high_watermarks)


def _without_figures(events: Iterator[dict[str, Any]], report: Report, worker: Worker) -> Iterator[dict[str, Any]]:
    for event in events:
        if event["op"] == "fetches":
            own = str(RACKS.index(worker.name.rpartition("-")[2]) + 1)
            counts = event["by_node"]
            at_own = counts.get(own, 0)
            report.fetches[event["reader"]] = at_own, sum(counts.values()) - at_own
        elif event["op"] == "trouble":
            report.troubles += 1
        else:
            yield event


def _high_watermarks(cluster: Cluster) -> dict[Place, int]:
    """The high watermarks of the existing partitions."""
    with Admin(cluster.bootstrap_servers) as admin:
        there = {topic.name: len(topic.partitions) for topic in admin.list_topics()}
        places = {TopicPartition(*place): _LATEST for place in _PLACES if place[1] < there.get(place[0], 0)}
        return {(place.topic, place.partition): end.offset for place, end in admin.list_offsets(places).items()}


def gather(cluster: Cluster, history: ReplicaHistory, high_watermarks: dict[Place, int]) -> Evidence:
    """The evidence, with the logs of nodes that have stopped."""
    replicas: dict[Place, dict[int, ReplicaLog]] = {}
    logs: dict[Place, FinalLog] = {}
    for place, high_watermark in high_watermarks.items():
        is_compacted = place[0] == load.COMPACTED
        replicas[place] = {
            node: replica_log(cluster.data_dir(node), place, is_compacted=is_compacted, text_of=text_of)
            for node in cluster.broker_ids
        }
        first = cluster.data_dir(cluster.broker_ids[0])
        logs[place] = final_log(first, place, high_watermark, text_of=text_of)
    return Evidence(
        history=history,
        logs=logs,
        replicas=replicas,
        compacted=frozenset({load.COMPACTED}),
        transactional=frozenset({load.TRANSACTIONAL}),
        groups={f"member-{rack}": load.GROUP for rack in RACKS},
        key_of=load.key_of,
    )
