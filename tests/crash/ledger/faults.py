"""The faults of a run of the ledger: the faults of replicas, and some of coordinators, leaders and clients."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from crash.ledger.programs import WITH_KIP_890, SupervisedClient
from crash.program import DEADLINE_S
from crash.replicas.faults import Scene, possible_faults
from tailrace.client.admin.cluster import UpgradeType
from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from testkit.verdicts.client_errors import FaultWindow
from testkit.verdicts.ledger import Place

_OF_REPLICAS: Final = ("kill", "SIGSTOP", "cut off", "lost")
"""Words in the names of the faults that are taken from `crash.replicas.faults`."""


@dataclass(frozen=True, slots=True)
class LedgerScene:
    """Everything that a fault may touch."""

    nodes: Scene
    clients: Sequence[SupervisedClient]
    places: Sequence[Place]
    transaction_timeout_s: float
    windows: list[FaultWindow] = field(default_factory=list)
    """The faults so far."""

    def inject(self, kind: str) -> str:
        """Inject a fault of `possible_kinds` and end it; returns its object, for the report."""
        if kind in _OF_CLIENTS:
            client = self.nodes.chance.choice(self.clients)
            with self._noted(kind, client):
                _OF_CLIENTS[kind](self, client)
            return client.name
        with self._noted(kind, None):
            if kind in _OF_COORDINATORS:
                return _OF_COORDINATORS[kind](self)
            return possible_faults(self.nodes.network)[kind](self.nodes)

    @contextmanager
    def _noted(self, kind: str, client: SupervisedClient | None) -> Iterator[None]:
        """Inside, a fault is injected: into this client, or into nodes, which all clients meet."""
        began_ns = time.monotonic_ns()
        met = self.clients if client is None else (client,)
        for worker in met:
            worker.note_fault()
        yield
        for worker in met:
            worker.note_fault()
        self.windows.append(FaultWindow(kind, began_ns, time.monotonic_ns(), None if client is None else client.name))


QUICK: Final = ("kill -9 of a leader", "SIGSTOP of a leader", "kill -9 of a client")
"""Faults after which clients get on within some seconds."""


def possible_kinds(scene: LedgerScene) -> list[str]:
    """Kinds of faults that can be injected here, of these only the kinds named by a word of LEDGER_FAULT_KINDS."""
    kinds = [*possible_faults(scene.nodes.network, _OF_REPLICAS), *_OF_CLIENTS, *_OF_COORDINATORS]
    words = os.environ.get("LEDGER_FAULT_KINDS", "").split(",")
    return [kind for kind in kinds if any(word in kind for word in words)]


def _kill_client(scene: LedgerScene, client: SupervisedClient) -> None:
    client.kill()


def _stop_client(scene: LedgerScene, client: SupervisedClient) -> None:
    _stop(scene, client, 0.1, 0.5)


def _stop_client_for_long(scene: LedgerScene, client: SupervisedClient) -> None:
    _stop(scene, client, 1.2, 1.5)


def _stop(scene: LedgerScene, client: SupervisedClient, least: float, most: float) -> None:
    """For so many times the time-out of a transaction."""
    stopped = client.stop()
    try:
        scene.nodes.wait(least * scene.transaction_timeout_s, most * scene.transaction_timeout_s)
    finally:
        client.go_on(stopped)


def _kill_coordinator(scene: LedgerScene) -> str:
    """kill -9 of the coordinator of one client's transactions."""
    client = scene.nodes.chance.choice(scene.clients)
    node = scene.nodes.any()
    with suppress(KafkaError), Admin(scene.nodes.cluster.bootstrap_servers) as admin:
        node = admin.describe_transaction(client.transactional_id).coordinator_id
    scene.nodes.cluster.kill(node)
    scene.nodes.wait(0, 3)
    scene.nodes.cluster.start(node)
    return f"node {node}"


def _move_leaders(scene: LedgerScene) -> str:
    """Another order of the replicas of each partition of the ledger, and with it another leader."""
    cluster, chance = scene.nodes.cluster, scene.nodes.chance
    wishes = {TopicPartition(*place): chance.sample(cluster.broker_ids, 3) for place in scene.places}
    with suppress(KafkaError), Admin(cluster.bootstrap_servers) as admin:
        admin.alter_partition_reassignments(wishes)
        admin.elect_leaders(list(wishes))
    return "all partitions"


def _lower_transaction_version(scene: LedgerScene) -> str:
    """Clients that begin meanwhile speak as before KIP-890, until they connect to a coordinator anew.

    So a coordinator that knows KIP-890 is killed when the version falls, and another when it has risen.
    """
    newer = [client for client in scene.clients if client.name in WITH_KIP_890] or scene.clients
    _set_transaction_version(scene, 1, UpgradeType.SAFE_DOWNGRADE)
    scene.nodes.chance.choice(newer).kill()
    scene.nodes.wait(4, 10)
    _set_transaction_version(scene, 2, UpgradeType.UPGRADE)
    scene.nodes.chance.choice(newer).kill()
    return "all nodes"


def _set_transaction_version(scene: LedgerScene, version: int, kind: UpgradeType) -> None:
    """Try until it is the version of the cluster."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            with Admin(scene.nodes.cluster.bootstrap_servers) as admin:
                if admin.describe_features().finalized.get("transaction.version") == version:
                    return
                admin.update_features({"transaction.version": version}, upgrade_type=kind)
        except KafkaError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)


_OF_CLIENTS: Final[Mapping[str, Callable[[LedgerScene, SupervisedClient], None]]] = {
    "kill -9 of a client": _kill_client,
    "SIGSTOP of a client": _stop_client,
    "SIGSTOP of a client past its transaction's time": _stop_client_for_long,
}
_OF_COORDINATORS: Final[Mapping[str, Callable[[LedgerScene], str]]] = {
    "kill -9 of a transaction's coordinator": _kill_coordinator,
    "leaders moved": _move_leaders,
    "transaction.version 1 for a while": _lower_transaction_version,
}
