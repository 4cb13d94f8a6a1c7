"""Settings of the coordinators: of groups and their offsets, and of transactions."""

from tailrace.coordinators.config import GroupConfig, TransactionConfig
from tailrace.model.settings import BOOLEAN, INT, LIST, LONG, SHORT, STRING, setting
from tailrace.server.partitions.periodic_work import PeriodicWorkConfig

GROUP_SETTINGS = (
    setting("group.min.session.timeout.ms", INT, GroupConfig, "The shortest session a member may ask for.", at_least=1),
    setting("group.max.session.timeout.ms", INT, GroupConfig, "The longest session a member may ask for.", at_least=1),
    setting(
        "group.initial.rebalance.delay.ms", INT, GroupConfig, "How long a new group waits for members.", at_least=0
    ),
    setting("group.max.size", INT, GroupConfig, "The most members of a classic group (Kafka: no limit).", at_least=1),
    setting(
        "group.coordinator.rebalance.protocols",
        LIST,
        GroupConfig,
        "The protocols of groups. Without consumer, members of consumer groups (KIP-848) are refused.",
        one_of=("classic", "consumer", "share", "streams"),
    ),
    setting(
        "group.consumer.session.timeout.ms",
        INT,
        GroupConfig,
        "How long a member of a consumer group (KIP-848) may be silent.",
        at_least=1,
    ),
    setting(
        "group.consumer.heartbeat.interval.ms",
        INT,
        GroupConfig,
        "The interval of heartbeats of a consumer group (KIP-848), sent to its members.",
        at_least=1,
    ),
    setting(
        "group.consumer.max.size",
        INT,
        GroupConfig,
        "The most members of a consumer group (Kafka: no limit).",
        at_least=1,
    ),
    setting(
        "group.consumer.migration.policy",
        STRING,
        GroupConfig,
        "Which groups with members are converted when members of the other protocol come, or the last one goes.",
        one_of=("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
    setting(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        600_000,
        "Accepted for Kafka's files; regular expressions are resolved whenever topics come and go.",
        at_least=10_000,
    ),
    setting(
        "group.max.groups", INT, GroupConfig, "The most groups that a node coordinates (Kafka: no limit).", at_least=1
    ),
    setting(
        "group.max.metadata.bytes",
        INT,
        GroupConfig,
        "The size of a member's metadata of protocols, and of its assignment; six times that for all members together"
        " (Kafka: no limit but that of the record, max.message.bytes of __consumer_offsets).",
        at_least=1,
        at_most=10 << 20,
    ),
    setting("offsets.topic.num.partitions", INT, GroupConfig, "Partitions of __consumer_offsets.", at_least=1),
    setting(
        "offsets.topic.replication.factor",
        SHORT,
        GroupConfig,
        "Replicas of __consumer_offsets; fewer while there are fewer brokers.",
        at_least=1,
    ),
    setting(
        "offsets.topic.segment.bytes", INT, GroupConfig, "The size of a segment of __consumer_offsets.", at_least=1
    ),
    setting(
        "offsets.topic.compression.codec",
        INT,
        0,
        "Accepted for Kafka's files; __consumer_offsets is not compressed.",
        at_least=0,
        at_most=4,
    ),
    setting(
        "offsets.load.buffer.size",
        INT,
        5_242_880,
        "Accepted for Kafka's files; a fixed size is read at once.",
        at_least=1,
    ),
    setting("offsets.commit.timeout.ms", INT, GroupConfig, "How long an offset commit may take.", at_least=1),
    setting("offsets.retention.minutes", INT, GroupConfig, "How long an empty group's offsets stay.", at_least=1),
    setting(
        "offsets.retention.check.interval.ms", LONG, GroupConfig, "How often old offsets are looked for.", at_least=1
    ),
    setting(
        "offsets.max.ranges.per.partition",
        INT,
        GroupConfig,
        "The most ranges of offsets and key hashes that a group may have committed beyond its offset in a partition.",
        at_least=1,
        at_most=8_192,
    ),
    setting("offset.metadata.max.bytes", INT, GroupConfig, "The longest note beside a committed offset.", at_least=0),
)

TRANSACTION_SETTINGS = (
    setting(
        "transaction.state.log.num.partitions", INT, TransactionConfig, "Partitions of __transaction_state.", at_least=1
    ),
    setting(
        "transaction.state.log.replication.factor",
        SHORT,
        TransactionConfig,
        "Replicas of __transaction_state; fewer while there are fewer brokers.",
        at_least=1,
    ),
    setting(
        "transaction.state.log.min.isr",
        INT,
        TransactionConfig,
        "Replicas that must be in sync for a transaction; fewer if __transaction_state has fewer replicas.",
        at_least=1,
    ),
    setting(
        "transaction.state.log.segment.bytes",
        INT,
        TransactionConfig,
        "The size of a segment of __transaction_state.",
        at_least=1,
    ),
    setting("transaction.max.timeout.ms", INT, TransactionConfig, "The longest transaction.", at_least=1),
    setting(
        "transactional.id.expiration.ms",
        INT,
        TransactionConfig,
        "How long an unused transactional id is kept.",
        at_least=1,
    ),
    setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        TransactionConfig,
        "How often transactions are looked for that are open for too long.",
        at_least=1,
    ),
    setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        TransactionConfig,
        "How often unused transactional ids are looked for.",
        at_least=1,
    ),
    setting(
        "transaction.partition.verification.enable",
        BOOLEAN,
        True,
        "Whether the coordinator is asked before a transaction's first batch is written to a partition.",
    ),
    setting(
        "transaction.max.ids",
        INT,
        TransactionConfig,
        "The most transactional ids of a node (Kafka: no limit).",
        at_least=1,
    ),
    setting(
        "producer.id.expiration.ms", INT, PeriodicWorkConfig, "How long an idle producer is remembered.", at_least=1
    ),
    setting(
        "producer.id.expiration.check.interval.ms",
        INT,
        PeriodicWorkConfig,
        "How often idle producers are looked for.",
        at_least=1,
    ),
)
