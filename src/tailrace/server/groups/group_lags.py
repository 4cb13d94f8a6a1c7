"""The records that a group has not read, by partition, as the leaders count them: for a metric of lags (decision 0100).

Each record counts once, in a view too: a view partition counts the records of its slot. The leader of a partition may
be this broker, or another, which gets a ListOffsets that asks for the count.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.views import ViewImage, Views, stored_as
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.replication.partition import Partition
from tailrace.server.fetch.key_reads import ScanBudget
from tailrace.server.fetch.views import ReadableViews
from tailrace.server.groups.partition_ends import CONSUMER, LATEST
from tailrace.server.ports import Peer

FIRST_WITH_COUNTS: Final = 6
"""The first version of ListOffsets that may ask for a count."""

Records = Mapping[TopicPartition, int]


class GroupLags:
    """The unread records of all partitions of the cluster, as far as their leaders answer."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        image: Callable[[], ClusterImage],
        views: Views,
        readable: ReadableViews,
        peer: Peer,
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` is the longest wait for a leader's answer."""
        self._broker_id = broker_id
        self._find_partition = find_partition
        self._image = image
        self._views = views
        self._readable = readable
        self._peer = peer
        self._timeout_ms = timeout_ms

    def new_scan(self) -> ScanBudget:
        """The budget of some counts here."""
        return self._readable.key_reads.new_scan()

    def other_leader(self, partition: TopicPartition) -> BrokerId | None:
        """The other broker that leads the partition; None if this broker leads it, or no broker."""
        topic = self._views.topic(self._image(), partition.topic)
        state = None if topic is None else topic.partitions.get(partition.partition)
        if state is None or state.leader in (NO_LEADER, self._broker_id):
            return None
        return BrokerId(state.leader)

    def here(self, partition: TopicPartition, committed: int, budget: ScanBudget) -> int | None:
        """The records from the committed offset on, in a partition that this broker leads; None if they are not known.

        Reads records of a view's partition, while the time of the budget is not over.
        """
        topic = self._views.topic(self._image(), partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            return None
        found = self._find_partition(*stored_as(topic, partition.partition))
        if found is None or not found.is_leader or found.high_watermark < found.leader_epoch_start_offset:
            return None
        view = topic if isinstance(topic, ViewImage) else None
        end: int | None = found.high_watermark
        try:
            if view is not None:
                key_range = view.key_range(partition.partition)
                end = self._readable.reads.ends.end(found, key_range, found.high_watermark, budget)
            if end is None:
                return None
            return self._readable.unread(found, view, partition.partition, committed, end, budget).records
        except KafkaError:
            return None

    def ask(self, leader: BrokerId, committed: Records, on_known: Callable[[Records], None]) -> None:
        """Call `on_known` once, later, with the records from these committed offsets on, in partitions that another
        broker leads. Partitions whose records that broker does not count are left out."""
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for partition, offset in committed.items():
            wanted = ListOffsetsPartition(partition_index=partition.partition, timestamp=LATEST, count_from=offset)
            by_topic.setdefault(partition.topic, []).append(wanted)
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            topics=tuple(ListOffsetsTopic(name=name, partitions=tuple(each)) for name, each in by_topic.items()),
        )

        def answered(answer: Any) -> None:
            on_known(
                {
                    TopicPartition(topic.name, found.partition_index): found.records
                    for topic in (() if answer is None else answer.topics)
                    for found in topic.partitions
                    if found.error_code == ErrorCode.NONE and found.records >= 0
                }
            )

        self._peer.send(leader, request, answered, oldest_version=FIRST_WITH_COUNTS, timeout_ms=self._timeout_ms)
