"""A broker with a copy of one partition."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import stamp
from tailrace.replication.outcomes import Appended
from tailrace.replication.partition import Partition
from tailrace.replication.replica_progress import FollowerFetch
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of, topic_id_of
from testkit.nodes.ports import DeferredDisk

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ORDERS = TopicPartition("orders", 0)


def state(
    *in_sync: int,
    leader: int = 1,
    epoch: int = 0,
    partition_epoch: int = 0,
    replicas: Sequence[int] = (1, 2, 3),
    **options: Any,
) -> PartitionState:
    return replace(
        PartitionState(
            topic_id=topic_id_of("orders"),
            replicas=tuple(map(BrokerId, replicas)),
            in_sync_replicas=tuple(map(BrokerId, in_sync)),
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            partition_epoch=partition_epoch,
        ),
        **options,
    )


class CopyBench:
    """Broker 1, with a copy of one partition; its disk flushes when the test says so."""

    def __init__(self, first: PartitionState, *, is_flushed: bool = True, min_in_sync: int = 2) -> None:
        self.disk = DeferredDisk()
        self.clock = ManualClock()
        settings = {"log.durability": "flushed" if is_flushed else "page-cache"}
        self.files = SimulatedDisk()
        self.node = DataPath("/logs", files=self.files, clock=self.clock, disk=self.disk, settings=settings)
        config = TopicConfig(min_insync_replicas=min_in_sync)
        created = self.node.table.create(ORDERS, state=first, config=config)
        assert created is not None
        self.partition: Partition = created
        self.disk.run()
        self.outcomes: list[Appended | KafkaError] = []
        self.reached: list[KafkaError | None] = []

    def take(self, changed: PartitionState, config: TopicConfig | None = None) -> None:
        self.node.table.update(ORDERS, changed, config or self.partition.config)

    def stage(self, *values: bytes, acks: int = -1) -> None:
        self.partition.append_as_leader(
            batch_of(*values), acks=acks, produce_version=9, now_ms=self.clock.now_ms(), on_done=self.outcomes.append
        )

    def produce(self, *values: bytes) -> None:
        self.stage(*values)
        self.node.table.write_staged()
        self.partition.replica.when_high_watermark_reaches(self.partition.log.log_end_offset, self.reached.append)

    def fetch(self, replica: int, offset: int, *, may_join: bool = True) -> bool:
        return self.partition.in_sync.take_fetch(BrokerId(replica), FollowerFetch(offset, 0, -1, may_join))

    def receive(self, base_offset: int, *values: bytes, epoch: int = 0, checked_from: int | None = None) -> None:
        """Append as a follower."""
        batch = bytearray(batch_of(*values))
        stamp(batch, 0, base_offset, epoch)
        self.partition.following.append(batch, checked_from=checked_from)

    def flush(self) -> None:
        """Flush as a follower."""
        self.partition.following.flush(lambda _: None)
        self.disk.run()

    @property
    def marks(self) -> tuple[int, int, int]:
        partition = self.partition
        return partition.high_watermark, partition.log.flushed_offset, partition.log.log_end_offset
