"""The group coordinators of this node: one for each partition of `__consumer_offsets` that it leads."""

from collections.abc import Callable

from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.groups.consumer.group import SubscribableTopic
from tailrace.coordinators.groups.consumer.records import RegularExpressionValue
from tailrace.coordinators.groups.joining import NewMemberId
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.replication.partition import Partition
from tailrace.server.coordination.service import CoordinatorService
from tailrace.server.groups.host import GroupCoordinatorHost
from tailrace.server.groups.topic_patterns import TopicPatterns
from tailrace.server.ports import Clock
from tailrace.server.transactions.markers import TransactionMarker


class GroupCoordinatorService(CoordinatorService[str, GroupCoordinatorHost]):
    """The coordinators by group id; to them it is the cluster's `Topics`, to markers it is `PendingOffsets`."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        config: GroupConfig,
        new_member_id: NewMemberId,
        clock: Clock,
    ) -> None:
        super().__init__(
            GROUP_OFFSETS_TOPIC,
            noun="group id",
            key_text=str,
            invalid_key=ErrorCode.INVALID_GROUP_ID,
            max_keys=config.group_max_groups,
            limit="group.max.groups",
            broker_id=broker_id,
            find_partition=find_partition,
            clock=clock,
        )
        self.config = config
        self.patterns = TopicPatterns(clock=clock, max_bytes=config.group_max_metadata_bytes)
        self._new_member_id = new_member_id
        self._images = 0

    @property
    def version(self) -> int:
        """Of the topics: another number after each change of the cluster's metadata."""
        return self._images + self.patterns.version

    def find(self, name: str) -> SubscribableTopic | None:
        """The topic that has this name now."""
        topic = self._image.topics.get(name)
        return None if topic is None else SubscribableTopic(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic that has this id now."""
        return self._image.topic_names.get(TopicId(topic_id))

    def matches(self, expression: str) -> RegularExpressionValue | None:
        """The topics that match now, if that is known."""
        return self.patterns.find(expression)

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """As `CoordinatorService.on_image`; the offsets of deleted topics go."""
        self._images += 1
        self.patterns.on_image(image, delta)
        super().on_image(image, delta)
        if delta.deleted_topics:
            names = {topic.name for topic in delta.deleted_topics}
            for host in self._hosts.values():
                host.forget_lost_topics(names)

    def _host(self, partition: Partition) -> GroupCoordinatorHost:
        return GroupCoordinatorHost(
            partition,
            config=self.config,
            new_member_id=self._new_member_id,
            topics=self,
            clock=self._clock,
            deadlines=self._deadlines,
        )

    def complete_transaction(
        self, partition: TopicPartition, marker: TransactionMarker, on_done: Callable[[ErrorCode], None]
    ) -> None:
        """Write the marker to this partition, and apply or drop the offsets it decides about."""
        host = self._host_at(partition.partition)
        if host is None or not host.is_active:
            # The sender of markers knows the codes of partitions, and tries again.
            on_done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            host.complete_transaction(marker, on_done)
