"""Applies the committed metadata to this broker's partitions: creates, changes and deletes partitions, and sets roles.

The applier runs before a client gets the answer to the request that has caused the change. For a client of this node
the answer also waits until new partitions are durable: so the client can produce to the topic at once. Settings and
states that change together reach a partition together: the high watermark depends on both. A partition whose log cannot
be opened is left out and reported, and so is a partition whose log fails during a change; the other partitions are not
affected.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from tailrace.metadata.image import ClusterImage, ImageDelta, ResourceType, TopicImage
from tailrace.metadata.views import Views, view_refusal
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.server.admin.config_entries import LiveSettings
from tailrace.server.partitions.table import KnownLeader
from tailrace.server.ports import Controller

_MOST_CONFIGS: Final = 1_000

_logger = logging.getLogger("tailrace.server")


class Partitions(Protocol):
    """The partitions of this broker: `server.partitions.table.PartitionTable`."""

    def has(self, topic: str, partition: int, /) -> bool: ...

    def add(self, topic_partition: TopicPartition, *, state: PartitionState, config: TopicConfig) -> None: ...

    def update(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig, /) -> None: ...

    def update_configs(self, configs: Mapping[str, TopicConfig], /) -> None: ...

    def delete(self, topic: str, index: int, /) -> None:
        """Delete a partition. Does nothing if this broker has no replica of the partition."""
        ...


class MetadataApplier:
    """Applies images on one broker. `load` or `steps` come first, then `on_image` for each change."""

    def __init__(self, *, partitions: Partitions, broker_id: BrokerId, settings: LiveSettings) -> None:
        self._partitions = partitions
        self._broker_id = broker_id
        self._settings = settings
        self.failed: set[TopicPartition] = set()
        """Partitions of this broker that could not be opened or changed."""
        self._logged: dict[TopicPartition, str] = {}
        """The reason that was last logged for each failed partition."""
        self._defaults_of_all: TopicConfig | None = None
        """The defaults of topics that were last applied to all topics."""
        self._defaults: TopicConfig | None = None
        self._configs: dict[frozenset[tuple[str, str]], TopicConfig] = {}
        """The settings of topics with these defaults, by the topic's own settings: most topics have the same own
        settings."""

    def load(self, image: ClusterImage) -> None:
        """Add every partition that this broker has a replica of."""
        for _ in self.steps(image):
            pass

    def steps(self, image: ClusterImage) -> Iterator[None]:
        """Do what `load` does, one partition per step: after a crash each step may scan a log."""
        self._defaults_of_all = self._settings.at(image).topic_defaults
        for topic in image.topics.values():
            config = self._config(image, topic.name)
            for topic_partition, state in self._of_this_broker(topic):
                self._open(topic_partition, state, config)
                yield

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Act on one change."""
        for topic in delta.deleted_topics:
            self._delete(topic)
        for topic in delta.created_topics:
            self._create(image, topic)
        for topic_partition, state in delta.changed_partitions:
            self._change(image, topic_partition, state)
        created = {topic.name for topic in delta.created_topics}
        changed = [name for name in self._reconfigured(image, delta) if name not in created]
        if changed:
            self._partitions.update_configs({name: self._config(image, name) for name in changed})

    def _reconfigured(self, image: ClusterImage, delta: ImageDelta) -> Iterable[str]:
        """The topics whose settings may have changed: every topic, if the broker's defaults for topics have changed."""
        is_concerned = any(self._settings.concerns(resource) for resource in delta.changed_configs)
        if is_concerned and self._settings.at(image).topic_defaults != self._defaults_of_all:
            self._defaults_of_all = self._settings.at(image).topic_defaults
            return image.topics
        changed = (resource.name for resource in delta.changed_configs if resource.type == ResourceType.TOPIC)
        return [name for name in changed if name in image.topics]

    def _create(self, image: ClusterImage, topic: TopicImage) -> None:
        config = self._config(image, topic.name)
        for topic_partition, state in self._of_this_broker(topic):
            self._open(topic_partition, state, config)

    def _open(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig) -> None:
        try:
            self._partitions.add(topic_partition, state=state, config=config)
        except KafkaError as fault:
            self._failed(topic_partition, fault)
        else:
            self._works(topic_partition)

    def reopen(self, image: ClusterImage, topic_partition: TopicPartition) -> None:
        """Add a partition again after the rename of its damaged log, if this broker still has a replica."""
        state = image.partition(*topic_partition)
        if state is not None and self._broker_id in state.replicas:
            self._open(topic_partition, state, self._config(image, topic_partition.topic))

    def config_of(self, image: ClusterImage, topic: str) -> TopicConfig:
        """The settings of this topic on this broker."""
        return self._config(image, topic)

    def _change(self, image: ClusterImage, topic_partition: TopicPartition, state: PartitionState) -> None:
        if self._broker_id not in state.replicas:
            self._remove(topic_partition)
        elif self._partitions.has(*topic_partition):
            self._update(topic_partition, state, self._config(image, topic_partition.topic))
        else:
            self._open(topic_partition, state, self._config(image, topic_partition.topic))

    def _update(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig) -> None:
        try:
            self._partitions.update(topic_partition, state, config)
        except KafkaError as fault:
            self._failed(topic_partition, fault)
        else:
            self._works(topic_partition)

    def _failed(self, topic_partition: TopicPartition, fault: KafkaError) -> None:
        self.failed.add(topic_partition)
        if self._logged.get(topic_partition) != fault.detail:  # each change of the partition tries the log again
            self._logged[topic_partition] = fault.detail
            _logger.error("event=partition-failed partition=%s fault=%s", topic_partition, fault)

    def _works(self, topic_partition: TopicPartition) -> None:
        self.failed.discard(topic_partition)
        self._logged.pop(topic_partition, None)

    def _delete(self, topic: TopicImage) -> None:
        for topic_partition, _ in self._of_this_broker(topic):
            self._remove(topic_partition)

    def _remove(self, topic_partition: TopicPartition) -> None:
        self._works(topic_partition)
        try:
            self._partitions.delete(*topic_partition)
        except KafkaError as fault:
            self.failed.add(topic_partition)
            _logger.error("event=partition-delete-failed partition=%s fault=%s", topic_partition, fault)

    def _of_this_broker(self, topic: TopicImage) -> Iterator[tuple[TopicPartition, PartitionState]]:
        for number, state in topic.partitions.items():
            if self._broker_id in state.replicas:
                yield TopicPartition(topic.name, number), state

    def _config(self, image: ClusterImage, topic: str) -> TopicConfig:
        defaults = self._settings.at(image).topic_defaults
        if defaults is not self._defaults or len(self._configs) >= _MOST_CONFIGS:
            self._configs.clear()
            self._defaults = defaults
        overrides = image.topic_overrides(topic)
        key = frozenset(overrides.items())
        try:
            config = self._configs.get(key)
            if config is None:
                config = self._configs[key] = defaults.with_overrides(overrides)
            return config
        except KafkaError as fault:
            # Only a log of another release can have such a value: the controller refuses illegal values.
            _logger.error("event=topic-config-ignored topic=%s fault=%s", topic, fault)
            return defaults


class ImageLeaders:
    """The partition table's view of the cluster's metadata."""

    def __init__(self, controller: Controller, views: Views) -> None:
        self._controller = controller
        self._views = views

    def leader_of(self, topic: str, partition: int) -> KnownLeader | None:
        """The leader of the partition, or None if there is no such partition."""
        state = self._controller.image.partition(topic, partition)
        return None if state is None else KnownLeader(state.leader, state.leader_epoch)

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The name of the topic with this id, or None if there is no such topic."""
        return self._controller.image.topic_names.get(topic_id)

    def view_refusal(self, topic: str, topic_id: bytes = b"") -> KafkaError | None:
        """The error if this is the name, or the id, of a view: a view has no partitions of its own."""
        image = self._controller.image
        view = self._views.with_id(image, topic_id) if topic_id else self._views.named(image, topic)
        return None if view is None else view_refusal(image, view.name)
