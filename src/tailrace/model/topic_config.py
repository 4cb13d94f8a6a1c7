"""Settings of a topic, with Kafka's names, defaults and limits."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import Setting, SettingType, Table, Value, attribute_name, parse_all, table_of

_MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings in force for one topic. Times in milliseconds, sizes in bytes."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = _MAX_LONG
    flush_ms: int = _MAX_LONG
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    index_interval_bytes: int = 4096
    key_ranges_enable: bool = True
    key_ranges_index: str = "auto"
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = _MAX_LONG
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = _MAX_LONG
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    def with_overrides(self, overrides: Mapping[str, str]) -> "TopicConfig":
        """The settings with a topic's own on top. Raises KafkaError(INVALID_CONFIG) for an illegal setting."""
        values = {attribute_name(name): value for name, value in parse_all(TOPIC_SETTINGS, overrides).items()}
        config = replace(self, **values)  # type: ignore[arg-type]  # parse() has checked the types against the table
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"min.compaction.lag.ms={config.min_compaction_lag_ms}: must be at most max.compaction.lag.ms,"
                f" which is {config.max_compaction_lag_ms}",
            )
        if config.remote_storage_enable:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "remote.storage.enable=true: there is no tiered storage here; leave it out, or say false",
            )
        return config


_DEFAULTS = TopicConfig()


def _setting(
    name: str,
    kind: SettingType,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] | None = None,
    throttled_replicas: bool = False,
) -> Setting:
    default: Value = getattr(_DEFAULTS, attribute_name(name))
    return Setting(
        name=name,
        type=kind,
        default=default,
        doc=doc,
        at_least=at_least,
        at_most=at_most,
        one_of=one_of,
        throttled_replicas=throttled_replicas,
        dynamic=True,
    )


_ACCEPTED = "Accepted for Kafka's files"
_NO_TIERS = "there is no tiered storage"

TOPIC_SETTINGS: Table = table_of(
    _setting(
        "cleanup.policy",
        SettingType.LIST,
        "How records are removed from the log: old segments (delete), overwritten keys (compact), or both.",
        one_of=("delete", "compact"),
    ),
    _setting(
        "compression.gzip.level",
        SettingType.INT,
        f"{_ACCEPTED}: batches are compressed at the default level.",
        at_least=1,
        at_most=9,
    ),
    _setting("compression.lz4.level", SettingType.INT, f"{_ACCEPTED}, as that of gzip.", at_least=1, at_most=17),
    _setting(
        "compression.type",
        SettingType.STRING,
        "The codec of stored batches; `producer` keeps what the producer sent.",
        one_of=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    _setting(
        "compression.zstd.level", SettingType.INT, f"{_ACCEPTED}, as that of gzip.", at_least=-131_072, at_most=22
    ),
    _setting("delete.retention.ms", SettingType.LONG, "How long a tombstone stays in a compacted log.", at_least=0),
    _setting("file.delete.delay.ms", SettingType.LONG, "How long a removed file stays on disk.", at_least=0),
    _setting("flush.messages", SettingType.LONG, "Flush after this many records (page-cache durability).", at_least=1),
    _setting("flush.ms", SettingType.LONG, "Flush after this time (page-cache durability).", at_least=0),
    _setting(
        "follower.replication.throttled.replicas",
        SettingType.LIST,
        "Replicas that fetch at follower.replication.throttled.rate while out of sync: PARTITION:BROKER,... or *.",
        throttled_replicas=True,
    ),
    _setting("index.interval.bytes", SettingType.INT, "Log bytes between two index entries.", at_least=0),
    _setting(
        "key.ranges.enable",
        SettingType.BOOLEAN,
        "Whether the topic has views, and records are filtered for readers of key ranges. If not, these filter.",
    ),
    _setting(
        "key.ranges.index",
        SettingType.STRING,
        "Whether logs that are read by key get key indexes beside their segments: when needed (auto), or none.",
        one_of=("auto", "none"),
    ),
    _setting(
        "leader.replication.throttled.replicas",
        SettingType.LIST,
        "Leaders that send at leader.replication.throttled.rate to replicas out of sync: PARTITION:BROKER,... or *.",
        throttled_replicas=True,
    ),
    _setting("local.retention.bytes", SettingType.LONG, f"{_ACCEPTED}: {_NO_TIERS}.", at_least=-2),
    _setting("local.retention.ms", SettingType.LONG, f"{_ACCEPTED}: {_NO_TIERS}.", at_least=-2),
    _setting("max.compaction.lag.ms", SettingType.LONG, "A record is compacted at the latest after this.", at_least=1),
    _setting("max.message.bytes", SettingType.INT, "The largest record batch, as stored.", at_least=0),
    _setting(
        "message.timestamp.after.max.ms",
        SettingType.LONG,
        "How far a record's timestamp may lie after the broker's clock.",
        at_least=0,
    ),
    _setting(
        "message.timestamp.before.max.ms",
        SettingType.LONG,
        "How far a record's timestamp may lie before the broker's clock.",
        at_least=0,
    ),
    _setting(
        "message.timestamp.type",
        SettingType.STRING,
        "The clock that stamps a record: the producer's (CreateTime) or the broker's (LogAppendTime).",
        one_of=("CreateTime", "LogAppendTime"),
    ),
    _setting(
        "min.cleanable.dirty.ratio",
        SettingType.DOUBLE,
        "The share of the log not yet compacted at which compaction starts.",
        at_least=0,
        at_most=1,
    ),
    _setting("min.compaction.lag.ms", SettingType.LONG, "A record is not compacted before this age.", at_least=0),
    _setting(
        "min.insync.replicas",
        SettingType.INT,
        "How many replicas must be in sync for acks=all to be accepted.",
        at_least=1,
    ),
    _setting("preallocate", SettingType.BOOLEAN, "Accepted for Kafka's files; a segment grows with its records."),
    _setting("remote.log.copy.disable", SettingType.BOOLEAN, f"{_ACCEPTED}: {_NO_TIERS}."),
    _setting("remote.log.delete.on.disable", SettingType.BOOLEAN, f"{_ACCEPTED}: {_NO_TIERS}."),
    _setting("remote.storage.enable", SettingType.BOOLEAN, f"{_ACCEPTED} if it is false: {_NO_TIERS}."),
    _setting(
        "retention.bytes",
        SettingType.LONG,
        "The size per partition above which old segments go; -1: none. The active segment stays.",
    ),
    _setting(
        "retention.ms",
        SettingType.LONG,
        "The age above which old segments go; -1: none. The active segment stays: see segment.ms.",
        at_least=-1,
    ),
    _setting("segment.bytes", SettingType.INT, "The size at which a new segment starts.", at_least=14),
    _setting("segment.index.bytes", SettingType.INT, "The largest offset index of a segment.", at_least=4),
    _setting("segment.jitter.ms", SettingType.LONG, "At most this is taken from segment.ms, at random.", at_least=0),
    _setting("segment.ms", SettingType.LONG, "The age at which the next record starts a new segment.", at_least=1),
    _setting(
        "unclean.leader.election.enable", SettingType.BOOLEAN, "Let a replica out of sync lead: it loses records."
    ),
)

assert {attribute_name(name) for name in TOPIC_SETTINGS} == {field.name for field in fields(TopicConfig)}
