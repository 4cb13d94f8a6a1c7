"""An image under construction: the functions of record kinds write their changes into this draft."""

from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar, cast

from tailrace.metadata.derive import Steps
from tailrace.metadata.image import (
    ALL_BROKERS,
    BrokerImage,
    ClusterImage,
    ConfigResource,
    ControllerImage,
    ImageDelta,
    RecordKey,
    ResourceType,
)
from tailrace.metadata.persistent_map import MapDraft
from tailrace.metadata.topics_draft import FinishedTopics, TopicsDraft
from tailrace.model.ids import BrokerId, TopicId

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_NO_ENTRIES: Final[Mapping[Hashable, object]] = MappingProxyType({})
"""A table without entries: the same object each time, as with entries that do not change."""


class ImageTable(Generic[K, V]):
    """A part of the image that belongs to one record kind: entries by key, in the order in which the entries came."""

    def __init__(self, name: str) -> None:
        """`name` is the name of the table in `ClusterImage.tables` and `ImageDelta.changed_tables`."""
        self.name = name

    def of(self, image: ClusterImage) -> Mapping[K, V]:
        """The entries of an image."""
        return cast("Mapping[K, V]", image.tables.get(self.name, _NO_ENTRIES))

    def draft(self, draft: "ImageDraft") -> MapDraft[K, V]:
        """The entries of a draft, to be written."""
        return cast("MapDraft[K, V]", draft.table(self.name))

    def get(self, state: "ClusterImage | ImageDraft", key: K) -> V | None:
        """The entry of this key, in an image or a draft."""
        return self.draft(state).get(key) if isinstance(state, ImageDraft) else self.of(state).get(key)


class ImageDraft:
    """The next image. A change that does not fit is a broken invariant: AssertionError."""

    def __init__(self, image: ClusterImage) -> None:
        self.superseded: set[RecordKey] = set()
        """See `ImageDelta.superseded`."""
        self.stated: set[RecordKey] = set()
        """See `ImageDelta.stated`."""
        self.topics = TopicsDraft(image, self.superseded)
        self.configs = MapDraft(image.configs)
        self.brokers = MapDraft(image.brokers)
        self.controllers: MapDraft[BrokerId, ControllerImage] = MapDraft(image.controllers)
        self.features = MapDraft(image.features)
        self.next_producer_id = image.next_producer_id
        self.open_transaction = None if image.open_transaction is None else list(image.open_transaction)
        self.changed_configs: set[ConfigResource] = set()
        self.changed_brokers: set[BrokerId] = set()
        self._tables_before = image.tables
        self._tables: dict[str, MapDraft[Hashable, object]] = {}

    def table(self, name: str) -> MapDraft[Hashable, object]:
        """The entries of this table (`ImageTable`)."""
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = MapDraft(self._tables_before.get(name, {}))
        return found

    def broker(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        """The broker in this registration."""
        broker = self.brokers[BrokerId(broker_id)]
        assert broker.broker_epoch == broker_epoch, f"a record of another registration of broker {broker_id}"
        return broker

    def put_broker(self, broker: BrokerImage) -> None:
        """Add a registered broker, or replace its registration."""
        self.brokers[broker.broker_id] = broker
        self.changed_brokers.add(broker.broker_id)

    def overrides(self, resource: ConfigResource) -> Mapping[str, str]:
        """The settings that were given to this resource itself."""
        return self.configs.get(resource) or {}

    @property
    def topic_names(self) -> MapDraft[TopicId, str]:
        """The names of all present topics, by id."""
        return self.topics.names

    def finish(self) -> ClusterImage:
        """The image, without a list of changes. The draft takes no more changes."""
        return self._image(self.topics.finish())

    def finishing(self) -> Steps[tuple[ClusterImage, ImageDelta]]:
        """The image and its changes, in steps. Nothing can be written any more."""
        topics = self.topics.finish()
        image = self._image(topics)
        changed = yield from self.topics.changed()
        return image, ImageDelta(
            created_topics=self.topics.created(topics),
            deleted_topics=self.topics.deleted,
            removed_ids=tuple(self.topics.removed),
            changed_partitions=changed,
            changed_configs=tuple(sorted(self.changed_configs)),
            changed_brokers=tuple(sorted(self.changed_brokers)),
            changed_tables=tuple(
                name for name in self._tables if image.tables.get(name) != self._tables_before.get(name)
            ),
            superseded=self.superseded,
            stated=self.stated,
        )

    def _image(self, topics: FinishedTopics) -> ClusterImage:
        tables = {**self._tables_before, **{name: draft.finish() for name, draft in self._tables.items()}}
        return ClusterImage(
            topics=topics.topics,
            topic_names=topics.topic_names,
            confusable_names=topics.confusable_names,
            configs=self.configs.finish(),
            brokers=self.brokers.finish(),
            controllers=self.controllers.finish(),
            features=self.features.finish(),
            next_producer_id=self.next_producer_id,
            replica_counts=topics.replica_counts,
            leader_counts=topics.leader_counts,
            tables={name: table for name, table in tables.items() if table} if self._tables else self._tables_before,
            open_transaction=None if self.open_transaction is None else tuple(self.open_transaction),
        )


class ImageCircumstances:
    """The state that rules may read, of an image or between two records of a replay (`rules_26.Circumstances`).

    Settings are looked up once for each topic.
    """

    def __init__(self, state: ClusterImage | ImageDraft) -> None:
        self._state = state
        self._defaults = state.overrides(ALL_BROKERS)
        self._min_in_sync: dict[TopicId, int] = {}
        self._unclean_election: dict[TopicId, bool] = {}

    def is_alive(self, broker_id: BrokerId, /) -> bool:
        broker = self._state.brokers.get(broker_id)
        return broker is not None and broker.is_alive

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
        topic = ConfigResource(ResourceType.TOPIC, self._state.topic_names[topic_id])
        found = self._state.overrides(topic).get(name)
        return self._defaults.get(name) if found is None else found
