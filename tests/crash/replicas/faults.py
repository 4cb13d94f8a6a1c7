"""The faults that brokers and their network are put through, one after another, each for a while.

Cuts of the network take a `RackNetwork`; the other kinds are possible everywhere.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka
from confluent_kafka.admin import AdminClient

from crash.networks.rack_network import RackNetwork
from crash.program import DEADLINE_S
from crash.replicas.load import PARTITIONS
from tailrace.testing import Cluster

SESSION_S: Final = 2.5
"""broker.session.timeout.ms: a broker that is silent for longer is fenced."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a fault may touch."""

    cluster: Cluster
    network: RackNetwork | None
    disks: Path
    """The directory with the orders of `crash/disks/bad_disk`."""
    chance: random.Random
    topics: Sequence[str] = tuple(sorted(PARTITIONS))
    """The topics to whose leaders and followers the faults are done."""

    def leader(self) -> int:
        """The leader of some partition; some node if none is known."""
        return self._led(lambda leader: [leader])

    def follower(self) -> int:
        """A replica of some partition that does not lead it."""
        return self._led(lambda leader: [node for node in self.cluster.broker_ids if node != leader])

    def any(self) -> int:
        return self.chance.choice(self.cluster.broker_ids)

    def _led(self, choose: Callable[[int], list[int]]) -> int:
        topic = self.chance.choice(self.topics)
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})
        with suppress(confluent_kafka.KafkaException):
            partitions = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
            leaders = [partition.leader for partition in partitions.values() if partition.leader > 0]
            if leaders:
                return self.chance.choice(choose(self.chance.choice(leaders)))
        return self.any()

    def wait(self, least_s: float, most_s: float) -> None:
        time.sleep(self.chance.uniform(least_s, most_s))


Fault = Callable[[Scene], str]
"""Injects a fault, and ends it; returns its object, for the report."""


def _kill(choose: Callable[[Scene], int]) -> Fault:
    def fault(scene: Scene) -> str:
        node = choose(scene)
        scene.cluster.kill(node)
        scene.wait(0, 3)
        scene.cluster.start(node)
        return f"node {node}"

    return fault


def _kill_all(scene: Scene) -> str:
    scene.cluster.kill()
    scene.cluster.start()
    return "all nodes"


def _pause(choose: Callable[[Scene], int], least_s: float, most_s: float) -> Fault:
    def fault(scene: Scene) -> str:
        node = choose(scene)
        scene.cluster.pause(node)
        try:
            scene.wait(least_s, most_s)
        finally:
            scene.cluster.resume(node)
        return f"node {node}"

    return fault


def _cut(choose: Callable[[Scene], int], cut: Callable[[RackNetwork, int], None]) -> Fault:
    def fault(scene: Scene) -> str:
        assert scene.network is not None, "the fault is possible"
        node = choose(scene)
        cut(scene.network, node)
        try:
            scene.wait(1, 2 * SESSION_S)
        finally:
            scene.network.heal()
        return f"node {node}"

    return fault


def _bad_disk(order: str) -> Fault:
    def fault(scene: Scene) -> str:
        node = scene.any()
        new = scene.disks / f"node-{node}.new"
        new.write_text(order)
        try:
            new.rename(scene.disks / f"node-{node}")
            scene.wait(1, 4)
        finally:
            (scene.disks / f"node-{node}").unlink()
        return f"node {node}"

    return fault


_NETWORK: Final[Mapping[str, Fault]] = {
    "follower cut off from the other brokers": _cut(Scene.follower, lambda network, rack: network.cut(rack)),
    "leader cut off from the other brokers": _cut(Scene.leader, lambda network, rack: network.cut(rack)),
    "rack cut off from everything": _cut(Scene.any, lambda network, rack: network.unplug(rack)),
    "broker's packets to the others lost": _cut(Scene.any, lambda network, rack: network.cut_one_way(rack)),
}
FAULTS: Final[Mapping[str, Fault]] = {
    "kill -9 of a leader": _kill(Scene.leader),
    "kill -9 of a follower": _kill(Scene.follower),
    "kill -9 of all": _kill_all,
    "SIGSTOP of a leader": _pause(Scene.leader, 0.2, 0.8 * SESSION_S),
    "SIGSTOP of a leader past its session": _pause(Scene.leader, 1.2 * SESSION_S, 2.5 * SESSION_S),
    "SIGSTOP of a follower past its session": _pause(Scene.follower, 1.2 * SESSION_S, 2.5 * SESSION_S),
    **_NETWORK,
    "slow disk": _bad_disk("slow"),
    "full disk": _bad_disk("full"),
    "failing disk": _bad_disk("eio"),
    "hung disk": _bad_disk("hung"),
}


def possible_faults(network: RackNetwork | None, words: Sequence[str] = ("",)) -> Mapping[str, Fault]:
    """The kinds that can be injected, and have any of these words in their names."""
    possible = FAULTS.keys() if network is not None else FAULTS.keys() - _NETWORK.keys()
    return {kind: FAULTS[kind] for kind in possible if any(word in kind for word in words)}


def in_turn(kinds: Collection[str], chance: random.Random) -> Iterator[str]:
    """Kinds without end: all of them in some order, then in another, so that each comes as often as the others."""
    while True:
        yield from chance.sample(sorted(kinds), len(kinds))
