"""Brokers that keep copies of partitions: producers that repeat until the acknowledgement, a nemesis, and the checks at
the end."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from simulation.harness.breach import Breach
from simulation.harness.turns import Turn
from simulation.replicas.brokers import ReplicaBrokers
from simulation.replicas.consumer import ReplicaConsumer
from simulation.replicas.nemesis import ReplicaNemesis
from simulation.replicas.node import rack_of
from simulation.replicas.plan import ReplicaPlan
from simulation.replicas.producer import Producer
from tailrace.model.partitions import TopicPartition

TOPIC: Final = "orders"
CONSUMES_PER_S: Final = 25.0


class ReplicaCluster(ReplicaBrokers):
    """Brokers with all partitions of one topic."""

    nemesis: ReplicaNemesis

    def __init__(self, seed: int, plan: ReplicaPlan, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns of clients and of the nemesis that are taken before calm begins; None means every turn."""
        super().__init__(seed, plan)
        self.nemesis = self._make_nemesis(only)
        self._producers: list[Producer] = []
        self._consumers: list[ReplicaConsumer] = []
        self._before = 0
        """The acknowledged batches when calm began."""

    def _make_nemesis(self, only: Collection[Turn] | None) -> ReplicaNemesis:
        return ReplicaNemesis(self, TOPIC, only)

    # The run

    def _start_clients(self) -> None:
        plan = self.plan
        self._create_topic(TOPIC, plan.partitions)
        self._producers = [Producer(self, TopicPartition(TOPIC, number)) for number in range(plan.partitions)]
        self._consumers = [
            ReplicaConsumer(self, TOPIC, partitions=plan.partitions, rack=rack_of(number))
            for number in range(1, plan.consumers + 1)
        ]
        for producer in self._producers:
            produce = partial(self._produce, producer)
            self.nemesis.repeat(f"produce {producer.name}", plan.produces_per_s, produce, in_calm=True)
        for consumer in self._consumers:
            self.nemesis.repeat(f"consume {consumer.rack}", CONSUMES_PER_S, consumer.poll, in_calm=True)

    def _produce(self, producer: Producer) -> None:
        if self.is_working:
            producer.produce()

    # The end

    def _calm(self) -> None:
        super()._calm()
        self._before = self.acked

    def _is_in_sync(self) -> bool:
        return self.acked > self._before + len(self._producers) and self.has_all_in_sync()

    def _is_at_rest(self) -> bool:
        """Whether all copies are the same, and consumed."""
        if any(producer.is_busy for producer in self._producers) or not super()._is_at_rest():
            return False
        ends = [self._ends(name)[0] for name in self.names()]
        return all(consumer.positions[number] == end for consumer in self._consumers for number, end in enumerate(ends))

    def _check_end(self) -> None:
        for producer in self._producers:
            content = self._content(producer.name)
            lost = [
                offset
                for offset, crc in producer.acknowledged.items()
                if offset not in content or content[offset].crc != crc
            ]
            if lost:
                raise Breach("acknowledged is never lost", f"{producer.name}, offsets {lost}")
            crcs = [batch.crc for batch in content.values()]
            if len(set(crcs)) < len(crcs):
                raise Breach("each batch is there once", str(producer.name))

    @property
    def acked(self) -> int:
        """The number of batches that were acknowledged."""
        return sum(producer.acked for producer in self._producers)

    @property
    def counts(self) -> bool:
        return self.acked >= 100 and len(self.laws.leaders) > self.plan.partitions and super().counts

    @property
    def progress(self) -> str:
        return f"{self.acked} acked"

    def describe(self) -> str:
        read = ", ".join(f"{consumer.rack} {consumer.positions}" for consumer in self._consumers)
        return f"{super().describe()}\nread: {read}"


def run_seed(seed: int, *, plan_of: Callable[[int], ReplicaPlan] = ReplicaPlan.of) -> ReplicaCluster:
    """Run one seed. Raises Breach."""
    cluster = ReplicaCluster(seed, plan_of(seed))
    cluster.run()
    return cluster


def run_late_copies(seed: int) -> ReplicaCluster:
    """Run one seed of `ReplicaPlan.of_late_copies`. Raises Breach."""
    return run_seed(seed, plan_of=ReplicaPlan.of_late_copies)


def run_silence(seed: int) -> ReplicaCluster:
    """Run one seed in which followers are silent until calm begins, and the high watermark stands still. Raises
    Breach."""
    cluster = ReplicaCluster(seed, ReplicaPlan(partitions=1, chaos_ms=8_000))
    cluster.world.after(4_000, cluster.nemesis.silence_followers)
    cluster.run()
    return cluster
