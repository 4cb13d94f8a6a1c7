"""The brokers of a cluster with transactions, in the view of its clients."""

from types import MappingProxyType
from typing import Final

from simulation.replicas.brokers import ReplicaBrokers
from simulation.replicas.laws import ReplicaLaws
from simulation.replicas.node import ReplicaNode
from simulation.transactions.book import Book
from simulation.transactions.laws import COPIES, TransactionLaws
from simulation.transactions.node import TransactionNode
from simulation.transactions.plan import TransactionPlan
from tailrace.coordinators.transactions.records import TransactionRecord
from tailrace.coordinators.transactions.transaction import LAST_EPOCH, Transaction
from tailrace.model.errors import KafkaError
from tailrace.model.key_hash import coordinator_partition
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tailrace.server.transactions.host import TransactionCoordinatorHost

ORDERS: Final = "orders"
"""The topic that transfers write to, and that is copied."""
_OLD_PRODUCER_ID: Final = 1_000_000
"""The first of the producer ids that were given away long ago."""
_COORDINATED: Final = 2
"""The partitions of each topic of coordinators."""


class TransactionBrokers(ReplicaBrokers):
    """Three brokers with coordinators, the book of what clients did, and the laws."""

    fault_states = MappingProxyType(
        {
            "broker killed": ("broker killed",),
            "power cut": ("power of a broker cut", "power cut within a step"),
            "blackout": ("blackout",),
            "false alarm": ("false alarm",),
            "clock jump": ("clock jumped",),
            "rival": ("several instances",),
            "client killed": ("client killed",),
        }
    )
    _node_type = TransactionNode
    plan: TransactionPlan
    laws: TransactionLaws

    def __init__(self, seed: int, plan: TransactionPlan) -> None:
        self.book = Book()
        super().__init__(seed, plan)
        for node in self.nodes.values():
            assert isinstance(node, TransactionNode)
            node.late = plan.late
            node.on_markers = self.laws.markers_leave

    def _make_laws(self) -> ReplicaLaws:
        plan = self.plan
        return TransactionLaws(
            self.book,
            min_in_sync=plan.min_in_sync,
            is_flushed=plan.is_flushed,
            lag_ms=plan.lag_ms,
            sometimes=self.world.sometimes,
        )

    @property
    def late(self) -> float:
        """The rate of requests that come again late; 0 in calm."""
        return self.plan.late if self.nemesis.is_chaos else 0.0

    def _start_clients(self) -> None:
        plan = self.plan
        for name in (ORDERS, COPIES):
            self._create_topic(name, plan.partitions)
        for name in (TRANSACTION_STATE_TOPIC, GROUP_OFFSETS_TOPIC):
            self._create_topic(name, _COORDINATED)

    def partition_for(self, topic: str, key: str) -> TopicPartition:
        """The partition of a coordinators' topic that has this key."""
        return TopicPartition(topic, coordinator_partition(key, len(self.metadata.image.topics[topic].partitions)))

    def serving_leader(self, name: TopicPartition) -> ReplicaNode | None:
        """The leader, while the leader is up."""
        node = self.leader_of(name)
        return node if node is not None and node.is_up else None

    def age(self, transactional_id: str, number: int) -> None:
        """Give the coordinator of this id the state that it would have after almost 32,766 transactions."""
        name = self.partition_for(TRANSACTION_STATE_TOPIC, transactional_id)

        def host() -> TransactionCoordinatorHost | None:
            leader = self.serving_leader(name)
            try:
                return None if leader is None else leader.broker.coordination.transactions.host_of(transactional_id)
            except KafkaError:
                return None

        self.world.run(until_ms=self.world.now_ms + 30_000, stop=lambda: host() is not None)
        found, leader = host(), self.serving_leader(name)
        assert found is not None, f"no coordinator for {transactional_id}"
        assert leader is not None
        old = Transaction(
            producer_id=_OLD_PRODUCER_ID + number,
            producer_epoch=LAST_EPOCH - self.world.between(2, 8, "old epoch", transactional_id),
            timeout_ms=self.plan.transaction_timeout_ms,
            updated_at_ms=leader.clock.now_ms(),
        )
        record = TransactionRecord(transactional_id=transactional_id, transaction=old)
        leader.do(lambda: found._append((record,), lambda failure: None))

    def _calm(self) -> None:
        super()._calm()
        for node in self.nodes.values():
            assert isinstance(node, TransactionNode)
            node.late = 0.0
            if node.is_up:
                node.clock.wall_error_ms = 0

    def unstable(self, name: TopicPartition) -> str | None:
        """The offsets of a leader whose last stable offset is below its log end; None otherwise."""
        node = self.serving_leader(name)
        partition = None if node is None else node.table.find(*name)
        if partition is None or partition.last_stable_offset == partition.log.log_end_offset:
            return None
        return f"{name}: {partition.last_stable_offset} of {partition.log.log_end_offset}"

    # The measure of a run

    @property
    def moves(self) -> int:
        """The number of leaderships of coordinators, without the first leadership of each partition."""
        coordinated = (TRANSACTION_STATE_TOPIC, GROUP_OFFSETS_TOPIC)
        led = {(name, epoch) for name, epoch, _ in self.laws.leaders if name.topic in coordinated}
        return len(led) - _COORDINATED * len(coordinated)

    @property
    def faults(self) -> set[str]:
        is_late = any(count for state, count in self.world.sometimes.items() if state.endswith("again late"))
        return super().faults | ({"late request"} if is_late else set())

    @property
    def progress(self) -> str:
        return f"{len(self.book.transactions)} transactions"
