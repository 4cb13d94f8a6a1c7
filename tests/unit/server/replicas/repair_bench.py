"""Broker 1 with a replica to repair, on a disk that loses unsynced bytes; broker 2 leads, and gets the requests."""

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import pytest

from simulation.replicas.node import ReplicaSettings
from tailrace.metadata.image import ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, StorageError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.proofs import NO_SECRET
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchPartition, FetchResponse, PartitionData
from tailrace.protocol.records.batch import stamp
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.replication.partition import Partition
from tailrace.server.admin.config_entries import LiveSettings
from tailrace.server.replicas.fetchers import ReplicaFetchers
from tailrace.server.replicas.metadata_applier import MetadataApplier
from tailrace.server.replicas.repairs import ReplicaRepairs
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, batch_of, topic_id_of
from testkit.nodes.ports import DeferredDisk

TOPIC_ID = topic_id_of("orders")


ORDERS = TopicPartition("orders", 0)


LOG_FILE = "/logs/orders-0/00000000000000000000.log"


DAMAGED = f"orders-0.{TOPIC_ID.hex()}.1-damaged"


KEPT_FILE = f"/logs/{DAMAGED}/00000000000000000000.log"


OUT = PartitionState(
    topic_id=TOPIC_ID,
    replicas=(BrokerId(2), BROKER),
    in_sync_replicas=(BrokerId(2),),
    leader=BrokerId(2),
    leader_epoch=LeaderEpoch(4),
    partition_epoch=9,
)


def batch(base_offset: int, value: bytes) -> bytes:
    made = bytearray(batch_of(value))
    stamp(made, 0, base_offset, 4)
    return bytes(made)


def response(high_watermark: int, records: bytes = b"", **options: Any) -> FetchResponse:
    data = PartitionData(
        partition_index=0, high_watermark=high_watermark, aborted_transactions=None, records=records, **options
    )
    return FetchResponse(responses=(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,)),))


RECORDS = [batch(number, b"value %d" % number) for number in range(3)]


class Lost:
    """Lost replicas, as `Failures` notes them; no heartbeat reports them here."""

    def __init__(self) -> None:
        self.lost_replicas: tuple[TopicPartition, ...] = ()
        self.given_up_replicas: list[TopicPartition] = []

    def lost(self, topic_partition: TopicPartition, /) -> None:
        """Note the loss; again if it was noted before."""
        self.lost_replicas = tuple(dict.fromkeys((*self.lost_replicas, topic_partition)))

    def stalled(self, topic_partition: TopicPartition, /) -> None:
        raise AssertionError(topic_partition)

    def resumed(self, topic_partition: TopicPartition, /) -> None:
        raise AssertionError(topic_partition)

    def recovered(self, topic_partition: TopicPartition, /) -> None:
        self.lost_replicas = tuple(lost for lost in self.lost_replicas if lost != topic_partition)

    def given_up(self, topic_partition: TopicPartition, /) -> None:
        self.given_up_replicas.append(topic_partition)


