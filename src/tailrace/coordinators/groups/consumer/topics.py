"""The cluster's topics as the groups see them."""

from dataclasses import dataclass
from typing import Protocol

from tailrace.coordinators.groups.consumer.records import RegularExpressionValue


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic that exists."""

    topic_id: bytes
    partition_count: int


class Topics(Protocol):
    """The topics that there are now."""

    @property
    def version(self) -> int:
        """Another number after each change of a topic, or of what an expression matches."""
        ...

    def find(self, name: str) -> TopicInfo | None:
        """The topic that has this name."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic that has this id."""
        ...

    def matches(self, expression: str) -> RegularExpressionValue | None:
        """The topics that an expression matches; None while not known yet: `version` is another when they are."""
        ...


class NoTopics:
    """A cluster without topics."""

    version = 0

    def find(self, name: str) -> TopicInfo | None:
        return None

    def name_of(self, topic_id: bytes) -> str | None:
        return None

    def matches(self, expression: str) -> RegularExpressionValue | None:
        return None
