"""The settings in force and their sources, for the answers of DescribeConfigs and CreateTopics.

The value of a topic's setting is its override, else the broker's value for all topics, else the default. The value of a
broker's setting is its own dynamic value, else the value of all brokers, else of its configuration, else the default.
These values are also the setting's synonyms, the value in force first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Final, Protocol

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ConfigResource, ResourceType
from tailrace.model.resource_settings import (
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    SETTINGS_OF_CLIENT_METRICS,
    SETTINGS_OF_GROUPS,
)
from tailrace.model.settings import Setting, SettingType, Value, attribute_name, current_name
from tailrace.model.topic_config import TOPIC_SETTINGS, TopicConfig


class ConfigSource(IntEnum):
    """The source of a value, as on the wire."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class BrokerSetting(Protocol):
    """A setting of this broker, in force."""

    @property
    def setting(self) -> Setting: ...

    @property
    def layers(self) -> Sequence[tuple[ConfigSource, Value]]:
        """The values by source, the value in force first, the default last."""
        ...


class BrokerSettings(Protocol):
    """The settings of this broker, as `node` has read them."""

    @property
    def node_id(self) -> int: ...

    @property
    def topic_defaults(self) -> TopicConfig:
        """The values for topics without settings of their own."""
        ...

    def entry(self, name: str) -> BrokerSetting:
        """The setting of this name, which exists."""
        ...

    def entries(self) -> Iterator[BrokerSetting]:
        """The settings by name. There are hundreds of settings: use `entry` where a few are needed."""
        ...


