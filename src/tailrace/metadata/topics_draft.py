"""The topics of an image under construction, and the values that follow from topics: names, counts and changes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from tailrace.metadata.derive import Steps
from tailrace.metadata.image import (
    PARTITION_RECORD,
    TOPIC_RECORD,
    ChangedPartition,
    ClusterImage,
    RecordKey,
    TopicImage,
    confusable_form,
)
from tailrace.metadata.persistent_map import MapDraft
from tailrace.model.ids import NO_LEADER, BrokerId, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition

C = TypeVar("C")

_CHANGES_PER_STEP: Final = 5_000


class FinishedTopics(NamedTuple):
    """The topics of an image."""

    topics: Mapping[str, TopicImage]
    topic_names: Mapping[TopicId, str]
    confusable_names: Mapping[str, tuple[str, ...]]
    replica_counts: Mapping[BrokerId, int]
    leader_counts: Mapping[BrokerId, int]


class _OpenTopic(NamedTuple):
    """A topic whose partitions are being changed."""

    topic_id: TopicId
    name: str
    is_new: bool
    partitions: MapDraft[int, PartitionState]


class TopicsDraft:
    """The topics of one image, while records turn them into the topics of the next image. A change that does not fit is
    a broken invariant."""

    def __init__(self, image: ClusterImage, superseded: set[RecordKey]) -> None:
        """`superseded` gets the names of existing topics and partitions that are changed or removed."""
        self._before = image
        self._superseded = superseded
        self._topics = MapDraft(image.topics)
        self.names = MapDraft(image.topic_names)
        """The names of all present topics, by id."""
        self._confusable_names = MapDraft(image.confusable_names)
        self._replica_counts = dict(image.replica_counts)
        self._leader_counts = dict(image.leader_counts)
        self._open: _OpenTopic | None = None
        """The topic whose partitions are being changed. Records of one topic follow each other, so the topic's image is
        made when a record of another topic comes."""
        self._created: dict[TopicId, None] = {}
        self._deleted: list[TopicImage] = []
        self.removed: list[TopicId] = []
        """The ids of all removed topics, including topics that were new in this draft."""
        self._changed: dict[TopicPartition, PartitionState] = {}
        """Partitions of topics that are not new."""

    def create(self, name: str, topic_id: TopicId) -> None:
        """Add a topic without partitions."""
        assert name not in self._topics, f"topic {name} was created twice"
        self._close()
        self._topics[name] = TopicImage(name=name, topic_id=topic_id, partitions={})
        self.names[topic_id] = name
        self._created[topic_id] = None
        form = confusable_form(name)
        if form is not None:
            self._confusable_names[form] = tuple(sorted((*(self._confusable_names.get(form) or ()), name)))

    def remove(self, topic_id: TopicId) -> str:
        """Remove a topic; returns its name."""
        self._close()
        name = self.names.pop(topic_id)
        topic = self._topics.pop(name)
        for number, state in topic.partitions.items():
            self._count_replicas(state, -1)
            self._changed.pop(TopicPartition(name, number), None)
            self._superseded.add((PARTITION_RECORD, topic_id, number))
        self._superseded.add((TOPIC_RECORD, topic_id))
        self.removed.append(topic_id)
        if topic_id in self._created:
            del self._created[topic_id]
        else:
            self._deleted.append(self._before.topics[name])
        form = confusable_form(name)
        if form is not None:
            others = tuple(other for other in self._confusable_names.pop(form) if other != name)
            if others:
                self._confusable_names[form] = others
        return name

    def create_partition(self, number: int, state: PartitionState) -> None:
        """Add a new partition to the topic that its state names."""
        topic = self._opened(state.topic_id)
        assert number not in topic.partitions, f"partition {number} was created twice"
        self._put(topic, number, state, None)

    def change_partition(
        self, topic_id: TopicId, number: int, changed: Callable[[PartitionState, C], PartitionState], change: C
    ) -> None:
        """Give a partition the state that `changed` makes of its present state and this change."""
        topic = self._opened(topic_id)
        before = topic.partitions[number]
        self._put(topic, number, changed(before, change), before)

    def set_partition(self, topic_id: TopicId, number: int, state: PartitionState) -> None:
        """Give a partition this state."""
        topic = self._opened(topic_id)
        self._put(topic, number, state, topic.partitions[number])

    def clear_eligible_leaders(self, name: str) -> None:
        """Clear the eligible leaders of one topic; of all topics if the name is empty."""
        self._close()
        topics = [self._topics[name]] if name else list(self._topics.values())
        for topic in topics:
            for number, state in topic.partitions.items():
                if state.eligible_leader_replicas or state.last_known_leaders:
                    epoch = state.partition_epoch + 1
                    cleared = replace(state, eligible_leader_replicas=(), last_known_leaders=(), partition_epoch=epoch)
                    self.set_partition(topic.topic_id, number, cleared)

    def partitions(self) -> Iterator[tuple[TopicId, int, PartitionState]]:
        """Every partition; nothing may change during the iteration."""
        self._close()
        return (
            (topic.topic_id, number, state)
            for topic in self._topics.values()
            for number, state in topic.partitions.items()
        )

    def _opened(self, topic_id: TopicId) -> _OpenTopic:
        found = self._open
        if found is None or found.topic_id != topic_id:
            self._close()
            name = self.names[topic_id]
            partitions = MapDraft(self._topics[name].partitions)
            found = self._open = _OpenTopic(topic_id, name, topic_id in self._created, partitions)
        return found

    def _close(self) -> None:
        topic = self._open
        if topic is not None:
            self._topics[topic.name] = TopicImage(
                name=topic.name, topic_id=topic.topic_id, partitions=topic.partitions.finish()
            )
            self._open = None

    def _put(self, topic: _OpenTopic, number: int, state: PartitionState, before: PartitionState | None) -> None:
        topic.partitions[number] = state
        if not topic.is_new:
            self._changed[TopicPartition(topic.name, number)] = state
        if before is None:
            self._count_replicas(state, 1)
            return
        self._superseded.add((PARTITION_RECORD, topic.topic_id, number))
        if before.replicas is not state.replicas and before.replicas != state.replicas:
            self._count_replicas(before, -1)
            self._count_replicas(state, 1)
        elif before.leader != state.leader:
            _count(self._leader_counts, before.leader, -1)
            _count(self._leader_counts, state.leader, 1)

    def _count_replicas(self, state: PartitionState, difference: int) -> None:
        for broker_id in state.replicas:
            _count(self._replica_counts, broker_id, difference)
        _count(self._leader_counts, state.leader, difference)

    def finish(self) -> FinishedTopics:
        """The topics of the next image. The draft cannot be changed any more."""
        self._close()
        return FinishedTopics(
            self._topics.finish(),
            self.names.finish(),
            self._confusable_names.finish(),
            self._replica_counts,
            self._leader_counts,
        )

    def changed(self) -> Steps[tuple[ChangedPartition, ...]]:
        """The partitions of topics that are not new, in their new states. In steps."""
        changed: list[ChangedPartition] = []
        remaining = iter(self._changed.items())
        while part := tuple(islice(remaining, _CHANGES_PER_STEP)):
            yield
            changed += map(_as_changed, part)
        return tuple(changed)

    def created(self, finished: FinishedTopics) -> tuple[TopicImage, ...]:
        """The topics that are new."""
        return tuple(finished.topics[finished.topic_names[topic_id]] for topic_id in self._created)

    @property
    def deleted(self) -> tuple[TopicImage, ...]:
        """The removed topics, in their last state. A topic that was created again is in `created` too, with another
        id."""
        return tuple(self._deleted)


_as_changed = partial(tuple.__new__, ChangedPartition)
"""`ChangedPartition._make` without a call in Python per partition, perhaps 30,000 times."""


def _count(counts: dict[BrokerId, int], broker_id: BrokerId, difference: int) -> None:
    if broker_id != NO_LEADER:
        count = counts.get(broker_id, 0) + difference
        if count:
            counts[broker_id] = count
        else:
            del counts[broker_id]