class RepairedBroker:
    """Broker 1 from a start on."""

    def __init__(
        self,
        files: SimulatedDisk,
        state: PartitionState = OUT,
        *,
        leader_says: ErrorCode | None = ErrorCode.NONE,
        config: TopicConfig | None = None,
    ) -> None:
        self.files = files
        self.disk = DeferredDisk()
        self.clock = ManualClock()
        self.state = state
        self.lost = Lost()
        self.waiting: list[tuple[Any, Callable[[Any], None]]] = []
        self.considered: list[Partition] = []
        self.is_deleted = False
        self.reads = 0
        self.leader_says: ErrorCode | None = leader_says
        """The error code in its answer to a read; None: it does not answer."""
        self.table = DataPath("/logs", files=files, clock=self.clock, disk=self.disk, failures=self.lost).table
        settings = LiveSettings(ReplicaSettings(BROKER, config or TopicConfig()))
        self.applier = MetadataApplier(partitions=self.table, broker_id=BROKER, settings=settings)
        self.fetchers = ReplicaFetchers(
            secret=NO_SECRET,
            broker_id=BROKER,
            partitions=self.table,
            peer=self,
            clock=self.clock,
            config=ReplicaFetchConfig(),
        )
        self.repairs = ReplicaRepairs(
            broker_id=BROKER,
            partitions=self.table,
            failures=self.lost,
            opener=self.applier,
            fetchers=self.fetchers,
            keeper=self,
            peer=self,
            controller=self,
            clock=self.clock,
        )
        self.applier.load(self.image)
        self.fetchers.load(self.image)
        self.repairs.start()

    @classmethod
    def started(cls, *arguments: Any, **options: Any) -> Self:
        """A broker whose disk has done its first work."""
        broker = cls(*arguments, **options)
        broker.settle()
        return broker

    @property
    def partition(self) -> Partition:
        return self.table.get(*ORDERS)

    @property
    def image(self) -> ClusterImage:
        if self.is_deleted:
            return ClusterImage()
        topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions={0: self.state})
        return ClusterImage(topics={"orders": topic}, topic_names={TOPIC_ID: "orders"})

    def consider(self, partition: Partition) -> None:
        self.considered.append(partition)

    @property
    def leader_id(self) -> BrokerId:
        return BrokerId(2)

    def submit(self, command: Any, on_done: Any) -> None:
        raise AssertionError(command)

    def send(self, node_id: int, request: Any, on_reply: Callable[[Any], None], **_: Any) -> None:
        if request.replica_state.replica_id != -1:
            self.waiting.append((request, on_reply))
            return
        self.reads += 1
        (topic,) = request.topics
        (wanted,) = topic.partitions
        assert (node_id, topic.topic_id) == (self.state.leader, TOPIC_ID)
        assert wanted.current_leader_epoch == self.state.leader_epoch
        answer = None if self.leader_says is None else response(3, error_code=self.leader_says)
        self.clock.call_soon(lambda: on_reply(answer))

    def settle(self, ms: int = 0) -> None:
        """Let this much time pass, and the disk do its work."""
        self.clock.advance(ms)
        while self.disk.works or self.disk.waiting:
            self.disk.run()
            self.clock.advance(0)

    def take(self, **changes: Any) -> None:
        self.state = replace(self.state, partition_epoch=self.state.partition_epoch + 1, **changes)
        delta = ImageDelta(changed_partitions=((ORDERS, self.state),))  # type: ignore[arg-type]
        self.applier.on_image(self.image, delta)
        self.fetchers.on_image(self.image, delta)
        self.repairs.on_image(self.image, delta)

    def find_damage(self, what: str = "a damaged batch at 1") -> None:
        """Report the damage, as a read or the scrubber does; the leader begins a new epoch after the report."""
        self.table.get(*ORDERS).log.condemn(what)
        self.take(leader_epoch=LeaderEpoch(self.state.leader_epoch + 1))

    @property
    def leader_reads(self) -> list[FetchPartition]:
        return [partition for request, _ in self.waiting for topic in request.topics for partition in topic.partitions]

    def answer(self, *records: bytes, high_watermark: int) -> None:
        _, on_reply = self.waiting.pop()
        on_reply(response(high_watermark, b"".join(records), log_start_offset=0))
        self.settle()

    def fetch_all(self) -> None:
        self.answer(*RECORDS, high_watermark=3)

    def write_checkpoints(self) -> None:
        self.table.checkpoints.write_recovery_points()
        self.table.checkpoints.write_high_watermarks()
        self.settle()


def whole_disk(config: TopicConfig | None = None) -> SimulatedDisk:
    """Three records, all committed; then the process was killed."""
    files = SimulatedDisk(3)
    node = RepairedBroker.started(files, config=config)
    node.fetch_all()
    node.write_checkpoints()
    return files


def damaged_disk() -> SimulatedDisk:
    files = whole_disk()
    files.flip_bit(LOG_FILE, len(RECORDS[0]) + 70)
    return files


def damaged_names(files: SimulatedDisk) -> list[str]:
    return [name for name in files.list_dir("/logs") if name.endswith("-damaged")]


def lose_a_copy_while_it_is_measured(files: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has just removed old files, as the line of a repair advises."""
    size_of = files.size_of
    gone: list[str] = []

    def size_of_one(path: str) -> int:
        if "-damaged/" in path and not gone:
            gone.append(path)
            raise StorageError(f"cannot stat {path}: No such file or directory", errno.ENOENT)
        return size_of(path)

    monkeypatch.setattr(files, "size_of", size_of_one)
