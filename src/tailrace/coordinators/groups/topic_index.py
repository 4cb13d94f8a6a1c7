"""Groups with offsets in each topic, so that the deletion of a topic need not look at every offset."""

from collections.abc import Iterator, Mapping

from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId


def belongs_to(offset_topic_id: bytes, topic_id: TopicId | None) -> bool:
    """Whether an offset was committed for the topic that has this id now; None: there is none of that name."""
    return topic_id is not None and offset_topic_id in (topic_id, ZERO_TOPIC_ID)


class TopicIndex:
    """Topic name -> topic id -> group -> in how many partitions of it the group has an offset."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[bytes, dict[str, int]]] = {}

    @property
    def names(self) -> frozenset[str]:
        """The topics in which any group has an offset."""
        return frozenset(self._topics)

    def groups_beside(self, topics: Mapping[str, TopicId | None]) -> Iterator[str]:
        """The groups with an offset in one of these topics that does not belong to the given id; perhaps repeatedly."""
        for name, topic_id in topics.items():
            for found_id, groups in self._topics.get(name, {}).items():
                if not belongs_to(found_id, topic_id):
                    yield from groups

    def replace(
        self, group_id: str, topic: str, before: OffsetCommitValue | None, after: OffsetCommitValue | None
    ) -> None:
        """One offset of the group in one partition of the topic was `before` and is `after`; None: there is none."""
        if before is not None and after is not None and before.topic_id == after.topic_id:
            return
        if before is not None:
            self._remove(group_id, topic, before.topic_id)
        if after is not None:
            groups = self._topics.setdefault(topic, {}).setdefault(after.topic_id, {})
            groups[group_id] = groups.get(group_id, 0) + 1

    def _remove(self, group_id: str, topic: str, topic_id: bytes) -> None:
        ids = self._topics[topic]
        groups = ids[topic_id]
        groups[group_id] -= 1
        if not groups[group_id]:
            del groups[group_id]
        if not groups:
            del ids[topic_id]
        if not ids:
            del self._topics[topic]
