"""Settings of groups and of transactions, with Kafka's names and defaults except where a comment says otherwise."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tailrace.model.resource_settings import HEARTBEAT_INTERVAL, SESSION_TIMEOUT

MEMBERS_OF_FULL_SIZE = 6
"""The metadata of all members of a group together may be as large as that of so many members of the largest size."""
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""The longest wait of a first JoinGroup before its member is removed: a member without an id cannot send heartbeats."""


def _nothing_set(_: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Times in milliseconds, sizes in bytes."""

    group_initial_rebalance_delay_ms: int = 3000
    """The time for which the first rebalance of an empty group waits for more members."""
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 1000
    """Members per group; Kafka sets no limit."""
    group_max_metadata_bytes: int = 8_388_608
    """The size limit of one member's protocol metadata, and of its assignment. A limit of ours: Java's default consumer
    sends the names of its topics four times, twice with the partitions that it owns, so the limit has room for 7,000
    names of 249 characters."""
    group_max_groups: int = 10_000
    """The most groups of a node; a setting of Tailrace."""
    group_coordinator_rebalance_protocols: tuple[str, ...] = ("classic", "consumer", "streams")
    """The protocols by which members may join. Kafka's default; a node has no groups of streams."""
    group_consumer_session_timeout_ms: int = 45_000
    """The session timeout of a member of a consumer group (KIP-848), set by the coordinator, not by the member."""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """The heartbeat interval that the coordinator gives to a member of a consumer group."""
    group_consumer_max_size: int = 1000
    """Members per consumer group; Kafka sets no limit."""
    group_consumer_migration_policy: str = "bidirectional"
    """The allowed conversions of groups with members: bidirectional, upgrade, downgrade or disabled."""
    offset_metadata_max_bytes: int = 4096
    """The longest metadata text of a committed offset, in characters as Kafka counts."""
    offsets_commit_timeout_ms: int = 5000
    """The longest time for which an answer waits until its records are committed."""
    offsets_retention_minutes: int = 10_080
    """The retention time of offsets that no member of the group needs (KIP-211)."""
    offsets_retention_check_interval_ms: int = 600_000
    offsets_max_ranges_per_partition: int = 4096
    """The ranges that a group may have committed beyond its offset in a partition (KIP-X). Ours."""
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    """The replicas of a partition of this topic, or as many replicas as the cluster has brokers, if that is less."""
    offsets_topic_segment_bytes: int = 104_857_600

    @property
    def group_max_total_metadata_bytes(self) -> int:
        """The size limit of the metadata of all members, and of the record of a generation with its assignments."""
        return MEMBERS_OF_FULL_SIZE * self.group_max_metadata_bytes

    settings_of: Callable[[str], Mapping[str, str]] = field(default=_nothing_set, compare=False)
    """Returns the present settings of a group (`model.resource_settings`) by its id."""

    def session_timeout_ms(self, group_id: str) -> int:
        """The session timeout of a member of this consumer group."""
        text = self.settings_of(group_id).get(SESSION_TIMEOUT)
        return self.group_consumer_session_timeout_ms if text is None else int(text)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """The heartbeat interval of a member of this consumer group."""
        text = self.settings_of(group_id).get(HEARTBEAT_INTERVAL)
        return self.group_consumer_heartbeat_interval_ms if text is None else int(text)

    @property
    def has_consumer_groups(self) -> bool:
        """Whether members may join by KIP-848."""
        return "consumer" in self.group_coordinator_rebalance_protocols

    @property
    def upgrades(self) -> bool:
        """Whether a classic group with members becomes a consumer group."""
        return self.group_consumer_migration_policy in ("bidirectional", "upgrade")

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group of members with the classic protocol becomes a classic group."""
        return self.group_consumer_migration_policy in ("bidirectional", "downgrade")

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Times in milliseconds, sizes in bytes."""

    transaction_max_timeout_ms: int = 900_000
    """The longest transaction timeout that a producer may ask for."""
    transactional_id_expiration_ms: int = 604_800_000
    """The time after which an unused transactional id is deleted."""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_max_ids: int = 100_000
    """The most transactional ids of a node; a setting of Tailrace."""
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 3
    """The replicas of a partition of this topic, or as many replicas as the cluster has brokers, if that is less."""
    transaction_state_log_min_isr: int = 2
    """The replicas in sync that the topic needs; never more than the topic has replicas."""
    transaction_state_log_segment_bytes: int = 104_857_600
