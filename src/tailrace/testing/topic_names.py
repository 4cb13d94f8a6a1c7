"""Names of topics and groups that no other test has."""

import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from tailrace.testing.topic_calls import TopicCalls

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST_PART = 200
"""Kafka's names have at most 249 characters."""
_MARKER = "tailrace_topic"
_ARGUMENTS = ("partitions", "replication_factor", "config")


def fresh_name(test: str) -> str:
    """The name of the test, then six characters that differ from call to call."""
    shown = _NOT_IN_NAMES.sub("-", test).strip("-")[:_LONGEST_PART] or "test"
    return f"{shown}-{uuid4().hex[:6]}"


class TopicFactory:
    """The fixture `tailrace_topic_factory`: each call creates a topic and returns its name."""

    def __init__(self, cluster: TopicCalls, test: str) -> None:
        self._cluster = cluster
        self._test = test

    def __call__(
        self,
        name: str = "",
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic and return its name: `name` (without it, the name of the test) and a fresh end."""
        return self._cluster.create_topic(
            fresh_name(name or self._test), partitions, replication_factor=replication_factor, config=config
        )

    def marked(self, arguments: tuple[Any, ...], settings: Mapping[str, Any]) -> str:
        """Create the topic of `@pytest.mark.tailrace_topic(...)`. Raises TypeError for an argument that it lacks."""
        unknown = [*map(repr, arguments), *(name for name in settings if name not in _ARGUMENTS)]
        if unknown:
            raise TypeError(f"@pytest.mark.{_MARKER} takes {', '.join(_ARGUMENTS)} by name, and not {unknown[0]}")
        return self(**settings)
