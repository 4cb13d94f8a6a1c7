"""The partitions that a member of a consumer group has, or is to get (KIP-848; pure).

The rules of a group combine assignments as sets, and do not look inside an assignment. So a unit finer than the
partition, such as a few slots of a partition, would change only this module, the assignors, and the forms in records
and answers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from tailrace.coordinators.groups.consumer_records import StoredTopicPartitions
from tailrace.protocol.messages.consumer_groups import HeartbeatAssignment, HeartbeatTopicPartitions

_NO_PARTITIONS: Final[frozenset[int]] = frozenset()


class NamedPartitions(Protocol):
    """Partitions of one topic in a record or a request."""

    @property
    def topic_id(self) -> bytes: ...
    @property
    def partitions(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """A set of partitions, by topic id. Operations are set operations; a topic without partitions is left out."""

    _topics: Mapping[bytes, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Mapping[bytes, Iterable[int]]) -> "Assignment":
        """The assignment of these partitions by topic id."""
        return cls({topic_id: frozenset(partitions) for topic_id, partitions in topics.items() if partitions})

    @classmethod
    def read(cls, topics: Iterable[NamedPartitions]) -> "Assignment":
        """The assignment in a record or a request."""
        return cls({topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions})

    @classmethod
    def union_of(cls, assignments: Iterable["Assignment"]) -> "Assignment":
        """The partitions that are in any of the assignments."""
        found: dict[bytes, list[frozenset[int]]] = {}
        for assignment in assignments:
            for topic_id, partitions in assignment._topics.items():
                found.setdefault(topic_id, []).append(partitions)
        return cls({topic_id: _NO_PARTITIONS.union(*parts) for topic_id, parts in found.items()})

    def __bool__(self) -> bool:
        return bool(self._topics)

    def __iter__(self) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """The topic ids with their partitions, both in order."""
        return ((topic_id, tuple(sorted(self._topics[topic_id]))) for topic_id in sorted(self._topics))

    def __or__(self, other: "Assignment") -> "Assignment":
        topics = dict(self._topics)  # shares the partitions of topics that the other side does not have
        for topic_id, numbers in other._topics.items():
            topics[topic_id] = self._of(topic_id) | numbers
        return Assignment(topics)

    def __and__(self, other: "Assignment") -> "Assignment":
        return Assignment.of({topic_id: numbers & other._of(topic_id) for topic_id, numbers in self._topics.items()})

    def __sub__(self, other: "Assignment") -> "Assignment":
        return Assignment.of({topic_id: numbers - other._of(topic_id) for topic_id, numbers in self._topics.items()})

    def __le__(self, other: "Assignment") -> bool:
        return all(partitions <= other._of(topic_id) for topic_id, partitions in self._topics.items())

    def isdisjoint(self, other: "Assignment") -> bool:
        """Whether the assignments share no partition."""
        return all(partitions.isdisjoint(other._of(topic_id)) for topic_id, partitions in self._topics.items())

    def _of(self, topic_id: bytes) -> frozenset[int]:
        return self._topics.get(topic_id, _NO_PARTITIONS)

    def stored(self) -> tuple[StoredTopicPartitions, ...]:
        """The form in records."""
        return tuple(StoredTopicPartitions(topic_id=topic_id, partitions=partitions) for topic_id, partitions in self)

    def answered(self) -> HeartbeatAssignment:
        """The form in the answer to a heartbeat."""
        return HeartbeatAssignment(
            topic_partitions=tuple(
                HeartbeatTopicPartitions(topic_id=topic_id, partitions=partitions) for topic_id, partitions in self
            )
        )


NOTHING: Final = Assignment()
