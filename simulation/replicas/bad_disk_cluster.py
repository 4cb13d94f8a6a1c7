"""Three brokers, always with one bad disk: full, or hung. Nothing else fails.

The laws of `replicas.laws` hold, and another law: "writes go on beside one bad disk". Some time after the disk of a
broker has become bad, every partition acknowledges writes with acks=all again, whichever broker it is and whatever it
led; also a partition that was idle until then. A disk that hangs keeps the broker's image from going on.
"""

from functools import partial
from typing import Final

from simulation.harness.breach import Breach
from simulation.harness.network import NetworkFaults
from simulation.harness.world import World
from simulation.replicas.cluster import ReplicaCluster
from simulation.replicas.node import STALL_MS, ReplicaNode
from simulation.replicas.plan import ReplicaPlan
from simulation.replicas.producer import Producer
from tailrace.model.partitions import TopicPartition
from tailrace.testing.disk import TOTAL_SPACE

RESUMES_WITHIN_MS: Final = 5 * STALL_MS
"""The time in which the bad disk is noticed and reported, and other leaders are elected."""
BAD_MS: Final = 2 * RESUMES_WITHIN_MS


def plan_of(seed: int) -> ReplicaPlan:
    """A plan in which messages are slow or come twice, by the seed."""
    world = World(seed)
    return ReplicaPlan(
        network=NetworkFaults(duplication=0.1 * world.draw("size", "duplication")),
        longest_disk_ms=world.choice((1, 5, 30), "swarm", "disk"),
        latest_image_ms=world.choice((2, 30), "swarm", "images"),
        partitions=3,
        lag_ms=BAD_MS + 1_000,  # leaders do not drop the bad broker by themselves
        chaos_ms=16_000,
    )


class BadDiskCluster(ReplicaCluster):
    """A `ReplicaCluster` in which one disk after the other is bad."""

    _idle: TopicPartition | None = None
    """The partition to which no client produces."""

    def run(self) -> None:
        """Raises Breach."""
        self.world.after(3_000, self._spoil)
        super().run()

    def _spoil(self) -> None:
        if not self.nemesis.is_chaos:
            self._idle = None
            return
        if self._idle is None:
            self._idle = self.world.choice(self._producers, "idle", "partition").name
        is_at_rest = not any(producer.is_busy for producer in self._producers if producer.name == self._idle)
        # A broker whose disk hangs before the image in which it joined the ISR stays in the ISR: decision 0027.
        is_known = all(node.image is self.metadata.image for node in self.nodes.values())
        if not (is_at_rest and is_known and self.has_all_in_sync()):
            self.world.after(100, self._spoil)
            return
        node = self.nemesis.any_node("bad disk")
        kind = self.world.choice(("full", "hung"), "bad disk", node.node_id)
        self.world.sometimes[f"disk {kind}"] += 1
        if kind == "full":
            node.files.free_space = 0
        else:
            node.disk.hang()
            self.metadata.hold(node)
        self.world.after(RESUMES_WITHIN_MS, partial(self._look, node, kind))
        self.world.after(BAD_MS, partial(self._heal, node, kind))

    def _produce(self, producer: Producer) -> None:
        if producer.name != self._idle:
            super()._produce(producer)

    def _look(self, node: ReplicaNode, kind: str) -> None:
        self._idle = None
        before = [len(producer.acknowledged) for producer in self._producers]
        self.world.after(BAD_MS - RESUMES_WITHIN_MS - 1, partial(self._compare, node, kind, before))

    def _compare(self, node: ReplicaNode, kind: str, before: list[int]) -> None:
        stuck = [
            producer.name
            for producer, known in zip(self._producers, before, strict=True)
            if len(producer.acknowledged) == known
        ]
        if stuck:
            where = f"the disk of {node.node_id} is {kind}, and nothing is acknowledged of {stuck}"
            raise Breach("writes go on beside one bad disk", f"{where}\n{self.describe()}")

    def _heal(self, node: ReplicaNode, kind: str) -> None:
        if kind == "full":
            node.files.free_space = TOTAL_SPACE
        else:
            self.metadata.let_go(node)
            node.disk.answer()
        self.world.after(100, self._spoil)


def run_seed(seed: int) -> BadDiskCluster:
    """Run one seed. Raises Breach."""
    cluster = BadDiskCluster(seed, plan_of(seed))
    cluster.run()
    return cluster
