"""The controller's machine for tests, simulations and benchmarks, with usual values of the settings of a node."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.deciding.topics import TopicRules
from tailrace.metadata.heartbeats import DEFAULT_SESSION_TIMEOUT_MS
from tailrace.model.settings import Table
from tailrace.model.topic_config import TopicConfig
from tailrace.node.settings.table import BROKER_SETTINGS

NO_LIMIT = 2**31 - 1
"""A limit of partitions that no test reaches: Kafka has no limit."""


KAFKAS_DEFAULTS: Final = TopicConfig()
"""The settings of a topic without settings of its own."""


def topic_rules(
    *,
    num_partitions: int = 1,
    replication_factor: int = 1,
    config: TopicConfig = KAFKAS_DEFAULTS,
    max_partitions_per_topic: int = NO_LIMIT,
    max_partitions_per_broker: int = NO_LIMIT,
    max_frame_bytes: int = NO_LIMIT,
) -> TopicRules:
    """Defaults and limits of new topics: by default one partition with one replica, and no limit."""
    return TopicRules(
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        config=config,
        max_partitions_per_topic=max_partitions_per_topic,
        max_partitions_per_broker=max_partitions_per_broker,
        max_frame_bytes=max_frame_bytes,
    )


def numbered_bytes() -> Callable[[int], bytes]:
    """A source of random bytes that counts: 1, 2, 3 ... in as many bytes as are requested."""
    numbers = count(1)
    return lambda size: (2**64 + next(numbers)).to_bytes(16, "big")[-size:]


def controller_machine(
    *,
    random_bytes: Callable[[int], bytes] | None = None,
    rules: TopicRules | None = None,
    broker_settings: Table = BROKER_SETTINGS,
    founding_settings: Mapping[str, str] | None = None,
    broker_session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS,
) -> ControllerMachine:
    """A machine with an empty image. Its `random_bytes` count, if none are given."""
    return ControllerMachine(
        random_bytes=random_bytes or numbered_bytes(),
        topic_rules=rules or topic_rules(),
        broker_settings=broker_settings,
        founding_settings=founding_settings or {},
        broker_session_timeout_ms=broker_session_timeout_ms,
    )
