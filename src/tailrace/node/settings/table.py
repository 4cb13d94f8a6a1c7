"""The table of a node's settings: Kafka's names, units and defaults, and a few of our own (decision 0044).

Where a default differs from Kafka's default, the setting's text says so. Settings of topics are listed under their
broker names; the value is the default of every topic that does not set its own value.
"""

from collections.abc import Mapping
from dataclasses import replace

from tailrace.fetch_session.session_cache import DEFAULT_SLOTS
from tailrace.metadata.heartbeats import DEFAULT_SESSION_TIMEOUT_MS
from tailrace.model.settings import BOOLEAN, CLASS, INT, LIST, LONG, STRING, Setting, Table, Value, setting, table_of
from tailrace.model.topic_config import TOPIC_SETTINGS
from tailrace.node.settings.access import ACCESS_SETTINGS
from tailrace.node.settings.coordinators import GROUP_SETTINGS, TRANSACTION_SETTINGS
from tailrace.node.settings.kafka import WITHOUT_EFFECT
from tailrace.node.settings.logs import LOG_SETTINGS
from tailrace.node.settings.network import NETWORK_SETTINGS
from tailrace.node.settings.quorum import QUORUM_SETTINGS
from tailrace.node.settings.sasl import SASL_SETTINGS
from tailrace.node.settings.tls import OF_LISTENER, TLS_SETTINGS
from tailrace.replication.fetch_requests import ReplicaFetchConfig
from tailrace.replication.leadership import DEFAULT_LAG_MS
from tailrace.replication.throttle import NO_LIMIT, ThrottleConfig
from tailrace.server.admin.config_entries import BROKER_NAMES
from tailrace.server.fetch.budget import DEFAULT_FETCH_MAX_BYTES
from tailrace.server.fetch.key_reads import KeyRangeConfig
from tailrace.server.partitions.periodic_work import PeriodicWorkConfig
from tailrace.server.quorum.duties import LeaderBalanceConfig
from tailrace.server.replicas.replication_throttles import FOLLOWER_RATE, LEADER_RATE

_IDENTITY = (
    setting("node.id", INT, 1, "The number of this node, distinct in the cluster.", at_least=0),
    setting("process.roles", LIST, ("broker", "controller"), "Roles of this node.", one_of=("broker", "controller")),
    setting("broker.rack", STRING, None, "The rack this node stands in; copies are placed in different racks."),
    setting("log.dirs", STRING, None, "The directory that keeps the node's data; wins over log.dir."),
    setting("log.dir", STRING, "tailrace-data", "The directory that keeps the node's data (Kafka: /tmp/kafka-logs)."),
    setting(
        "dev.mode",
        BOOLEAN,
        False,
        "Defaults for trying out and for tests: topics are created when first used, the first rebalance of a group does"
        " not wait, members of groups send heartbeats often, the offsets topic has few partitions.",
    ),
)

TOPIC_SETTING_OF: Mapping[str, str] = {names[0]: topic for topic, names in BROKER_NAMES.items() if len(names) == 1}
"""The topic settings that a broker has under another name in the same unit, by the broker's name."""

_TOPIC_DEFAULTS = tuple(
    Setting(
        name=name,
        type=TOPIC_SETTINGS[topic_name].type,
        default=TOPIC_SETTINGS[topic_name].default,
        doc=f"For topics without their own {topic_name}: {TOPIC_SETTINGS[topic_name].doc}",
        at_least=TOPIC_SETTINGS[topic_name].at_least,
        at_most=TOPIC_SETTINGS[topic_name].at_most,
        one_of=TOPIC_SETTINGS[topic_name].one_of,
        dynamic=True,
    )
    for name, topic_name in TOPIC_SETTING_OF.items()
)

_TOPICS = (
    setting("auto.create.topics.enable", BOOLEAN, True, "Create a topic when a client first asks for it."),
    setting(
        "num.partitions", INT, 1, "Partitions of a topic whose creation names no number of partitions.", at_least=1
    ),
    setting(
        "default.replication.factor",
        INT,
        1,
        "Replicas of a topic whose creation names no number of replicas.",
        at_least=1,
    ),
    setting("delete.topic.enable", BOOLEAN, True, "Whether topics may be deleted."),
    setting(
        "max.partitions.per.topic", INT, 1_000, "The most partitions a topic may have (Kafka: no limit).", at_least=1
    ),
    setting("max.partitions.per.node", INT, 20_000, "The most partitions a node keeps (Kafka: no limit).", at_least=1),
)

_SELECTOR_CLASS = (
    "The class that chooses the replica a consumer reads from (KIP-392): package.module:Class, RackAwareReplicaSelector"
    " or LeaderSelector; without a value LeaderSelector."
)

