"""A leader whose keeper of in-sync replicas proposes to a controller that answers when the test says so."""

from collections.abc import Sequence
from dataclasses import replace

from tailrace.metadata.commands import InSyncOutcome, PartitionsAltered
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState
from tailrace.replication.partition import Partition
from tailrace.replication.replica_progress import FollowerFetch
from tailrace.server.replicas.in_sync_keeper import InSyncKeeper
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, topic_id_of
from testkit.nodes.ports import DeferredController, broker_images

TOPIC_ID = topic_id_of("orders")


LAG_MS = 1_000


def state(
    in_sync: Sequence[int],
    *,
    partition_epoch: int = 0,
    is_recovering: bool = False,
    replicas: Sequence[int] = (1, 2, 3),
) -> PartitionState:
    return PartitionState(
        topic_id=TOPIC_ID,
        replicas=tuple(map(BrokerId, replicas)),
        in_sync_replicas=tuple(map(BrokerId, in_sync)),
        leader=BROKER,
        leader_epoch=LeaderEpoch(4),
        partition_epoch=partition_epoch,
        is_recovering=is_recovering,
    )


class InSyncKeeperBench:
    """Broker 1, which leads some partitions of one topic."""

    def __init__(self, *in_sync: Sequence[int], clock: ManualClock | None = None, lag_ms: int = LAG_MS) -> None:
        self.clock = clock or ManualClock()
        self.node = DataPath("/logs", files=SimulatedDisk(), clock=self.clock)
        self.controller = DeferredController(ClusterImage(brokers=broker_images()))
        self.keeper = InSyncKeeper(
            broker_id=BROKER,
            partitions=self.node.table,
            controller=self.controller,
            clock=self.clock,
            replica_lag_time_max_ms=lag_ms,
        )
        self.partitions = [
            self.node.create("orders", partition=number, leader_epoch=4, in_sync=members, replicas=(1, 2, 3))
            for number, members in enumerate(in_sync)
        ]
        for partition in self.partitions:
            partition.replica.context = replace(partition.replica.context, lag_ms=lag_ms)
        self.keeper.start()

    def fetch(self, partition: Partition, replica: int, offset: int = 0) -> None:
        if partition.in_sync.take_fetch(BrokerId(replica), FollowerFetch(offset, 0, 10 + replica, may_join=True)):
            self.keeper.consider(partition)

    def propose(self, replica: int) -> None:
        """Let a replica fetch the first partition, and the turn end, which proposes what has become due."""
        self.fetch(self.partition, replica)
        self.clock.advance(0)

    @property
    def partition(self) -> Partition:
        return self.partitions[0]

    @property
    def proposed(self) -> list[list[tuple[int, list[int]]]]:
        """(partition, members) of each command that waits."""
        return [
            [(change.partition, [member.broker_id for member in change.in_sync_replicas]) for change in command.changes]
            for command, _ in self.controller.waiting
        ]

    def answer(self, *results: PartitionState | KafkaError, refusal: KafkaError | None = None) -> None:
        command, on_done = self.controller.waiting.pop(0)
        pairs = zip(command.changes, results, strict=True) if refusal is None else ()
        outcomes = tuple(
            InSyncOutcome(topic_id=TOPIC_ID, partition=change.partition, result=result) for change, result in pairs
        )
        on_done(refusal or PartitionsAltered(outcomes=outcomes))


def proposing_bench() -> InSyncKeeperBench:
    """A leader that is alone in sync, and has proposed replica 2."""
    bench = InSyncKeeperBench((1,))
    bench.propose(2)
    return bench
