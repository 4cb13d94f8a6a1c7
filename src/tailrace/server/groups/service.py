"""The group coordinators of this node: one for each partition of `__consumer_offsets` that it leads."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from tailrace.coordinators.groups.commands import ForgetLostTopics
from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.groups.consumer.group import TopicInfo
from tailrace.coordinators.groups.consumer.records import RegularExpressionValue
from tailrace.coordinators.groups.joining import NewMemberId
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.replication.partition import Partition
from tailrace.server.coordination.led_coordinators import HostState, LedCoordinators
from tailrace.server.groups.host import GroupCoordinatorHost
from tailrace.server.groups.topic_patterns import TopicPatterns
from tailrace.server.ports import Clock
from tailrace.server.transactions.markers import TransactionMarker
from tailrace.server.waiters import Deadlines

_LONGEST_GROUP_ID: Final = 8191
"""Characters: at most 32,764 bytes, which an int16 can count."""


class GroupCoordinatorService:
    """All coordinators of this node, by partition of `__consumer_offsets`; to them it is the cluster's `Topics`.

    Knows nothing and refuses everybody until the first `on_image`.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        config: GroupConfig,
        new_member_id: NewMemberId,
        clock: Clock,
    ) -> None:
        self._config = config
        self._new_member_id = new_member_id
        self._clock = clock
        self._deadlines = Deadlines(clock)
        self._led = LedCoordinators(
            GROUP_OFFSETS_TOPIC, broker_id=broker_id, find_partition=find_partition, take_over=self._take_over
        )
        self.patterns = TopicPatterns(clock=clock, max_bytes=config.group_max_metadata_bytes)
        self._images = 0

    @property
    def config(self) -> GroupConfig:
        return self._config

    @property
    def version(self) -> int:
        """Of the topics: another number after each change of the cluster's metadata."""
        return self._images + self.patterns.version

    def find(self, name: str) -> TopicInfo | None:
        """The topic that has this name now."""
        topic = self._led.image.topics.get(name)
        return None if topic is None else TopicInfo(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic that has this id now."""
        return self._led.image.topic_names.get(TopicId(topic_id))

    def matches(self, expression: str) -> RegularExpressionValue | None:
        """The topics that match now, if that is known."""
        return self.patterns.find(expression)

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Take over and give up partitions as the image says. To be called when the partitions have their roles."""
        self._images += 1
        self.patterns.on_image(image, delta)
        self._led.on_image(image)
        if delta.deleted_topics:
            names = {topic.name for topic in delta.deleted_topics}
            for host in self._led.by_number.values():
                self._forget_lost_topics(host, names)

    def _take_over(self, partition: Partition) -> GroupCoordinatorHost:
        host = GroupCoordinatorHost(
            partition,
            config=self._config,
            new_member_id=self._new_member_id,
            topics=self,
            clock=self._clock,
            deadlines=self._deadlines,
        )
        # Topics may have gone while nobody coordinated.
        host.start(lambda: self._forget_lost_topics(host, host.machine.committed.topic_names))
        return host

    def _forget_lost_topics(self, host: GroupCoordinatorHost, names: Collection[str]) -> None:
        if host.state is HostState.ACTIVE:
            host.sweep((ForgetLostTopics(topics=_IdsNow(names, lambda: self._led.image)),))

    def host_of(self, group_id: str) -> GroupCoordinatorHost:
        """The group's coordinator, ready to serve.

        Raises KafkaError INVALID_GROUP_ID (24), NOT_COORDINATOR (16), or what `check_active` raises.
        """
        if not group_id or len(group_id) > _LONGEST_GROUP_ID:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group id is not empty, and not longer than a record's key")
        host = self._led.of_key(group_id)
        if host is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate group {group_id!r}")
        host.check_active()
        return host

    def check_room_for(self, group_id: str) -> None:
        """Raises KafkaError INVALID_REQUEST if the group would be new and this node has its fill of groups."""
        if self.host_of(group_id).machine.has_group(group_id):
            return
        if sum(host.machine.group_count for host in self._led.by_number.values()) >= self._config.group_max_groups:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this broker has {self._config.group_max_groups} groups, as many as it takes; delete old ones",
            )

    def active_hosts(self) -> list[GroupCoordinatorHost]:
        """All coordinators here. Raises what `check_active` raises if one is not ready."""
        for host in self._led.by_number.values():
            host.check_active()
        return list(self._led.by_number.values())

    def complete_transaction(
        self, partition: TopicPartition, marker: TransactionMarker, on_done: Callable[[ErrorCode], None]
    ) -> None:
        """Write the marker to this partition, and apply or drop the offsets it decides about."""
        host = self._led.of_partition(partition.partition)
        if host is None or host.state is not HostState.ACTIVE:
            # Whoever writes markers knows the codes of partitions, and tries again.
            on_done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            host.complete_transaction(marker, on_done)

    def close(self) -> None:
        """The node stops: whoever waits is sent elsewhere."""
        self._led.close()


class _IdsNow(Mapping[str, TopicId | None]):
    """The ids of some topics whenever one looks; None: there is none of that name.

    A sweep looks more than once: a topic that took the name of another meanwhile keeps its offsets.
    """

    def __init__(self, names: Collection[str], image: Callable[[], ClusterImage]) -> None:
        self._names = frozenset(names)
        self._image = image

    def __getitem__(self, name: str) -> TopicId | None:
        if name not in self._names:
            raise KeyError(name)
        topic = self._image().topics.get(name)
        return None if topic is None else topic.topic_id

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
