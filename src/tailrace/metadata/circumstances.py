"""The state that the rules for partitions may read besides the partition: see `derive.Circumstances`."""

from collections.abc import Mapping

from tailrace.metadata.image import ALL_BROKERS, BrokerImage, ConfigResource, ResourceType
from tailrace.metadata.persistent_map import MapDraft
from tailrace.model.ids import BrokerId, TopicId


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
