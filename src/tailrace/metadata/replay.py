"""Records in, image out: the only code that makes a new image.

A record that does not fit the image (a partition of a topic that is not there, derived changes that come out otherwise)
means that this node and the leader disagree about the past. That is a broken invariant: AssertionError, and the process
stops.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, assert_never, cast

from tailrace.metadata import derive
from tailrace.metadata.derive import Derived, Steps
from tailrace.metadata.image import (
    ALL_BROKERS,
    BrokerImage,
    ClusterImage,
    ConfigResource,
    ImageDelta,
    RecordKey,
    RecordKind,
    ResourceType,
    changed_flag,
    created_partition,
    registered_broker,
    registered_controller,
    sorted_resources,
)
from tailrace.metadata.persistent_map import MapDraft
from tailrace.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    NOT_DERIVED,
    OLDEST_METADATA_VERSION,
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
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
    ZkMigrationStateRecord,
)
from tailrace.metadata.stored_partitions import StoredChange, StoredPartition, StoredRecord
from tailrace.metadata.topics_draft import FinishedTopics, TopicsDraft
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.steps import result_of


class DraftCircumstances:
    """As it stands between two records of a replay. Settings are looked up once for each topic."""

    def __init__(
        self,
        topic_names: MapDraft[TopicId, str],
        configs: MapDraft[ConfigResource, Mapping[str, str]],
        brokers: MapDraft[BrokerId, BrokerImage],
    ) -> None:
        self._topic_names = topic_names
        self._configs = configs
        self._defaults = configs.get(ALL_BROKERS) or {}
        self._alive = {broker.broker_id for broker in brokers.values() if broker.is_alive}
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
        own = self._configs.get(ConfigResource(ResourceType.TOPIC, self._topic_names[topic_id]))
        found = None if own is None else own.get(name)
        return self._defaults.get(name) if found is None else found


BrokerEvent = RegisterBrokerRecord | FenceBrokerRecord | UnfenceBrokerRecord | BrokerRegistrationChangeRecord
"""The records from which partition changes are derived."""
_RareRecord = (
    UnregisterBrokerRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | RegisterControllerRecord
    | NoOpRecord
    | ZkMigrationStateRecord
    | ClearElrRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
)
BROKER_EVENTS = (RegisterBrokerRecord, FenceBrokerRecord, UnfenceBrokerRecord, BrokerRegistrationChangeRecord)


def apply(image: ClusterImage, record: MetadataRecord) -> ClusterImage:
    """The image after one record."""
    return apply_all(image, (record,))[0]


def apply_all(image: ClusterImage, records: Iterable[MetadataRecord]) -> tuple[ClusterImage, ImageDelta]:
    """The image after these records, and their changes."""
    replay = Replay(image)
    for record in records:
        replay.apply(record)
    return replay.finish()


def derivation(image: ClusterImage, record: BrokerEvent) -> Steps[Derived]:
    """The changes that follow from this record for the partitions of this image, the one before it, with their
    checksum, in steps."""
    return Replay(image).derived(record)


class Foreseen(NamedTuple):
    """A record, and the changes derived from it already, when it was decided on, from the image before it."""

    record: MetadataRecord
    derived: Derived


class Replay:
    """An image under construction: what `apply_all` does in one go, in as many as its caller likes."""

    def __init__(self, image: ClusterImage, foreseen: Foreseen | None = None) -> None:
        self._foreseen = foreseen
        self._topics = TopicsDraft(image)
        self._configs = MapDraft(image.configs)
        self._brokers = MapDraft(image.brokers)
        self._controllers = MapDraft(image.controllers)
        self._features = MapDraft(image.features)
        self._next_producer_id = image.next_producer_id
        # Only a replay makes an open transaction, of stored records.
        kept = cast("tuple[StoredRecord, ...] | None", image.open_transaction)
        self._transaction = None if kept is None else list(kept)
        self._changed_configs: set[ConfigResource] = set()
        self._changed_brokers: set[BrokerId] = set()
        self._superseded: set[RecordKey] = set()

    def steps(self, records: Iterable[StoredRecord]) -> Steps[None]:
        """Take these records, in steps of a few milliseconds."""
        for index, record in enumerate(records, 1):
            if isinstance(record, BROKER_EVENTS) and self._transaction is None:
                yield from self._event(record)
            else:
                self.apply(record)
            if index % derive.SLICE == 0:
                yield

    def apply(self, record: StoredRecord) -> None:
        """Take one record, as it is or as `RecordReader` reads it."""
        if self._transaction is not None and not isinstance(record, EndTransactionRecord | AbortTransactionRecord):
            assert not isinstance(record, BeginTransactionRecord), "a transaction within a transaction"
            self._transaction.append(record)
        elif isinstance(record, StoredPartition):
            self._topics.create_partition(*record)
        elif isinstance(record, StoredChange):
            self._topics.change_partition(*record)
        else:
            self._apply(record)

    def _apply(self, record: MetadataRecord) -> None:
        match record:
            case PartitionRecord():
                topic_id = TopicId(record.topic_id)
                self._topics.create_partition(record.partition_id, created_partition(topic_id, record))
            case PartitionChangeRecord():
                self._topics.change_partition(TopicId(record.topic_id), record.partition_id, record)
            case TopicRecord():
                self._topics.create(record.name, TopicId(record.topic_id))
            case RemoveTopicRecord():
                self._remove_topic(TopicId(record.topic_id))
            case ConfigRecord():
                self._set_config(record)
            case (
                RegisterBrokerRecord() | FenceBrokerRecord() | UnfenceBrokerRecord() | BrokerRegistrationChangeRecord()
            ):
                result_of(self._event(record))
            case _:
                self._apply_rare(record)

    def _apply_rare(self, record: _RareRecord) -> None:
        match record:
            case UnregisterBrokerRecord():
                broker = self._broker(record.broker_id, record.broker_epoch)
                del self._brokers[broker.broker_id]
                self._changed_brokers.add(broker.broker_id)
                self._superseded.add((RecordKind.BROKER, broker.broker_id))
            case FeatureLevelRecord():
                self._set_feature(record)
            case ProducerIdsRecord():
                assert record.next_producer_id > self._next_producer_id, "a block of producer ids was given twice"
                if self._next_producer_id:
                    self._superseded.add((RecordKind.PRODUCER_IDS,))
                self._next_producer_id = record.next_producer_id
            case RegisterControllerRecord():
                self._register_controller(record)
            case NoOpRecord() | ZkMigrationStateRecord():
                pass
            case ClearElrRecord():
                self._topics.clear_eligible_leaders(record.topic_name)
            case BeginTransactionRecord():
                self._transaction = []
            case AbortTransactionRecord():
                self._closed_transaction()
            case EndTransactionRecord():
                for one in self._closed_transaction():
                    self.apply(one)
            case _:
                assert_never(record)

    def _closed_transaction(self) -> "list[StoredRecord]":
        records, self._transaction = self._transaction, None
        assert records is not None, "no transaction has begun"
        return records

    def _remove_topic(self, topic_id: TopicId) -> None:
        resource = ConfigResource(ResourceType.TOPIC, self._topics.remove(topic_id))
        if resource in self._configs:
            self._superseded.update((RecordKind.SETTING, resource, name) for name in self._configs[resource])
            del self._configs[resource]
            self._changed_configs.add(resource)

    # Settings and features

    def _set_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        overrides = dict(self._configs.get(resource) or {})
        if overrides.get(record.name, record.value) != record.value:
            self._superseded.add((RecordKind.SETTING, resource, record.name))
        if record.value is None:
            overrides.pop(record.name, None)
        else:
            overrides[record.name] = record.value
        if overrides:
            self._configs[resource] = overrides
        elif resource in self._configs:
            del self._configs[resource]
        self._changed_configs.add(resource)

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.name == METADATA_VERSION_FEATURE:
            _check_metadata_version(record.feature_level)
        if self._features.get(record.name) not in (None, record.feature_level):
            self._superseded.add((RecordKind.FEATURE, record.name))
        if record.feature_level != 0:
            self._features[record.name] = record.feature_level
        elif record.name in self._features:
            del self._features[record.name]

    # Brokers and controllers, and what follows for partitions

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        controller_id = BrokerId(record.controller_id)
        if controller_id in self._controllers:
            self._superseded.add((RecordKind.CONTROLLER, controller_id))
        self._controllers[controller_id] = registered_controller(record)

    def derived(self, record: BrokerEvent) -> Steps[Derived]:
        """The changes that follow from this record for the partitions as they are now."""
        match record:
            case UnfenceBrokerRecord():
                partitions, circumstances = self._topics.partitions(), self._circumstances()
                return derive.arrival_steps(BrokerId(record.id), partitions, circumstances)
            case FenceBrokerRecord():
                return self._departed(BrokerId(record.id))
            case BrokerRegistrationChangeRecord():
                if record.in_controlled_shutdown <= 0:
                    return _nothing()
                return self._departed(BrokerId(record.broker_id))
            case RegisterBrokerRecord():
                return self._departed(BrokerId(record.broker_id), unclean=record.is_unclean)

    def _departed(self, broker_id: BrokerId, *, unclean: bool = False) -> Steps[Derived]:
        if broker_id not in self._brokers:
            return _nothing()
        return derive.departure_steps(broker_id, self._topics.partitions(), self._circumstances(), unclean=unclean)

    def _circumstances(self) -> DraftCircumstances:
        return DraftCircumstances(self._topics.names, self._configs, self._brokers)

    def _event(self, record: BrokerEvent) -> Steps[None]:
        yield from self._apply_derived(record)
        match record:
            case RegisterBrokerRecord():
                self._put_broker(registered_broker(record))
            case FenceBrokerRecord():
                self._put_broker(replace(self._broker(record.id, record.epoch), fenced=True))
            case UnfenceBrokerRecord():
                self._put_broker(replace(self._broker(record.id, record.epoch), fenced=False))
            case BrokerRegistrationChangeRecord():
                self._change_registration(record)

    def _apply_derived(self, record: BrokerEvent) -> Steps[None]:
        if record.derived_count == NOT_DERIVED:
            return
        if self._foreseen is not None and self._foreseen.record is record:
            derived = self._foreseen.derived
        else:
            derived = yield from self.derived(record)
        found = (len(derived.changes), derived.crc)
        assert found == (record.derived_count, record.derived_crc), (
            f"from {record!r} this node derives {found[0]} changes with checksum {found[1]}: it must not go on"
        )
        for index, change in enumerate(derived.changes, 1):
            self._topics.set_partition(*change)
            if index % derive.SLICE == 0:
                yield

    def _broker(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self._brokers[BrokerId(broker_id)]
        assert broker.broker_epoch == broker_epoch, f"a record of another registration of broker {broker_id}"
        return broker

    def _put_broker(self, broker: BrokerImage) -> None:
        if broker.broker_id in self._brokers:
            self._superseded.add((RecordKind.BROKER, broker.broker_id))
        self._brokers[broker.broker_id] = broker
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

    # The end

    def finish(self) -> tuple[ClusterImage, ImageDelta]:
        """The image and its changes. Nothing can be applied any more."""
        return result_of(self.finishing())

    def finishing(self) -> Steps[tuple[ClusterImage, ImageDelta]]:
        """`finish` in steps."""
        topics = self._topics.finish()
        image = self._image(topics)
        changed = yield from self._topics.changed()
        return image, ImageDelta(
            created_topics=self._topics.created(topics),
            deleted_topics=self._topics.deleted,
            removed_ids=tuple(self._topics.removed),
            changed_partitions=changed,
            changed_configs=sorted_resources(self._changed_configs),
            changed_brokers=tuple(sorted(self._changed_brokers)),
            superseded=self._superseded | self._topics.superseded,
        )

    def image(self) -> ClusterImage:
        """The image alone, without a word on every single partition. Nothing can be applied any more."""
        return self._image(self._topics.finish())

    def _image(self, topics: FinishedTopics) -> ClusterImage:
        return ClusterImage(
            topics=topics.topics,
            topic_names=topics.topic_names,
            confusable_names=topics.confusable_names,
            configs=self._configs.finish(),
            brokers=self._brokers.finish(),
            controllers=self._controllers.finish(),
            features=self._features.finish(),
            next_producer_id=self._next_producer_id,
            replica_counts=topics.replica_counts,
            leader_counts=topics.leader_counts,
            open_transaction=None if self._transaction is None else tuple(self._transaction),
        )


def _check_metadata_version(level: int) -> None:
    """Raises KafkaError UNSUPPORTED_VERSION for a level whose records or rules this release does not have."""
    if level == 0 or OLDEST_METADATA_VERSION <= level <= METADATA_VERSION:
        return
    if level > METADATA_VERSION:
        way_out = "start this node with a newer release"
    else:
        way_out = (
            "start the nodes with the release that wrote this log, raise the level there, and go on with this release"
            " when each node has a metadata snapshot behind the raise; or begin with empty directories"
        )
    raise KafkaError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"the metadata log has {METADATA_VERSION_FEATURE} {level}, and this release knows {OLDEST_METADATA_VERSION} to"
        f" {METADATA_VERSION}; {way_out}",
    )


def _nothing() -> Steps[Derived]:
    yield from ()
    return derive.NOTHING
