"""Views of the topics of an image (`model.views`; decision 0057): looked up by name and by id, but in no list of
topics.

A topic with the name or the id of a view takes precedence over the view. Requests that read look topics up in this
module. All other requests use the image itself, which has no views, and refuse a view with `view_refusal`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import WHOLE, KeyRange
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.views import FAN_OUTS, View, folded_id, key_range_of, parse_view

MAX_VIEW_PARTITIONS: Final = 10_000
"""The most partitions of a view. A topic has no view that would have more partitions."""


_ID_BYTES: Final = 16


class ViewPartitions(Mapping[int, PartitionState]):
    """The partitions of a view. A view partition has the state of the partition that contains it."""

    __slots__ = ("_fan_out", "_partitions")

    def __init__(self, partitions: Mapping[int, PartitionState], fan_out: int) -> None:
        self._partitions = partitions
        self._fan_out = fan_out

    def __getitem__(self, number: int) -> PartitionState:
        return self._partitions[number // self._fan_out]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._partitions) * self._fan_out


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewImage(TopicImage):
    """A view of an existing topic, in the form of a topic."""

    source: TopicImage
    """The topic of the view."""
    fan_out: int
    """The number of view partitions for each partition of the topic."""

    def stored_as(self, number: int) -> TopicPartition:
        return TopicPartition(self.source.name, number // self.fan_out)

    def key_range(self, number: int) -> KeyRange:
        """The key hashes of the records of this view partition."""
        return key_range_of(number, self.fan_out)


def hashes_of(topic: TopicImage, number: int) -> KeyRange:
    """The hashes that the records of a partition of this topic or view may have."""
    return topic.key_range(number) if isinstance(topic, ViewImage) else WHOLE


def stored_as(topic: TopicImage, number: int) -> TopicPartition:
    """The partition that has the records of this partition of a topic or view."""
    return topic.stored_as(number) if isinstance(topic, ViewImage) else TopicPartition(topic.name, number)


class Views:
    """The views that one broker serves."""

    def __init__(self, *, is_allowed: bool = True) -> None:
        """`is_allowed` is group.key.ranges.enable."""
        self._is_allowed = is_allowed

    def topic(self, image: ClusterImage, name: str) -> TopicImage | None:
        """The topic or the view of this name."""
        return image.topics.get(name) or self.named(image, name)

    def topic_by_id(self, image: ClusterImage, topic_id: bytes) -> TopicImage | None:
        """The topic or the view of this id."""
        return image.topic_by_id(TopicId(topic_id)) or self.with_id(image, topic_id)

    def named(self, image: ClusterImage, name: str) -> ViewImage | None:
        """The view of this name, if there is a view whose topic exists and has key ranges."""
        view = parse_view(name)
        found = None if view is None or not self._serves(image, view) else existing_view(image, view)
        return None if found is None or len(found.partitions) > MAX_VIEW_PARTITIONS else found

    def with_id(self, image: ClusterImage, topic_id: bytes) -> ViewImage | None:
        """The view of this id, if there is a view whose topic exists and has key ranges."""
        view = _view_with_id(image, topic_id)
        return None if view is None else self.named(image, view.name)

    def _serves(self, image: ClusterImage, view: View) -> bool:
        return self._is_allowed and image.knows_key_ranges and has_key_ranges(image, view.topic)


def _view_with_id(image: ClusterImage, topic_id: bytes) -> View | None:
    if len(topic_id) != _ID_BYTES or topic_id in image.topic_names:
        return None
    for fan_out in FAN_OUTS:
        source = image.topic_by_id(folded_id(topic_id, fan_out))
        if source is not None:
            return View(source.name, fan_out)
    return None


def has_key_ranges(image: ClusterImage, topic: str) -> bool:
    """Whether the topic may be read by key ranges: key.ranges.enable."""
    return image.topic_overrides(topic).get("key.ranges.enable", "true").lower() != "false"


def existing_view(image: ClusterImage, view: View) -> ViewImage | None:
    """The view, whether this broker serves views or not; None if the view's topic does not exist, or if a topic has the
    view's name."""
    source = image.topics.get(view.topic)
    name = view.name
    if source is None or name in image.topics:
        return None
    return ViewImage(
        name=name,
        topic_id=folded_id(source.topic_id, view.fan_out),
        partitions=ViewPartitions(source.partitions, view.fan_out),
        source=source,
        fan_out=view.fan_out,
    )


def id_of(image: ClusterImage, name: str) -> TopicId | None:
    """The id of the topic or view of this name. A view that is not served keeps its id, which offsets need."""
    topic = image.topics.get(name)
    if topic is None:
        view = parse_view(name)
        topic = None if view is None else existing_view(image, view)
    return None if topic is None else topic.topic_id


def view_refusal(
    image: ClusterImage, name: str, code: ErrorCode = ErrorCode.INVALID_TOPIC_EXCEPTION
) -> KafkaError | None:
    """The error of a request that would write, change or delete this view; None if the name is not the name of a
    view."""
    view = parse_view(name)
    if view is None or existing_view(image, view) is None:
        return None
    return KafkaError(code, f"{name} is a view of {view.topic} for consumers: it can only be read; name {view.topic}")


def view_refusal_by_id(image: ClusterImage, topic_id: bytes) -> KafkaError | None:
    """The error of a request that would write, change or delete the view of this id; None if no view has the id."""
    view = _view_with_id(image, topic_id)
    return None if view is None else view_refusal(image, view.name)