_REPLICATION = (
    setting(
        "replica.lag.time.max.ms", LONG, DEFAULT_LAG_MS, "A replica that lags this long is not in sync.", at_least=1
    ),
    setting(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        PeriodicWorkConfig,
        "How often the high watermarks are written down.",
        at_least=1,
    ),
    setting(
        "replica.fetch.max.bytes", INT, ReplicaFetchConfig, "Bytes per partition that a follower asks for.", at_least=0
    ),
    setting("replica.fetch.response.max.bytes", INT, ReplicaFetchConfig, "Bytes that a follower asks for.", at_least=0),
    setting(
        "replica.fetch.wait.max.ms",
        INT,
        ReplicaFetchConfig,
        "How long a leader may keep a follower waiting.",
        at_least=0,
    ),
    setting(
        "replica.fetch.min.bytes",
        INT,
        ReplicaFetchConfig,
        "The least bytes for which a leader answers a follower at once.",
        at_least=1,
    ),
    setting("replica.fetch.backoff.ms", INT, ReplicaFetchConfig, "A follower's rest after an error.", at_least=0),
    setting(
        "replica.socket.timeout.ms", INT, ReplicaFetchConfig, "How long a follower waits for an answer.", at_least=1
    ),
    setting("replica.selector.class", CLASS, None, _SELECTOR_CLASS),
    setting(
        LEADER_RATE,
        LONG,
        NO_LIMIT,
        "Bytes per second to replicas out of sync, of the topics' leader.replication.throttled.replicas.",
        at_least=0,
        dynamic=True,
    ),
    setting(
        FOLLOWER_RATE,
        LONG,
        NO_LIMIT,
        "Bytes per second to replicas out of sync here, of the topics' follower.replication.throttled.replicas.",
        at_least=0,
        dynamic=True,
    ),
    setting(
        "replication.quota.window.num",
        INT,
        ThrottleConfig,
        "The number of samples from which the rates of both throttles are computed.",
        at_least=1,
    ),
    setting(
        "replication.quota.window.size.seconds",
        INT,
        ThrottleConfig,
        "The time of a sample of the throttles' rates.",
        at_least=1,
    ),
    setting(
        "broker.heartbeat.interval.ms", INT, 500, "The interval of a broker's heartbeats (Kafka: 2000).", at_least=1
    ),
    setting(
        "broker.session.timeout.ms",
        INT,
        DEFAULT_SESSION_TIMEOUT_MS,
        "A broker silent this long is fenced (Kafka: 9000).",
        at_least=1,
    ),
    setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        LeaderBalanceConfig,
        "Whether the controller elects preferred leaders again by itself.",
    ),
    setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        LeaderBalanceConfig,
        "How often the controller looks whether to elect preferred leaders again.",
        at_least=1,
    ),
    setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        LeaderBalanceConfig,
        "The share of the partitions that prefer a broker which other brokers may lead before the controller acts.",
        at_least=0,
    ),
    setting(
        "initial.broker.registration.timeout.ms",
        INT,
        60_000,
        "How long a broker that starts waits for another process with its node.id to be gone; two sessions at least.",
        at_least=1,
    ),
)

_FETCH = (
    setting("fetch.max.bytes", INT, DEFAULT_FETCH_MAX_BYTES, "The most bytes of one answer to a fetch.", at_least=1024),
    setting(
        "group.key.ranges.enable",
        BOOLEAN,
        KeyRangeConfig,
        "Whether this broker serves views, and filters records for readers of key ranges (KIP-X). If not, the readers"
        " filter.",
    ),
    setting(
        "max.bytes.key.range.hashing",
        INT,
        KeyRangeConfig,
        "Bytes of records that were read for other key ranges than those asked for, and are kept for their readers.",
        at_least=0,
    ),
    setting(
        "key.range.fetch.max.scan.bytes",
        INT,
        KeyRangeConfig,
        "Uncompressed bytes of a partition that one fetch of key ranges looks through at most.",
        at_least=1024,
    ),
    setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        DEFAULT_SLOTS,
        "The most fetch sessions (KIP-227) of one broker; 0: none.",
        at_least=0,
    ),
)

BROKER_SETTINGS: Table = table_of(
    *_IDENTITY,
    *NETWORK_SETTINGS,
    *SASL_SETTINGS,
    *TLS_SETTINGS,
    *ACCESS_SETTINGS,
    *LOG_SETTINGS,
    *_TOPIC_DEFAULTS,
    *_TOPICS,
    *_REPLICATION,
    *QUORUM_SETTINGS,
    *GROUP_SETTINGS,
    *TRANSACTION_SETTINGS,
    *_FETCH,
    *WITHOUT_EFFECT,
)

_OF_A_LISTENER = "listener.name."


def listener_setting(name: str) -> tuple[str, Setting] | None:
    """The listener and the setting that `listener.name.LISTENER.SETTING` stands for; None for another name."""
    rest = name.removeprefix(_OF_A_LISTENER)
    if rest == name:
        return None
    for suffix in OF_LISTENER:
        listener = rest.removesuffix(f".{suffix}")
        if listener not in ("", rest):
            return listener.upper(), replace(BROKER_SETTINGS[suffix], name=name)
    return None


def listener_setting_name(listener: str, name: str) -> str:
    """The name of a setting for one listener."""
    return f"{_OF_A_LISTENER}{listener.lower()}.{name}"


DEV_DEFAULTS: Mapping[str, Value] = {
    "auto.create.topics.enable": True,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
"""Defaults that `dev.mode` changes."""
