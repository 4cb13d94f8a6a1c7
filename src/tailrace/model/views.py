"""Views of topics, by which unmodified clients split a partition: their names, ids and key ranges (decision 0057).

The view `orders.shared-16` has 16 partitions for each partition of `orders`: number 16 p + j has the records of
partition p whose key hashes are in range j of 16, at their offsets in p.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import SLOTS, WHOLE, KeyRange, of_slots
from tailrace.model.partitions import (
    INTERNAL_TOPICS,
    MAX_TOPIC_NAME,
    METADATA_TOPIC,
    TopicPartition,
    topic_name_fault,
)

FAN_OUTS: Final = (2, 4, 8, 16, 32, 64, 128, 256)
"""The numbers of view partitions that one partition may have: every view partition has whole slots."""
_MARK: Final = ".shared-"
_BY_SUFFIX: Final = {f"{_MARK}{fan_out}": fan_out for fan_out in FAN_OUTS}
_SHORTEST_SUFFIX: Final = len(".shared-2")
_LONGEST_SUFFIX: Final = len(".shared-256")
_LAST_BYTE: Final = 15
_MOST_FOLDED: Final = 15
"""The ids of one topic and of its views differ in the lowest four bits alone."""


class View(NamedTuple):
    """A view, whether its topic exists or not."""

    topic: str
    fan_out: int
    """The view partitions of each partition, one of `FAN_OUTS`."""

    @property
    def name(self) -> str:
        return f"{self.topic}.shared-{self.fan_out}"


def parse_view(name: str) -> View | None:
    """The view that this name stands for; None for any other name, also for a name that no topic can have.

    Internal topics have no views.
    """
    if _MARK not in name or len(name) > MAX_TOPIC_NAME:
        return None  # almost every name
    return _parsed(name)


@lru_cache(maxsize=1_024)
def _parsed(name: str) -> View | None:
    """Cached: each fetch looks up each of its partitions of views, by the same few names."""
    for length in range(_SHORTEST_SUFFIX, _LONGEST_SUFFIX + 1):
        fan_out = _BY_SUFFIX.get(name[-length:])
        if fan_out is not None:
            topic = name[:-length]
            is_legal = topic_name_fault(topic) is None and topic_name_fault(name) is None
            has_views = topic not in INTERNAL_TOPICS and topic != METADATA_TOPIC
            return View(topic, fan_out) if is_legal and has_views else None
    return None


def views_of(topic: str) -> tuple[str, ...]:
    """The names of all views of a topic."""
    names = (View(topic, fan_out).name for fan_out in FAN_OUTS)
    return tuple(name for name in names if parse_view(name) is not None)


def folded_id(topic_id: bytes, fan_out: int) -> TopicId:
    """The id of a topic's view; for the id of a view, the topic's id again."""
    return _folded(topic_id, fan_out.bit_length() - 1)


def family_of(topic_id: bytes) -> tuple[TopicId, ...]:
    """The id, the ids of the topic's views, and some more: the controller gives no other topic such an id."""
    first, last = topic_id[:_LAST_BYTE], topic_id[_LAST_BYTE]
    return tuple([TopicId(first + bytes((last ^ number,))) for number in range(_MOST_FOLDED + 1)])


def _folded(topic_id: bytes, number: int) -> TopicId:
    return TopicId(topic_id[:_LAST_BYTE] + bytes((topic_id[_LAST_BYTE] ^ number,)))


def key_range_of(number: int, fan_out: int) -> KeyRange:
    """The key hashes of a view partition; `number` counts over all partitions of the view."""
    slots = SLOTS // fan_out
    first = number % fan_out * slots
    return of_slots(first, first + slots - 1)


def hashes_by_name(partition: TopicPartition) -> KeyRange:
    """The key hashes of a partition, of a view if the topic has a view's name.

    A client sees no more than the name: a topic of an older server may have such a name.
    """
    view = parse_view(partition.topic)
    return WHOLE if view is None else key_range_of(partition.partition, view.fan_out)
