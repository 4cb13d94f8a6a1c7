"""A broker with a replica of `orders-0`, for requests of consumers and of other replicas: a leader, or a follower."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailrace.metadata.image import ClusterImage, Endpoint
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tailrace.protocol.records.batch import stamp
from tailrace.replication.partition import Partition
from tailrace.replication.replica_selector import ReplicaSelector
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, batch_of, topic_id_of
from testkit.nodes.ports import DeferredController, broker_images

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS: Mapping[int, str] = {1: "a", 2: "b", 3: "c"}
EPOCHS: Mapping[int, int] = {1: 10, 2: 20, 3: 30}
LEADER_EPOCH = 4
NOT_STATED = 2**63 - 1


class LeadingBroker:
    """Broker 1, in rack a, which leads the partition in epoch 4; brokers 2 (rack b) and 3 (rack c) follow."""

    def __init__(
        self,
        *,
        selector: ReplicaSelector | None = None,
        selector_class: str = RACK_AWARE,
        racks: Mapping[int, str] = RACKS,
        in_sync: Sequence[int] = (1, 2, 3),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.controller = DeferredController(ClusterImage(brokers=_brokers(racks)))
        self.node = DataPath(
            "/logs",
            files=SimulatedDisk(),
            clock=self.clock,
            controller=self.controller,
            settings={"replica.selector.class": selector_class, **(settings or {})},
            replica_selector=selector,
        )
        self.partition: Partition = self.node.create(leader_epoch=LEADER_EPOCH, in_sync=in_sync, replicas=(1, 2, 3))
        self.node.end_turn()

    def change_broker(self, broker_id: int, **changes: Any) -> None:
        """Change a registration in the image."""
        brokers = dict(self.controller.image.brokers)
        brokers[BrokerId(broker_id)] = replace(brokers[BrokerId(broker_id)], **changes)
        self.controller.image = replace(self.controller.image, brokers=brokers)

    def produce(self, *values: bytes) -> None:
        """Append and flush, without a wait for the followers."""
        self.node.produce("orders", *values, acks=1)

    def commit(self, *values: bytes) -> int:
        """Append, and let both followers fetch until they know that the records are committed; returns the high
        watermark."""
        self.produce(*values)
        end = self.partition.log.log_end_offset
        for replica in (2, 3, 2, 3):
            self.follow(replica, end, high_watermark=self.partition.high_watermark)
        assert self.partition.high_watermark == end
        for replica in (2, 3):
            self.follow(replica, end, high_watermark=end)
        return end

    def follow(
        self,
        replica: int,
        offset: int,
        *,
        high_watermark: int | None = None,
        log_start_offset: int = 0,
        max_wait_ms: int = 0,
        version: int = 18,
        broker_epoch: int | None = None,
    ) -> Exchange:
        """Send the fetch of a follower. Without `high_watermark` the fetch states no high watermark, as before v18."""
        wanted = FetchPartition(
            partition=0,
            fetch_offset=offset,
            current_leader_epoch=LEADER_EPOCH,
            log_start_offset=log_start_offset,
            partition_max_bytes=1 << 20,
            high_watermark=NOT_STATED if high_watermark is None else high_watermark,
        )
        request = FetchRequest(
            replica_state=ReplicaState(
                replica_id=replica, replica_epoch=EPOCHS[replica] if broker_epoch is None else broker_epoch
            ),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            topics=(FetchTopic(topic="orders", topic_id=topic_id_of("orders"), partitions=(wanted,)),),
        )
        return self.node.send(request, version)

    def consume(self, offset: int, *, rack: str = "", **options: Any) -> Exchange:
        """Send the fetch of a consumer, by `DataPath.fetch`."""
        return self.node.fetch("orders", offset, rack_id=rack, **options)

    def preferred(self, offset: int, rack: str, **options: Any) -> int:
        """The replica that a consumer of this rack is sent to; -1 for none."""
        return self.consume(offset, rack=rack, **options).fetched.preferred_read_replica


class FollowingBroker:
    """Broker 1, which follows broker 2 in epoch 4."""

    def __init__(self, *, is_flushed: bool = True) -> None:
        self.clock = ManualClock()
        settings = {"log.durability": "flushed" if is_flushed else "page-cache"}
        self.node = DataPath("/logs", files=SimulatedDisk(), clock=self.clock, settings=settings)
        self.partition: Partition = self._follow(LEADER_EPOCH)

    def _follow(self, leader_epoch: int, leader: int = 2) -> Partition:
        partition = self.node.create(leader=leader, leader_epoch=leader_epoch, in_sync=(1, 2), replicas=(1, 2))
        self.node.end_turn()
        return partition

    def follow_anew(self, leader_epoch: int) -> None:
        """Follow the leader in another epoch."""
        self._follow(leader_epoch)

    def lead(self, leader_epoch: int) -> None:
        self._follow(leader_epoch, leader=1)

    def receive(self, *values: bytes, epoch: int = LEADER_EPOCH) -> None:
        """Append and flush a batch of the leader."""
        batch = bytearray(batch_of(*values))
        stamp(batch, 0, self.partition.log.log_end_offset, epoch)
        self.partition.following.append(batch)
        self.partition.following.flush(lambda fault: None)
        self.node.end_turn()

    def hear(self, high_watermark: int, *, log_start_offset: int = 0) -> None:
        """Take over the leader's offsets from an answer whose records are stored."""
        self.partition.following.take_leader_offsets(high_watermark=high_watermark, log_start_offset=log_start_offset)
        self.node.end_turn()

    def consume(self, offset: int, **options: Any) -> Exchange:
        """Send the fetch of a consumer, by `DataPath.fetch`."""
        return self.node.fetch("orders", offset, **options)


def _brokers(racks: Mapping[int, str]) -> Any:
    return {
        broker_id: replace(
            broker,
            rack=racks.get(broker_id),
            endpoints=(Endpoint(listener_name="PLAINTEXT", host="127.0.0.1", port=9000 + broker_id),),
        )
        for broker_id, broker in broker_images(EPOCHS).items()
    }
