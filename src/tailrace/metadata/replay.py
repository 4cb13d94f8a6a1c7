"""Records in, image out: the only code that makes a new image.

A record that does not fit the image (a partition of a topic that is not there, derived changes that come out otherwise)
means that this node and the leader disagree about the past. That is a broken invariant: AssertionError, and the process
stops.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar, assert_never

from tailrace.metadata import derive
from tailrace.metadata.image import (
    ALL_BROKERS,
    BrokerImage,
    ChangedPartition,
    ClusterImage,
    ConfigResource,
    ImageDelta,
    ResourceType,
    TopicImage,
    confusable_form,
    sorted_resources,
)
from tailrace.metadata.image_values import (
    changed_flag,
    changed_partition,
    created_partition,
    registered_broker,
    registered_controller,
)
from tailrace.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    NOT_DERIVED,
    OLDEST_METADATA_VERSION,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition

K = TypeVar("K")
V = TypeVar("V")

BrokerEvent = RegisterBrokerRecord | FenceBrokerRecord | UnfenceBrokerRecord | BrokerRegistrationChangeRecord
"""The records from which partition changes are derived."""


def apply(image: ClusterImage, record: MetadataRecord) -> ClusterImage:
    """The image after one record."""
    return apply_all(image, (record,))[0]


def apply_all(image: ClusterImage, records: Iterable[MetadataRecord]) -> tuple[ClusterImage, ImageDelta]:
    """The image after these records, and what they changed."""
    replay = Replay(image)
    for record in records:
        replay.apply(record)
    return replay.finish()


def derived_changes(image: ClusterImage, record: BrokerEvent) -> tuple[derive.PartitionChange, ...]:
    """What follows from this record for the partitions of this image, the one before it."""
    return Replay(image).derived(record)


class _Draft(Generic[K, V]):
    """A map that is copied when it is first written to."""

    __slots__ = ("_own", "current")

    def __init__(self, base: Mapping[K, V]) -> None:
        self.current = base
        self._own: dict[K, V] | None = None

    def writable(self) -> dict[K, V]:
        if self._own is None:
            self._own = dict(self.current)
            self.current = self._own
        return self._own


class _Circumstances:
    """What rules may look at, as it stands between two records. Settings are looked up once for each topic."""

    def __init__(
        self,
        topic_names: Mapping[TopicId, str],
        configs: Mapping[ConfigResource, Mapping[str, str]],
        brokers: Mapping[BrokerId, BrokerImage],
    ) -> None:
        self._topic_names = topic_names
        self._configs = configs
        self._defaults = configs.get(ALL_BROKERS, {})
        self._alive = {broker_id for broker_id, broker in brokers.items() if broker.is_alive}
        self._min_in_sync: dict[TopicId, int] = {}
        self._unclean_election: dict[TopicId, bool] = {}

    def is_alive(self, broker_id: BrokerId, /) -> bool:
        return broker_id in self._alive

    def min_in_sync_replicas(self, topic_id: TopicId, /) -> int:
        known = self._min_in_sync.get(topic_id)
        if known is None:
            known = self._min_in_sync[topic_id] = int(self._setting(topic_id, "min.insync.replicas") or 1)
        return known

    def allows_unclean_election(self, topic_id: TopicId, /) -> bool:
        known = self._unclean_election.get(topic_id)
        if known is None:
            known = self._setting(topic_id, "unclean.leader.election.enable") == "true"
            self._unclean_election[topic_id] = known
        return known

    def _setting(self, topic_id: TopicId, name: str) -> str | None:
        topic = ConfigResource(ResourceType.TOPIC, self._topic_names[topic_id])
        own = self._configs.get(topic, {}).get(name)
        return self._defaults.get(name) if own is None else own


class Replay:
    """An image under construction: what `apply_all` does in one go, in as many as its caller likes."""

    def __init__(self, image: ClusterImage) -> None:
        self._before = image
        self._topics = _Draft(image.topics)
        self._topic_names = _Draft(image.topic_names)
        self._confusable_names = _Draft(image.confusable_names)
        self._configs = _Draft(image.configs)
        self._brokers = _Draft(image.brokers)
        self._controllers = _Draft(image.controllers)
        self._features = _Draft(image.features)
        self._next_producer_id = image.next_producer_id
        self._partitions: dict[TopicId, dict[int, PartitionState]] = {}
        """The topics whose partitions have changed so far; the topic's own image is made once, at the end."""
        self._created: dict[TopicId, None] = {}
        self._deleted: list[TopicImage] = []
        self._changed_partitions: dict[tuple[TopicId, int], None] = {}
        self._changed_configs: set[ConfigResource] = set()
        self._changed_brokers: set[BrokerId] = set()

    def apply(self, record: MetadataRecord) -> None:
        """Take one record."""
        match record:
            case TopicRecord():
                self._create_topic(record)
            case PartitionRecord():
                self._create_partition(record)
            case PartitionChangeRecord():
                self._change_partition(record)
            case RemoveTopicRecord():
                self._remove_topic(TopicId(record.topic_id))
            case ConfigRecord():
                self._set_config(record)
            case RegisterBrokerRecord():
                self._apply_derived(record)
                self._put_broker(registered_broker(record))
            case FenceBrokerRecord():
                self._apply_derived(record)
                self._put_broker(replace(self._broker(record.id, record.epoch), fenced=True))
            case UnfenceBrokerRecord():
                self._apply_derived(record)
                self._put_broker(replace(self._broker(record.id, record.epoch), fenced=False))
            case BrokerRegistrationChangeRecord():
                self._apply_derived(record)
                self._change_registration(record)
            case UnregisterBrokerRecord():
                broker = self._broker(record.broker_id, record.broker_epoch)
                del self._brokers.writable()[broker.broker_id]
                self._changed_brokers.add(broker.broker_id)
            case FeatureLevelRecord():
                self._set_feature(record)
            case ProducerIdsRecord():
                assert record.next_producer_id > self._next_producer_id, "a block of producer ids was given twice"
                self._next_producer_id = record.next_producer_id
            case RegisterControllerRecord():
                self._controllers.writable()[BrokerId(record.controller_id)] = registered_controller(record)
            case NoOpRecord():
                pass
            case _:
                assert_never(record)

    def _create_topic(self, record: TopicRecord) -> None:
        assert record.name not in self._topics.current, f"topic {record.name} was created twice"
        topic_id = TopicId(record.topic_id)
        self._topics.writable()[record.name] = TopicImage(name=record.name, topic_id=topic_id, partitions={})
        self._topic_names.writable()[topic_id] = record.name
        self._partitions[topic_id] = {}
        self._created[topic_id] = None
        form = confusable_form(record.name)
        if form is not None:
            self._confusable_names.writable()[form] = record.name

    def _create_partition(self, record: PartitionRecord) -> None:
        topic_id = TopicId(record.topic_id)
        partitions = self._partitions_of(topic_id)
        assert record.partition_id not in partitions, f"partition {record.partition_id} was created twice"
        state = created_partition(topic_id, record)
        self._put_partition(topic_id, record.partition_id, state)

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        topic_id = TopicId(record.topic_id)
        state = self._partitions_of(topic_id)[record.partition_id]
        changed = changed_partition(state, record)
        self._put_partition(topic_id, record.partition_id, changed)

    def _put_partition(self, topic_id: TopicId, number: int, state: PartitionState) -> None:
        self._partitions_of(topic_id)[number] = state
        self._changed_partitions[topic_id, number] = None

    def _partitions_of(self, topic_id: TopicId) -> dict[int, PartitionState]:
        found = self._partitions.get(topic_id)
        if found is None:
            name = self._topic_names.current[topic_id]
            found = self._partitions[topic_id] = dict(self._topics.current[name].partitions)
        return found

    def _remove_topic(self, topic_id: TopicId) -> None:
        name = self._topic_names.writable().pop(topic_id)
        del self._topics.writable()[name]
        self._partitions.pop(topic_id, None)
        if topic_id in self._created:
            del self._created[topic_id]
        else:
            self._deleted.append(self._before.topics[name])
        form = confusable_form(name)
        if form is not None:
            del self._confusable_names.writable()[form]
        resource = ConfigResource(ResourceType.TOPIC, name)
        if resource in self._configs.current:
            del self._configs.writable()[resource]
            self._changed_configs.add(resource)

    def _set_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        overrides = dict(self._configs.current.get(resource, {}))
        if record.value is None:
            overrides.pop(record.name, None)
        else:
            overrides[record.name] = record.value
        if overrides:
            self._configs.writable()[resource] = overrides
        else:
            self._configs.writable().pop(resource, None)
        self._changed_configs.add(resource)

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.name == METADATA_VERSION_FEATURE and record.feature_level > METADATA_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster runs {METADATA_VERSION_FEATURE} {record.feature_level} and this release knows up to"
                f" {METADATA_VERSION}; start this node with a newer release",
            )
        if record.feature_level == 0:
            self._features.writable().pop(record.name, None)
        else:
            self._features.writable()[record.name] = record.feature_level

    def derived(self, record: BrokerEvent) -> tuple[derive.PartitionChange, ...]:
        rules = derive.rules_of(self._features.current.get(METADATA_VERSION_FEATURE, OLDEST_METADATA_VERSION))
        match record:
            case UnfenceBrokerRecord():
                return derive.on_arrival(BrokerId(record.id), self._all_partitions(), self._circumstances(), rules)
            case FenceBrokerRecord():
                return self._departed(BrokerId(record.id), rules)
            case BrokerRegistrationChangeRecord():
                if rules is derive.rules_of(derive.OLDEST) or record.in_controlled_shutdown <= 0:
                    return ()
                return self._departed(BrokerId(record.broker_id), rules)
            case RegisterBrokerRecord():
                return self._departed(BrokerId(record.broker_id), rules, unclean=record.is_unclean)

    def _departed(
        self, broker_id: BrokerId, rules: derive.Rules, *, unclean: bool = False
    ) -> tuple[derive.PartitionChange, ...]:
        if broker_id not in self._brokers.current:
            return ()
        return derive.on_departure(broker_id, self._all_partitions(), self._circumstances(), rules, unclean=unclean)

    def _circumstances(self) -> "_Circumstances":
        return _Circumstances(self._topic_names.current, self._configs.current, self._brokers.current)

    def _apply_derived(self, record: BrokerEvent) -> None:
        if record.derived_count == NOT_DERIVED:
            return
        changes = self.derived(record)
        found = (len(changes), derive.checksum(changes))
        assert found == (record.derived_count, record.derived_crc), (
            f"from {record!r} this node derives {found[0]} changes with checksum {found[1]}: it must not go on"
        )
        for change in changes:
            self._put_partition(change.topic_id, change.partition, change.state)

    def _all_partitions(self) -> Iterable[tuple[TopicId, int, PartitionState]]:
        for topic in self._topics.current.values():
            partitions = self._partitions.get(topic.topic_id, topic.partitions)
            for number, state in partitions.items():
                yield topic.topic_id, number, state

    def _broker(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self._brokers.current[BrokerId(broker_id)]
        assert broker.broker_epoch == broker_epoch, f"a record of another registration of broker {broker_id}"
        return broker

    def _put_broker(self, broker: BrokerImage) -> None:
        self._brokers.writable()[broker.broker_id] = broker
        self._changed_brokers.add(broker.broker_id)

    def _change_registration(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        self._put_broker(
            replace(
                broker,
                fenced=changed_flag(broker.fenced, record.fenced),
                in_controlled_shutdown=changed_flag(broker.in_controlled_shutdown, record.in_controlled_shutdown),
                log_directories=record.log_dirs or broker.log_directories,
            )
        )

    def finish(self) -> tuple[ClusterImage, ImageDelta]:
        """The image, and what is new in it. Nothing can be applied any more."""
        image = self.image()
        return image, self._delta(image)

    def image(self) -> ClusterImage:
        """The image alone, without a word on every single partition. Nothing can be applied any more."""
        for topic_id, partitions in self._partitions.items():
            name = self._topic_names.current[topic_id]
            self._topics.writable()[name] = TopicImage(name=name, topic_id=topic_id, partitions=partitions)
        return ClusterImage(
            topics=self._topics.current,
            topic_names=self._topic_names.current,
            confusable_names=self._confusable_names.current,
            configs=self._configs.current,
            brokers=self._brokers.current,
            controllers=self._controllers.current,
            features=self._features.current,
            next_producer_id=self._next_producer_id,
        )

    def _delta(self, image: ClusterImage) -> ImageDelta:
        changed = [
            ChangedPartition(TopicPartition(image.topic_names[topic_id], number), self._partitions[topic_id][number])
            for topic_id, number in self._changed_partitions
            if topic_id not in self._created and topic_id in image.topic_names
        ]
        return ImageDelta(
            created_topics=tuple(image.topics[image.topic_names[topic_id]] for topic_id in self._created),
            deleted_topics=tuple(self._deleted),
            changed_partitions=tuple(changed),
            changed_configs=sorted_resources(self._changed_configs),
            changed_brokers=tuple(sorted(self._changed_brokers)),
        )