class AdjustableSettings(BrokerSettings, Protocol):
    """The settings that `node` has read, before any change."""

    def with_dynamic(self, *, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> BrokerSettings:
        """A copy in which `of_all` overrules these settings, and `of_this` overrules both."""
        ...


class LiveSettings:
    """The settings in force under an image of the cluster."""

    def __init__(self, configured: AdjustableSettings) -> None:
        self.node_id = configured.node_id
        self._configured = configured
        self._resources = tuple(ConfigResource(ResourceType.BROKER, name) for name in ("", str(configured.node_id)))
        self._overrides = self._overrides_in(EMPTY_IMAGE)
        self._in_force: BrokerSettings = configured
        self._inherited = InheritedEntries(configured)

    def at(self, image: ClusterImage) -> BrokerSettings:
        """The settings in force under this image. The call is cheap while the settings do not change."""
        overrides = self._overrides_in(image)
        if overrides != self._overrides:
            of_all, of_this = overrides
            self._in_force = self._configured.with_dynamic(of_all=of_all, of_this=of_this)
            self._inherited = InheritedEntries(self._in_force)
            self._overrides = overrides
        return self._in_force

    def inherited_at(self, image: ClusterImage) -> "InheritedEntries":
        """The settings that topics and groups inherit under this image."""
        self.at(image)
        return self._inherited

    def concerns(self, resource: ConfigResource) -> bool:
        """Whether this resource is this broker, or all brokers."""
        return resource in self._resources

    def _overrides_in(self, image: ClusterImage) -> tuple[Mapping[str, str], Mapping[str, str]]:
        of_all, of_this = self._resources
        return image.overrides(of_all), image.overrides(of_this)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """The value of a setting from one source."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """A setting in force."""

    setting: Setting
    value: str | None
    source: ConfigSource
    synonyms: tuple[Synonym, ...]
    read_only: bool


BROKER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.type": ("compression.type",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms",),
    "follower.replication.throttled.replicas": (),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "key.ranges.enable": (),
    "key.ranges.index": (),
    "leader.replication.throttled.replicas": (),
    "local.retention.bytes": ("log.local.retention.bytes",),
    "local.retention.ms": ("log.local.retention.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "remote.log.copy.disable": (),
    "remote.log.delete.on.disable": (),
    "remote.storage.enable": (),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}
"""The broker's settings from which each topic setting gets its value. If there are settings of several units, the first
setting with a value is in force."""


OWN_TOPIC_SETTINGS: Final = frozenset({"key.ranges.enable", "key.ranges.index"})
"""The settings that Kafka does not have: shown if a request names the setting, and for a topic that has the setting.
Any other answer equals Kafka's answer."""

METADATA_CLEANUP_POLICY: Final = Setting(
    name="cleanup.policy",
    type=SettingType.LIST,
    default=("snapshot",),
    doc="The log of the cluster's metadata is kept short by snapshots. Can only be read (KIP-630).",
)


def metadata_topic_entries() -> Iterator[DescribedConfig]:
    """The one setting of `__cluster_metadata`."""
    setting = METADATA_CLEANUP_POLICY
    value = setting.format(setting.default)
    source = ConfigSource.DEFAULT_CONFIG
    own = Synonym(name=setting.name, value=value, source=source)
    yield DescribedConfig(setting=setting, value=value, source=source, synonyms=(own,), read_only=True)


_BROKER_NAMES_OF_GROUPS: Final = {
    SESSION_TIMEOUT: "group.consumer.session.timeout.ms",
    HEARTBEAT_INTERVAL: "group.consumer.heartbeat.interval.ms",
}
"""The broker's settings from which the settings of groups get their values."""


class InheritedEntries:
    """The settings that topics and groups inherit from this broker, looked up at the first request."""

    def __init__(self, broker: BrokerSettings) -> None:
        self._broker = broker

    def topic(self, overrides: Mapping[str, str], keys: Iterable[str] = ()) -> list[DescribedConfig]:
        """Every shown setting of a topic that has these overrides, by name; a request names `keys`."""
        named = {*overrides, *map(current_name, keys)}
        hidden = OWN_TOPIC_SETTINGS - named
        shown = (entry for entry in self._of_topics if entry.setting.name not in hidden)
        return _under(overrides, shown, ConfigSource.DYNAMIC_TOPIC_CONFIG)

    def group(self, overrides: Mapping[str, str]) -> list[DescribedConfig]:
        """Every setting of a group that has these overrides, by name."""
        return _under(overrides, self._of_groups, ConfigSource.DYNAMIC_GROUP_CONFIG)

    @cached_property
    def _of_topics(self) -> tuple[DescribedConfig, ...]:
        return tuple(self._of_topic(setting) for _, setting in sorted(TOPIC_SETTINGS.items()))

    def _of_topic(self, setting: Setting) -> DescribedConfig:
        synonyms = [
            synonym
            for broker_name in BROKER_NAMES[setting.name]
            for synonym in _synonyms(self._broker.entry(broker_name))
            if synonym.value is not None
        ]
        synonyms.sort(key=lambda synonym: synonym.source)
        return DescribedConfig(
            setting=setting,
            value=setting.format(getattr(self._broker.topic_defaults, attribute_name(setting.name))),
            source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
            synonyms=tuple(synonyms),
            read_only=False,
        )

    @cached_property
    def _of_groups(self) -> tuple[DescribedConfig, ...]:
        return tuple(self._of_group(setting) for _, setting in sorted(SETTINGS_OF_GROUPS.items()))

    def _of_group(self, setting: Setting) -> DescribedConfig:
        broker_name = _BROKER_NAMES_OF_GROUPS.get(setting.name)
        if broker_name is None:
            return _default_entry(setting, setting.format(setting.default))
        return _default_entry(setting, next(_synonyms(self._broker.entry(broker_name))).value)


def client_metrics_entries(overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """Every setting of a subscription to client metrics that has these overrides, by name."""
    return _under(overrides, _OF_CLIENT_METRICS, ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG)


def _default_entry(setting: Setting, value: str | None) -> DescribedConfig:
    source = ConfigSource.DEFAULT_CONFIG
    own = Synonym(name=setting.name, value=value, source=source)
    return DescribedConfig(setting=setting, value=value, source=source, synonyms=(own,), read_only=False)


_OF_CLIENT_METRICS: Final = tuple(
    _default_entry(setting, setting.format(setting.default))
    for _, setting in sorted(SETTINGS_OF_CLIENT_METRICS.items())
)


def _under(
    overrides: Mapping[str, str], inherited: Iterable[DescribedConfig], source: ConfigSource
) -> list[DescribedConfig]:
    """The entries with these overrides, which come first among their synonyms."""
    entries = list(inherited)
    for place, entry in enumerate(entries):
        name = entry.setting.name
        if name in overrides:
            own = Synonym(name=name, value=overrides[name], source=source)
            entries[place] = replace(entry, value=own.value, source=source, synonyms=(own, *entry.synonyms))
    return entries


_BROKER_ID: Final = Setting(
    name="broker.id", type=SettingType.INT, default=-1, doc="The same as node.id, for tools that ask for it."
)


def broker_entries(broker: BrokerSettings) -> Iterator[DescribedConfig]:
    """Every setting of this broker, by name."""
    own_id = Synonym(name=_BROKER_ID.name, value=str(broker.node_id), source=ConfigSource.STATIC_BROKER_CONFIG)
    entries = [_broker_entry(entry.setting, tuple(_synonyms(entry))) for entry in broker.entries()]
    yield from sorted((*entries, _broker_entry(_BROKER_ID, (own_id,))), key=lambda entry: entry.setting.name)


def shared_broker_entries(broker: BrokerSettings) -> Iterator[DescribedConfig]:
    """The dynamic settings of all brokers together, by name."""
    for entry in broker.entries():
        shared = [s for s in _synonyms(entry) if s.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
        if shared:
            yield _broker_entry(entry.setting, tuple(shared))


def _broker_entry(setting: Setting, synonyms: tuple[Synonym, ...]) -> DescribedConfig:
    in_force = synonyms[0]
    return DescribedConfig(
        setting=setting,
        value=in_force.value,
        source=in_force.source,
        synonyms=tuple(synonym for synonym in synonyms if synonym.value is not None or setting.sensitive),
        read_only=not setting.dynamic,
    )


def _synonyms(entry: BrokerSetting) -> Iterator[Synonym]:
    for source, value in entry.layers:
        yield Synonym(name=entry.setting.name, value=entry.setting.format(value), source=source)
