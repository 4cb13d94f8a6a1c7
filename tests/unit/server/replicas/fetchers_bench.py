"""The replica fetchers of broker 1, and leaders that answer when the test says so."""

from collections.abc import Callable, Sequence
from typing import Any

from tailrace.metadata.image import ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.proofs import NO_SECRET
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tailrace.protocol.records.batch import stamp
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.replication.partition import Partition
from tailrace.server.replicas.fetchers import ReplicaFetchers
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, batch_of, topic_id_of
from testkit.nodes.ports import DeferredDisk, DeferredPeer, broker_images

TOPIC_ID = topic_id_of("orders")


ORDERS = TopicPartition("orders", 0)


OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


def state(leader: int, epoch: int, *, replicas: Sequence[int] = (1, 2, 3), unclean_epoch: int = -1) -> PartitionState:
    ids = tuple(map(BrokerId, replicas))
    return PartitionState(
        topic_id=TOPIC_ID,
        replicas=ids,
        in_sync_replicas=ids,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=epoch,
        unclean_epoch=unclean_epoch,
    )


def batch(base_offset: int, *values: bytes, epoch: int = 0) -> bytes:
    made = bytearray(batch_of(*values))
    stamp(made, 0, base_offset, epoch)
    return bytes(made)


class FetchPeer(DeferredPeer):
    """Leaders that answer when the test says so. Requests that end a wait are counted, and not answered."""

    def __init__(self) -> None:
        super().__init__()
        self.ended_waits: list[int] = []

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        if isinstance(request, FetchRequest) and (request.session_id, request.session_epoch) == (0, -1):
            assert (request.topics, request.forgotten_topics_data, request.max_wait_ms) == ((), (), 0)
            self.ended_waits.append(node_id)
        else:
            super().send(node_id, request, on_reply, oldest_version=oldest_version, timeout_ms=timeout_ms)


class ReplicaFetchersBench:
    """Broker 1, its partitions of one topic, and its requests to leaders."""

    def __init__(self, *states: PartitionState) -> None:
        self.disk = DeferredDisk()
        self.clock = ManualClock()
        self.files = SimulatedDisk()
        self.node = DataPath("/logs", files=self.files, clock=self.clock, disk=self.disk)
        self.peer = FetchPeer()
        self.hosts = ReplicaFetchers(
            secret=NO_SECRET,
            broker_id=BROKER,
            partitions=self.node.table,
            peer=self.peer,
            clock=self.clock,
            config=ReplicaFetchConfig(),
        )
        self.states = dict(enumerate(states))
        self.answered: dict[int, PartitionData] = {}
        """The last answers, by partition."""
        for number, led in self.states.items():
            self.node.table.create(TopicPartition("orders", number), state=led, config=TopicConfig())
        self.disk.run()
        self.hosts.load(self.image)
        self.settle()

    @property
    def image(self) -> ClusterImage:
        topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions=dict(self.states))
        return ClusterImage(topics={"orders": topic}, topic_names={TOPIC_ID: "orders"}, brokers=broker_images())

    def settle(self) -> None:
        self.clock.advance(0)
        self.disk.run()
        self.clock.advance(0)

    def load(self, changed: PartitionState) -> None:
        """A changed state of partition 0, which the fetchers read in a whole image; the disk does nothing yet."""
        self.states[0] = changed
        self.node.table.update(ORDERS, changed, TopicConfig())
        self.hosts.load(self.image)
        self.clock.advance(0)

    def take(self, number: int, changed: PartitionState, *, forgets: bool = False) -> None:
        """A change of the metadata, as a node acts on it: roles first. `forgets`: only the last fetch waits on."""
        self.states[number] = changed
        self.node.table.update(TopicPartition("orders", number), changed, TopicConfig())
        delta = ImageDelta(changed_partitions=((TopicPartition("orders", number), changed),))  # type: ignore[arg-type]
        self.hosts.on_image(self.image, delta)
        self.settle()
        if forgets:
            self.peer.waiting = self.peer.waiting[-1:]

    def partition(self, number: int = 0) -> Partition:
        return self.node.table.get("orders", number)

    @property
    def fetches(self) -> list[tuple[int, list[FetchPartition]]]:
        """(leader, partitions) of the fetches that wait for an answer."""
        return [
            (node_id, [partition for topic in request.topics for partition in topic.partitions])
            for node_id, request, _ in self.peer.waiting
        ]

    @property
    def fetched(self) -> list[int]:
        """The partitions of the only fetch that waits for an answer."""
        ((_, wanted),) = self.fetches
        return [partition.partition for partition in wanted]

    @property
    def sessions(self) -> list[tuple[int, int, int, list[int], list[int]]]:
        """(leader, session id, epoch, partitions, forgotten partitions) of the fetches that wait for an answer."""
        return [
            (
                node_id,
                request.session_id,
                request.session_epoch,
                [partition.partition for topic in request.topics for partition in topic.partitions],
                [number for topic in request.forgotten_topics_data for number in topic.partitions],
            )
            for node_id, request, _ in self.peer.waiting
        ]

    def answer(self, *news: PartitionData, error: ErrorCode = ErrorCode.NONE, session_id: int = 0) -> None:
        """Answer the oldest fetch; if it is a full fetch, also for the partitions without news.

        `session_id` is that of the answer: a leader without sessions has none.
        """
        _, request, on_reply = self.peer.waiting.pop(0)
        given = {entry.partition_index: entry for entry in news}
        if request.session_epoch == 0:
            for topic in request.topics:
                for partition in topic.partitions:
                    given.setdefault(
                        partition.partition, self.answered.get(partition.partition, data(partition.partition))
                    )
        for number, entry in given.items():
            if not entry.error_code:
                self.answered[number] = data(
                    number, high_watermark=entry.high_watermark, log_start_offset=entry.log_start_offset
                )
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=tuple(given.values()))
        on_reply(FetchResponse(error_code=error, session_id=session_id, responses=(topic,)))
        self.clock.advance(0)

    def take_answer(self, *news: PartitionData, session_id: int = 0) -> None:
        """`answer`, and let the disk do its work."""
        self.answer(*news, session_id=session_id)
        self.settle()

    def write_recovery_points(self) -> None:
        self.node.table.checkpoints.write_recovery_points()
        self.disk.run()


def data(number: int, records: bytes = b"", *, high_watermark: int = 0, **options: Any) -> PartitionData:
    return PartitionData(
        partition_index=number,
        high_watermark=high_watermark,
        log_start_offset=options.pop("log_start_offset", 0),
        aborted_transactions=None,
        records=records,
        **options,
    )
