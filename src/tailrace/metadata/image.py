"""The cluster as it stands after some record of the metadata log: an immutable value.

1. An image is a function of the records before it and of nothing else; two nodes at the same offset have equal images.
2. Records of one batch are applied together: `apply_all` gives an image only if every record fits.
3. Images share the parts that did not change; `persistent_map` describes the cost of a change.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tailrace.metadata.feature_levels import FIRST_WITH_KEY_RANGES
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.sinks import SINKS_FEATURE

Empty: Mapping[str, str] = MappingProxyType({})


class ResourceType(IntEnum):
    """The type of resource that a setting belongs to, as on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A topic, broker or other owner of settings. The broker with the empty name stands for all brokers."""

    type: int
    name: str


ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address at which a broker listens."""

    listener_name: str
    host: str
    port: int
    security_protocol: int = 0
    """0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""


class SupportedFeature(NamedTuple):
    """The levels of a feature that a process can work with."""

    name: str
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerImage:
    """A registered controller with its listeners and features."""

    controller_id: BrokerId
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """A registered broker."""

    broker_id: BrokerId
    incarnation_id: bytes
    """16 random bytes per start of the process."""
    broker_epoch: int
    """The offset of the registration's record. A later registration has a higher offset, so the epoch tells processes
    of the same broker apart."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = True
    """A fenced broker leads nothing and is not shown to clients."""
    in_controlled_shutdown: bool = False
    log_directories: tuple[bytes, ...] = ()
    features: tuple[SupportedFeature, ...] = ()

    @property
    def is_alive(self) -> bool:
        """Whether the broker may lead and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """The address of the listener of this name."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener_name == listener_name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic and its partitions, by number."""

    name: str
    topic_id: TopicId
    partitions: Mapping[int, PartitionState]

    def stored_as(self, number: int) -> TopicPartition:
        """The partition whose replicas have the records of this partition: for a view, a partition of the source topic
        (`metadata.views`)."""
        return TopicPartition(self.name, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """The state that the cluster has agreed on."""

    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[TopicId, str] = field(default_factory=dict)
    confusable_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The topic names with '.' or '_', by `confusable_form`. Two names of the same form would share a metric name, so
    the second topic is refused.

    Kafka's controller lets one request create several topics of the same form.
    """
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[BrokerId, ControllerImage] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    """The finalized level of each feature; `metadata.version` says which records may be in the log."""
    next_producer_id: int = 0
    replica_counts: Mapping[BrokerId, int] = field(default_factory=dict)
    """The number of replicas on each broker that has replicas; follows from `topics`."""
    leader_counts: Mapping[BrokerId, int] = field(default_factory=dict)
    """The number of partitions that each broker leads; follows from `topics`."""
    tables: Mapping[str, Mapping[Hashable, object]] = field(default_factory=dict)
    """State of record kinds that has no field here, by the name of its table (`image_draft.ImageTable`)."""
    open_transaction: tuple[object, ...] | None = None
    """The records of an open transaction, which take effect at its end (KIP-868). A snapshot cannot state these
    records, so no snapshot is written meanwhile."""

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        """The topic of this id, if it exists."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        """The state of one partition, if it exists."""
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition)

    def overrides(self, resource: ConfigResource) -> Mapping[str, str]:
        """The settings of this resource itself, without defaults."""
        return self.configs.get(resource, Empty)

    def topic_overrides(self, topic: str) -> Mapping[str, str]:
        """The settings of this topic itself, without defaults."""
        return self.overrides(ConfigResource(ResourceType.TOPIC, topic))

    def group_overrides(self, group_id: str) -> Mapping[str, str]:
        """The settings of this group itself, without defaults."""
        return self.overrides(ConfigResource(ResourceType.GROUP, group_id))

    def cluster_setting(self, topic: str, name: str) -> str | None:
        """The replicated setting of this topic: the topic's own value, else the value for all brokers."""
        own = self.topic_overrides(topic).get(name)
        return self.overrides(ALL_BROKERS).get(name) if own is None else own

    @property
    def metadata_version(self) -> int | None:
        """The finalized level of metadata.version; None in a log that names no level."""
        return self.features.get("metadata.version")

    @property
    def knows_key_ranges(self) -> bool:
        """Whether all brokers know key ranges and committed ranges (KIP-X)."""
        return (self.metadata_version or 0) >= FIRST_WITH_KEY_RANGES

    @property
    def knows_sinks(self) -> bool:
        """Whether all registered brokers, fenced brokers included, know sinks (decision 0063)."""
        return bool(self.brokers) and self.broker_without_sinks is None

    @property
    def broker_without_sinks(self) -> BrokerId | None:
        """The first broker whose registration does not name the feature of sinks; None if every registration names
        it."""
        lacking = (
            broker_id
            for broker_id, broker in self.brokers.items()
            if not any(feature.name == SINKS_FEATURE for feature in broker.features)
        )
        return min(lacking, default=None)

    def partitions(self) -> Iterator[tuple[TopicId, int, PartitionState]]:
        """Every partition of the cluster."""
        for topic in self.topics.values():
            for number, state in topic.partitions.items():
                yield topic.topic_id, number, state

    def alive_brokers(self) -> list[BrokerImage]:
        """The brokers that may lead, by id."""
        return sorted((broker for broker in self.brokers.values() if broker.is_alive), key=lambda b: b.broker_id)


EMPTY_IMAGE = ClusterImage()


class ChangedPartition(NamedTuple):
    """A partition of a topic that is not new, in its new state."""

    topic_partition: TopicPartition
    state: PartitionState


RecordKey = tuple[int, *tuple[Any, ...]]
"""The name of a record in a snapshot: Kafka's number of the record's kind, and the fields that identify a record of
this kind (`records.key_of`)."""
TOPIC_RECORD: Final = 2
PARTITION_RECORD: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDelta:
    """The difference between two images, for components that act on changes."""

    created_topics: tuple[TopicImage, ...] = ()
    deleted_topics: tuple[TopicImage, ...] = ()
    """The deleted topics, as they were. A topic that was deleted and created again is in `created_topics` too, with
    another id."""
    removed_ids: tuple[TopicId, ...] = field(default=(), compare=False)
    """Topics that a record has removed, also topics that existed only between these two images. Empty where no records
    are known that lead from one image to the other."""
    changed_partitions: tuple[ChangedPartition, ...] = ()
    changed_configs: tuple[ConfigResource, ...] = ()
    changed_brokers: tuple[BrokerId, ...] = ()
    """The brokers that are newly registered, changed or unregistered."""
    changed_tables: tuple[str, ...] = ()
    """The names of `ClusterImage.tables` with other entries."""
    superseded: Set[RecordKey] = field(default=frozenset(), compare=False, repr=False)
    """Records of a snapshot that have been modified or deleted; some of these records may have existed only between the
    two images. Empty where no records are known that lead from one image to the other, and in `pieces`."""
    stated: Set[RecordKey] = field(default=frozenset(), compare=False, repr=False)
    """Records of a snapshot that log records have stated again, perhaps with the same value. Empty where `superseded`
    is empty because no records are known."""

    def pieces(self, size: int) -> "Iterator[ImageDelta]":
        """The same changes in portions of about `size` partitions, so that each takes a short time to act on.

        Partitions first, brokers last: a leader that stops waiting for a dead follower must already have its new role.
        A topic is never split. Settings come with the brokers, for partitions that did not change otherwise; a changed
        partition gets the settings of the image at once. So a changed partition gets its state and its settings
        together. If the two came apart, either order would be wrong: a raised `min.insync.replicas` must not come after
        the state that was decided under the raised value, and a lowered `min.insync.replicas` must not come before the
        state that ends a leadership.
        """
        if (
            _partitions_in(self.deleted_topics) + _partitions_in(self.created_topics) + len(self.changed_partitions)
            <= size
        ):
            yield self
            return
        if self.removed_ids:
            yield ImageDelta(removed_ids=self.removed_ids)
        for topics in _portions(self.deleted_topics, size):
            yield ImageDelta(deleted_topics=topics)
        for topics in _portions(self.created_topics, size):
            yield ImageDelta(created_topics=topics)
        for start in range(0, len(self.changed_partitions), size):
            yield ImageDelta(changed_partitions=self.changed_partitions[start : start + size])
        if self.changed_configs or self.changed_brokers or self.changed_tables:
            yield ImageDelta(
                changed_configs=self.changed_configs,
                changed_brokers=self.changed_brokers,
                changed_tables=self.changed_tables,
            )


def _partitions_in(topics: Iterable[TopicImage]) -> int:
    return sum(len(topic.partitions) for topic in topics)


def _portions(topics: Iterable[TopicImage], size: int) -> Iterator[tuple[TopicImage, ...]]:
    portion: list[TopicImage] = []
    count = 0
    for topic in topics:
        portion.append(topic)
        count += max(len(topic.partitions), 1)
        if count >= size:
            yield tuple(portion)
            portion, count = [], 0
    if portion:
        yield tuple(portion)


def confusable_form(name: str) -> str | None:
    """The form that names which differ only in '.' and '_' share, or None for a name with neither."""
    return name.replace(".", "_") if "." in name or "_" in name else None


def full_delta(image: ClusterImage) -> ImageDelta:
    """The delta from an empty image to this image: the changes for a node that has just started."""
    return ImageDelta(
        created_topics=tuple(image.topics.values()),
        changed_configs=tuple(image.configs),
        changed_brokers=tuple(image.brokers),
        changed_tables=tuple(image.tables),
    )
