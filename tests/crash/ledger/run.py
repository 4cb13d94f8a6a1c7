"""A run of the ledger: three nodes, six clients in racks of their own, faults, and the evidence at the end."""

import json
import logging
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

from crash.ledger.copies import differences, epochs_of
from crash.ledger.faults import QUICK, LedgerScene, possible_kinds
from crash.ledger.plan import END, PARTITIONS, READ, WORK, ProgramPlan
from crash.ledger.programs import Launcher, LedgerProcess, SupervisedClient
from crash.ledger.report import LedgerReport
from crash.networks.proxy_network import ProxyNetwork
from crash.networks.rack_network import NoNetwork
from crash.networks.racked_cluster import RackedCluster, nodes_in
from crash.program import DEADLINE_S
from crash.replicas.faults import Scene, in_turn
from crash.replicas.replicated_load import wait_until_whole
from crash.replicas.run import CONFIG, RACKS, wait_for_brokers
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.verdicts.client_errors import ClientError, FaultWindow
from testkit.verdicts.ledger import Attempt, Entry, LedgerEvidence, Place, entry_of
from testkit.verdicts.ledger_diaries import DiaryReader

_PAUSE_MS: Final = 60
_INPUTS_PER_S: Final = 30
"""More than a client copies."""
_MORE_S: Final = 30
"""So much longer than its time the faults of a run may last."""
_QUIET_EVERY: Final = 4
_QUIET_S: Final = 10.0
"""After so many faults there is none for so long."""
_SHORT_S: Final = 60.0
_READERS_AT_A_TIME: Final = 3
_THROUGHOUT: Final = ("librdkafka", "tailrace")
"""The clients that also read during the whole run."""
_IMPATIENT: Final = {
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
_LATEST: Final = -1


def source_of(client: str) -> str:
    """The topic that this client copies."""
    return f"source-{client}"


def _network(stack: ExitStack) -> ProxyNetwork | None:
    """Proxies, so that nodes advertise this machine's loopback address; None where there can be none."""
    try:
        network = ProxyNetwork(len(RACKS))
    except NoNetwork:
        return None
    stack.callback(network.close)
    return network


class LedgerRun:
    """The cluster and the programs, from the begin to the evidence."""

    def __init__(
        self, directory: Path, clients: Sequence[str], seconds: float, timeout_ms: int, stack: ExitStack
    ) -> None:
        """`timeout_ms` is that of transactions. `stack` closes the run."""
        self._directory = directory
        self._clients = clients
        self._seconds = seconds
        self._timeout_ms = timeout_ms
        self._stack = stack
        self._network = _network(stack)
        stack.enter_context(nodes_in(self._network))
        cluster = RackedCluster(self._network, RACKS, config=CONFIG | _IMPATIENT, directory=directory / "cluster")
        self.cluster: Cluster = stack.enter_context(cluster)
        self._servers = self.cluster.bootstrap_servers
        if self._network is not None:
            self._servers = ",".join(f"127.0.0.1:{self._network.port(rack)}" for rack in self._network.racks)
        self._launcher = Launcher(directory / "classes")
        self._launcher.classes.mkdir()
        if "java" in clients:
            self._launcher.compile()
        self.report = LedgerReport()
        self._workers: list[SupervisedClient] = []
        self._readers: dict[str, LedgerProcess] = {}

    def _plan(self, role: str, client: str, output: Path) -> ProgramPlan:
        return ProgramPlan(
            role=role,
            client=client,
            life=0,
            servers=self._servers,
            output=str(output),
            partitions=PARTITIONS,
            source=source_of(client),
            group=f"copiers-{client}",
            transactional_id=f"ledger-{client}",
            transaction_timeout_ms=self._timeout_ms,
            pause_ms=_PAUSE_MS,
        )

    def begin(self) -> None:
        """Make the topics, fill the sources, start the programs and wait until each client has committed."""
        wait_for_brokers(self.cluster.bootstrap_servers)
        sources = {source_of(client): 1 for client in self._clients}
        with Admin(self.cluster.bootstrap_servers) as admin:
            topics = [
                NewTopic(name=name, partitions=count, replication_factor=3)
                for name, count in {**PARTITIONS, **sources}.items()
            ]
            admin.create_topics(topics)
        with Producer(self.cluster.bootstrap_servers) as producer:
            for number in range(int((self._seconds + _MORE_S) * _INPUTS_PER_S)):
                for source in sources:
                    producer.send(source, b"%d" % number, partition=0)
        diaries = self._directory / "diaries"
        diaries.mkdir()
        for number, client in enumerate(self._clients):
            rack = number % len(RACKS) + 1

            def in_rack(command: list[str], rack: int = rack) -> list[str]:
                return command if self._network is None else self._network.command(rack, command)

            worker = SupervisedClient(self._launcher, self._plan(WORK, client, diaries), in_rack)
            self._stack.callback(worker.close)
            self._workers.append(worker)
        for client in _THROUGHOUT:
            self._read(f"{client} throughout", client)
        self._await_commits()

    def _read(self, name: str, client: str) -> None:
        output = self._directory / f"read-by-{name.replace(' ', '-')}.jsonl"
        reader = LedgerProcess(self._launcher, self._plan(READ, client, output))
        self._stack.callback(reader.kill)
        self._readers[name] = reader

    def _await_commits(self, more: int = 2) -> None:
        """Wait until each client has so many more commits."""
        wanted = {worker.name: worker.committed + more for worker in self._workers}
        deadline = time.monotonic() + DEADLINE_S
        while late := [worker for worker in self._workers if worker.committed < wanted[worker.name]]:
            printed = "\n".join(
                f"{worker.name}, life {len(worker.lives)}: {worker.lives[-1].printed()}" for worker in late
            )
            assert time.monotonic() < deadline, f"no commits any more by {[worker.name for worker in late]}\n{printed}"
            time.sleep(0.05)

    def inject(self, chance: random.Random, least_faults: int) -> None:
        """Inject faults for the time of the run, one after the other, with quiet times in between.

        Short runs take quick faults alone.
        """
        began_s = time.monotonic()
        nodes = Scene(self.cluster, self._network, self._directory, chance, (*PARTITIONS, "__transaction_state"))
        places = [Place(topic, number) for topic, count in PARTITIONS.items() for number in range(count)]
        scene = LedgerScene(nodes, self._workers, places, self._timeout_ms / 1_000)
        story = logging.getLogger("crash.faults")
        for kind in in_turn(QUICK if self._seconds < _SHORT_S else possible_kinds(scene), chance):
            fault_s = time.monotonic()
            story.warning("%s begins", kind)
            story.warning("%s ends: %s", kind, scene.inject(kind))
            self._note(scene.windows[-1])
            self.report.faults[kind] += 1
            self._await_commits()
            self.report.longest_s[kind] = max(self.report.longest_s.get(kind, 0), time.monotonic() - fault_s)
            total = self.report.faults.total()
            is_over = time.monotonic() - began_s > self._seconds and total >= least_faults
            if total % _QUIET_EVERY == 0 or is_over:
                self._be_quiet(min(_QUIET_S, self._seconds / 4))
            if is_over:
                break
            nodes.wait(0.2, 1.5)
        self.report.windows = scene.windows
        self.report.seconds = time.monotonic() - began_s

    def _note(self, window: FaultWindow) -> None:
        """Keep a fault beside the diaries, whose clock its times are of."""
        with (self._directory / "faults.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(window)) + "\n")

    def _be_quiet(self, seconds: float) -> None:
        """A time without faults, in which each client must get on."""
        time.sleep(seconds / 2)  # for clients that are still busy with the last fault
        before = {worker.name: worker.committed for worker in self._workers}
        time.sleep(seconds / 2)
        self._await_commits()
        for worker in self._workers:
            commits = self.report.quiet_commits
            commits[worker.name] = commits.get(worker.name, 0) + worker.committed - before[worker.name]

    def finish(self) -> LedgerEvidence:
        """End the clients, let every reader read to the end, stop the nodes; gather the evidence."""
        for worker in self._workers:
            code = worker.end()
            assert code == 0, f"{worker.name} ended with {code}: {worker.lives[-1].printed()}"
            self.report.lives[worker.name] = len(worker.lives)
        for topic in PARTITIONS:
            wait_until_whole(self.cluster.bootstrap_servers, topic)
        self._write_ends()
        for number in range(0, len(self._clients), _READERS_AT_A_TIME):
            at_a_time = self._clients[number : number + _READERS_AT_A_TIME]
            for client in at_a_time:
                self._read(client, client)
            for client in at_a_time:
                _await_end(self._readers[client])
        for client in _THROUGHOUT:
            _await_end(self._readers[f"{client} throughout"])
        with Admin(self.cluster.bootstrap_servers) as admin:
            groups = {client: admin.group_offsets(f"copiers-{client}") for client in self._clients}
        copied_to = {client: offsets[TopicPartition(source_of(client), 0)].offset for client, offsets in groups.items()}
        self._look_at_copies()
        attempts, errors = self._diaries()
        self.report.errors = errors
        readings = {name: _reading(reader) for name, reader in self._readers.items()}
        return LedgerEvidence(attempts=attempts, readings=readings, copied_to=copied_to)

    def _write_ends(self) -> None:
        with Producer(self.cluster.bootstrap_servers) as producer:
            for topic, count in PARTITIONS.items():
                for number in range(count):
                    producer.send(topic, END.encode(), partition=number)

    def _look_at_copies(self) -> None:
        """Stop the nodes, and look at their files."""
        places = {
            TopicPartition(topic, number): _LATEST for topic, count in PARTITIONS.items() for number in range(count)
        }
        with Admin(self.cluster.bootstrap_servers) as admin:
            ends = {Place(*place): end.offset for place, end in admin.list_offsets(places).items()}
        self.cluster.stop()
        self.report.divergences = differences(self.cluster, ends)
        self.report.epochs = epochs_of(self.cluster, ends)

    def _diaries(self) -> tuple[dict[str, Attempt], list[ClientError]]:
        attempts: dict[str, Attempt] = {}
        errors: list[ClientError] = []
        for worker in self._workers:
            for life in worker.lives:
                reader = DiaryReader(worker.name, life.plan.life)
                for line in life.lines():
                    reader.take(line)
                if (end := worker.ends.get(life.plan.life)) is not None:
                    reader.end(*end)
                attempts.update({attempt.name: attempt for attempt in reader.attempts()})
                errors += reader.errors
        return attempts, errors


def _await_end(reader: LedgerProcess) -> None:
    code = reader.wait()
    assert code == 0, f"the reader {reader.plan.output} ended with {code}: {reader.printed()}"


def _reading(reader: LedgerProcess) -> dict[Place, list[tuple[int, Entry]]]:
    reading: dict[Place, list[tuple[int, Entry]]] = defaultdict(list)
    for topic, partition, offset, value in reader.lines():
        if value != END:
            reading[Place(topic, partition)].append((offset, entry_of(value)))
    return reading
