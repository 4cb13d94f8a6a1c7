"""The two throttles of this broker's replication (KIP-73), by the settings in the image.

The rates are settings of the broker, the replicas are settings of topics: `kafka-reassign-partitions --throttle` sets
both and takes both away. A replica in sync is never held back, since acks=all waits for the replica; its bytes count.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.metadata.image import ClusterImage, ImageDelta, ResourceType
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.topic_config import TOPIC_SETTINGS
from tailrace.replication.partition import Partition
from tailrace.replication.throttle import ALL_PARTITIONS, ReplicationThrottle, ThrottleConfig
from tailrace.server.admin.config_entries import LiveSettings
from tailrace.server.ports import Clock

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
_LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
_FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
_NONE: Final[frozenset[int]] = frozenset()


class ReplicationThrottles:
    """`load` once, then `on_image` for each change."""

    def __init__(self, *, broker_id: BrokerId, settings: LiveSettings, config: ThrottleConfig, clock: Clock) -> None:
        self._broker_id = broker_id
        self._settings = settings
        self._clock = clock
        self.leader: Final = ReplicationThrottle(config)
        """Throttles the bytes that this broker sends to followers."""
        self.follower: Final = ReplicationThrottle(config)
        """Throttles the bytes that this broker fetches from leaders."""
        self._sides: Final = (
            (self.leader, LEADER_RATE, _LEADER_REPLICAS),
            (self.follower, FOLLOWER_RATE, _FOLLOWER_REPLICAS),
        )

    def load(self, image: ClusterImage) -> None:
        """Take over the settings in this image."""
        self._take_rates(image)
        self._take_replicas(image, (name for kind, name in image.configs if kind == ResourceType.TOPIC))

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Take over the settings that have changed."""
        for topic in delta.deleted_topics:
            self._set_replicas(topic.topic_id, {})
        if any(self._settings.concerns(resource) for resource in delta.changed_configs):
            self._take_rates(image)
        self._take_replicas(image, (name for kind, name in delta.changed_configs if kind == ResourceType.TOPIC))

    def _take_rates(self, image: ClusterImage) -> None:
        settings = self._settings.at(image)
        for throttle, rate, _ in self._sides:
            value = settings.entry(rate).layers[0][1]
            assert isinstance(value, int), f"{rate} is a number"
            throttle.quota.bytes_per_second = value

    def _take_replicas(self, image: ClusterImage, names: Iterable[str]) -> None:
        for name in names:
            topic = image.topics.get(name)
            if topic is not None:
                self._set_replicas(topic.topic_id, image.topic_overrides(name))

    def _set_replicas(self, topic_id: TopicId, overrides: Mapping[str, str]) -> None:
        for throttle, _, replicas in self._sides:
            throttle.set_partitions(topic_id, _partitions(replicas, overrides.get(replicas, ""), self._broker_id))

    @property
    def sent_rate(self) -> float:
        """Bytes per second of throttled replicas that were sent, in the window of the quota."""
        return self.leader.quota.rate(self._clock.monotonic_ms())

    @property
    def fetched_rate(self) -> float:
        """Bytes per second of throttled replicas that were fetched, in the window of the quota."""
        return self.follower.quota.rate(self._clock.monotonic_ms())

    # As a leader

    def holds_back(self, partition: Partition, replica_id: BrokerId) -> bool:
        """Whether this follower gets no records for now: a follower out of sync, while the rate exceeds the quota."""
        throttle, state = self.leader, partition.state
        if throttle.is_idle or state is None or replica_id in state.in_sync_replicas:
            return False
        if not throttle.is_throttled(partition.topic_id, partition.topic_partition.partition):
            return False
        return throttle.holds_until_ms(self._clock.monotonic_ms()) is not None

    def count_sent(self, partition: Partition, size_bytes: int) -> None:
        """Count bytes that leave for a follower."""
        throttle = self.leader
        if not throttle.is_idle:
            now_ms = self._clock.monotonic_ms()
            throttle.count(partition.topic_id, partition.topic_partition.partition, size_bytes, now_ms)


def _partitions(setting: str, text: str, broker_id: BrokerId) -> frozenset[int] | None:
    """The partitions of this broker in the value of a topic's setting. An illegal value, which only another release
    accepts, names no partition."""
    try:
        words = TOPIC_SETTINGS[setting].parse(text)
    except KafkaError:
        return _NONE
    assert isinstance(words, tuple), f"{setting} is a list"
    if words == ("*",):
        return ALL_PARTITIONS
    replicas = (tuple(map(int, word.split(":"))) for word in words)
    return frozenset(partition for partition, broker in replicas if broker == broker_id)
