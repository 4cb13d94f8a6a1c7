"""The table of a node's settings: Kafka's names, units and defaults, and a few of our own (DESIGN 2.10).

Where a default differs from Kafka's, the text says so. Settings of topics stand here under their broker names; a value
here is the default of every topic that does not set its own.
"""

from collections.abc import Mapping

from tailrace.model.settings import Setting, SettingType, Table, Value, table_of
from tailrace.model.topic_config import TOPIC_SETTINGS
from tailrace.server.config_entries import BROKER_NAMES

_BOOLEAN = SettingType.BOOLEAN
_STRING = SettingType.STRING
_INT = SettingType.INT
_LONG = SettingType.LONG
_LIST = SettingType.LIST
_CLASS = SettingType.CLASS

FLUSHED = "flushed"
PAGE_CACHE = "page-cache"


def _setting(
    name: str,
    kind: SettingType,
    default: Value,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] | None = None,
    dynamic: bool = False,
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        doc=doc,
        at_least=at_least,
        at_most=at_most,
        one_of=one_of,
        dynamic=dynamic,
    )


_IDENTITY = (
    _setting("node.id", _INT, 1, "The number of this node, distinct in the cluster.", at_least=0),
    _setting("process.roles", _LIST, ("broker", "controller"), "What this node does.", one_of=("broker", "controller")),
    _setting("broker.rack", _STRING, None, "The rack this node stands in: for placement and for readers near by."),
    _setting("log.dirs", _STRING, None, "The directory that keeps the node's data; wins over log.dir."),
    _setting("log.dir", _STRING, "tailrace-data", "The directory that keeps the node's data (Kafka: /tmp/kafka-logs)."),
    _setting(
        "dev.mode",
        _BOOLEAN,
        False,
        "Defaults for trying out and for tests: topics are created when first used, the first rebalance of a group does"
        " not wait, the offsets topic has few partitions.",
    ),
)

_NETWORK = (
    _setting(
        "listeners",
        _LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on: NAME://HOST:PORT. A loopback address means both loopbacks; port 0 picks a free port.",
    ),
    _setting(
        "advertised.listeners",
        _LIST,
        None,
        "Addresses given to clients, if they differ from the ones listened on; port 0 means the port listened on.",
    ),
    _setting(
        "listener.insecure.allow",
        _BOOLEAN,
        False,
        "Listen on addresses that other machines can reach although nobody is asked who they are.",
    ),
    _setting(
        "listener.security.protocol.map",
        _LIST,
        ("PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"),
        "The security protocol of each listener name.",
    ),
    _setting("inter.broker.listener.name", _STRING, None, "The listener that other nodes use; the first by default."),
    _setting(
        "controller.listener.names",
        _LIST,
        (),
        "Which listeners are for controllers and brokers only; a node that keeps the metadata alone needs none.",
    ),
    _setting(
        "socket.request.max.bytes",
        _INT,
        16 << 20,
        "The largest Produce request (Kafka: 100 MiB, and for every API; ours take 4 MiB, Fetch from this machine 64).",
        at_least=1 << 20,
        at_most=100 << 20,
    ),
    _setting("socket.send.buffer.bytes", _INT, -1, "Accepted for Kafka's files; the system chooses.", at_least=-1),
    _setting("socket.receive.buffer.bytes", _INT, -1, "Accepted for Kafka's files; the system chooses.", at_least=-1),
    _setting("num.network.threads", _INT, 1, "Accepted for Kafka's files; one event loop does the work.", at_least=1),
    _setting("num.io.threads", _INT, 1, "Accepted for Kafka's files; one event loop does the work.", at_least=1),
    _setting("max.connections", _INT, 2_000, "Connections at once (Kafka: no limit).", at_least=1),
    _setting(
        "max.connections.per.ip",
        _INT,
        200,
        "Connections at once from one address, except from this machine (Kafka: no limit).",
        at_least=1,
    ),
    _setting(
        "max.connection.creation.rate",
        _INT,
        200,
        "New connections a second from other machines; whoever comes too early waits (Kafka: no limit).",
        at_least=1,
    ),
    _setting(
        "max.connection.creation.rate.per.ip",
        _INT,
        20,
        "New connections a second from one other machine (Kafka: a quota, no limit by default).",
        at_least=1,
    ),
    _setting(
        "connections.max.stall.ms",
        _LONG,
        60_000,
        "A client that takes nothing of its answers for this long is cut off (Kafka: only when it is idle).",
        at_least=1,
    ),
    _setting("connections.max.idle.ms", _LONG, 600_000, "A connection that is silent this long is closed.", at_least=1),
    _setting(
        "queued.max.request.bytes",
        _LONG,
        256 << 20,
        "Memory for requests being read (Kafka: no limit).",
        at_least=1 << 20,
    ),
    _setting(
        "metrics.listener",
        _STRING,
        None,
        "HOST:PORT that serves /metrics (Prometheus) and /healthz; port 0 picks a free one. None by default.",
    ),
    _setting(
        "metrics.max.partitions",
        _INT,
        10_000,
        "Partitions with offsets and sizes of their own in /metrics; the others are in the sums only.",
        at_least=0,
    ),
    _setting("log.format", _STRING, "text", "How the node's own log on stderr is written.", one_of=("text", "json")),
)

_LOG = (
    _setting(
        "log.durability",
        _STRING,
        FLUSHED,
        "When a record counts as written: `flushed` means on the disk of min.insync.replicas nodes; `page-cache` means"
        " in their memory, as Kafka does.",
        one_of=(FLUSHED, PAGE_CACHE),
    ),
    _setting(
        "log.retention.ms",
        _LONG,
        None,
        "The age above which old segments go; -1: none. Wins over minutes.",
        at_least=-1,
        dynamic=True,
    ),
    _setting("log.retention.minutes", _INT, None, "As log.retention.ms, in minutes. Wins over hours."),
    _setting("log.retention.hours", _INT, 168, "As log.retention.ms, in hours."),
    _setting("log.retention.check.interval.ms", _LONG, 300_000, "How often retention is applied.", at_least=1),
    _setting(
        "log.roll.ms",
        _LONG,
        None,
        "The age at which a new segment starts. Wins over hours.",
        at_least=1,
        dynamic=True,
    ),
    _setting("log.roll.hours", _INT, 168, "As log.roll.ms, in hours.", at_least=1),
    _setting(
        "log.roll.jitter.ms",
        _LONG,
        None,
        "At most this is taken from log.roll.ms. Wins over hours.",
        at_least=0,
        dynamic=True,
    ),
    _setting("log.roll.jitter.hours", _INT, 0, "As log.roll.jitter.ms, in hours.", at_least=0),
    _setting(
        "log.flush.scheduler.interval.ms",
        _LONG,
        2**63 - 1,
        "How often logs are looked at that have waited for flush.ms (page-cache durability).",
        at_least=0,
    ),
    _setting(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "How often the offsets known to be on disk are written down.",
        at_least=0,
    ),
    _setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        _INT,
        60_000,
        "How often the first offsets of the logs are written down.",
        at_least=0,
    ),
    _setting(
        "log.dir.failure.timeout.ms",
        _LONG,
        30_000,
        "Accepted for Kafka's files; a failed disk stops the node.",
        at_least=1,
    ),
    _setting("log.cleaner.enable", _BOOLEAN, True, "Whether compacted logs are compacted."),
    _setting("log.cleaner.backoff.ms", _LONG, 15_000, "The rest between two looks for logs to compact.", at_least=0),
    _setting(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        134_217_728,
        "Memory for the keys of the log that is compacted; what does not fit waits for the next pass.",
        at_least=1,
    ),
    _setting(
        "log.cleaner.io.max.bytes.per.second",
        SettingType.DOUBLE,
        1.7976931348623157e308,
        "Bytes that compaction may read and write in a second.",
        at_least=1,
    ),
    _setting("log.cleaner.io.buffer.size", _INT, 524_288, "Accepted for Kafka's files.", at_least=0),
    _setting("log.cleaner.io.buffer.load.factor", SettingType.DOUBLE, 0.9, "Accepted for Kafka's files."),
    _setting("log.cleaner.threads", _INT, 1, "Accepted for Kafka's files; one log at a time.", at_least=0),
    _setting(
        "log.dir.reserve.bytes",
        _LONG,
        128 << 20,
        "With less than this free on the disk, producers are refused with KAFKA_STORAGE_ERROR; deletes, retention,"
        " offsets and metadata go on. 0: no reserve (ours; Kafka has none).",
        at_least=0,
    ),
    _setting("num.recovery.threads.per.data.dir", _INT, 1, "Accepted for Kafka's files.", at_least=1),
)

TOPIC_SETTING_OF: Mapping[str, str] = {names[0]: topic for topic, names in BROKER_NAMES.items() if len(names) == 1}
"""Broker settings that are a topic setting under another name, in the same unit."""

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
    _setting("auto.create.topics.enable", _BOOLEAN, True, "Create a topic when it is first asked for."),
    _setting("num.partitions", _INT, 1, "Partitions of a topic that is created without saying.", at_least=1),
    _setting("default.replication.factor", _INT, 1, "Replicas of a topic that is created without saying.", at_least=1),
    _setting("delete.topic.enable", _BOOLEAN, True, "Whether topics may be deleted."),
    _setting(
        "max.partitions.per.topic", _INT, 1_000, "The most partitions a topic may have (Kafka: no limit).", at_least=1
    ),
    _setting("max.partitions.per.node", _INT, 4_000, "The most partitions a node keeps (Kafka: no limit).", at_least=1),
)

_REPLICATION = (
    _setting("replica.lag.time.max.ms", _LONG, 30_000, "A replica that lags this long is not in sync.", at_least=1),
    _setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5_000,
        "How often the high watermarks are written down.",
        at_least=1,
    ),
    _setting("replica.fetch.max.bytes", _INT, 1_048_576, "Bytes per partition that a follower asks for.", at_least=0),
    _setting("replica.fetch.response.max.bytes", _INT, 10_485_760, "Bytes that a follower asks for.", at_least=0),
    _setting("replica.fetch.wait.max.ms", _INT, 500, "How long a leader may keep a follower waiting.", at_least=0),
    _setting("replica.fetch.min.bytes", _INT, 1, "Bytes worth answering a follower for.", at_least=1),
    _setting("replica.fetch.backoff.ms", _INT, 1_000, "A follower's rest after an error.", at_least=0),
    _setting("replica.socket.timeout.ms", _INT, 30_000, "How long a follower waits for an answer.", at_least=1),
    _setting(
        "replica.selector.class", _CLASS, None, "package.module:Class that chooses the replica to read from (KIP-392)."
    ),
    _setting(
        "broker.heartbeat.interval.ms", _INT, 500, "How often a broker says that it lives (Kafka: 2000).", at_least=1
    ),
    _setting(
        "broker.session.timeout.ms", _INT, 2_500, "A broker silent this long is fenced (Kafka: 9000).", at_least=1
    ),
)

_QUORUM = (
    _setting(
        "controller.quorum.voters",
        _LIST,
        (),
        "The controllers that found the quorum, ID@HOST:PORT, the same on every node. Once it is founded its log says"
        " who votes, and this is where they are asked first. For Kafka they are who votes, for ever.",
    ),
    _setting(
        "controller.quorum.bootstrap.servers",
        _LIST,
        (),
        "Controllers to ask who leads, HOST:PORT: for nodes that come to a quorum that is there.",
    ),
    _setting(
        "controller.quorum.fetch.timeout.ms",
        _INT,
        1_000,
        "A leader silent this long is replaced (Kafka: 2000).",
        at_least=1,
    ),
    _setting(
        "controller.quorum.election.timeout.ms", _INT, 500, "How long an election may take (Kafka: 1000).", at_least=1
    ),
    _setting(
        "controller.quorum.election.backoff.max.ms", _INT, 1_000, "The longest rest after a lost election.", at_least=0
    ),
    _setting(
        "controller.quorum.request.timeout.ms", _INT, 2_000, "How long a controller waits for another.", at_least=1
    ),
    _setting(
        "controller.quorum.retry.backoff.ms", _INT, 20, "The rest before a controller is asked again.", at_least=0
    ),
    _setting(
        "metadata.log.max.record.bytes.between.snapshots",
        _LONG,
        20_971_520,
        "Bytes of metadata between two snapshots, at least.",
        at_least=1,
    ),
    _setting(
        "metadata.snapshot.min.changed_records.ratio",
        SettingType.DOUBLE,
        0.5,
        "How much of a snapshot must have changed before the next is written (KIP-630; Kafka has none of this).",
        at_least=0,
        at_most=1,
    ),
    _setting(
        "metadata.start.offset.lag.time.max.ms",
        _LONG,
        604_800_000,
        "How long metadata that a snapshot stands for is kept for a replica that lags (KIP-630; not in Kafka).",
        at_least=0,
    ),
    _setting(
        "metadata.log.max.snapshot.interval.ms",
        _LONG,
        3_600_000,
        "Accepted for Kafka's files; snapshots go by what has changed.",
        at_least=0,
    ),
    _setting(
        "metadata.log.segment.bytes", _INT, 1_073_741_824, "The size of a segment of the metadata log.", at_least=14
    ),
    _setting(
        "metadata.max.retention.bytes",
        _LONG,
        104_857_600,
        "Accepted for Kafka's files; old metadata goes when a snapshot stands for it.",
    ),
    _setting(
        "metadata.max.retention.ms", _LONG, 604_800_000, "Accepted for Kafka's files, as metadata.max.retention.bytes."
    ),
)

_GROUPS = (
    _setting("group.min.session.timeout.ms", _INT, 6_000, "The shortest session a member may ask for.", at_least=1),
    _setting("group.max.session.timeout.ms", _INT, 1_800_000, "The longest session a member may ask for.", at_least=1),
    _setting("group.initial.rebalance.delay.ms", _INT, 3_000, "How long a new group waits for members.", at_least=0),
    _setting("group.max.size", _INT, 1_000, "Members of a group (Kafka: no limit).", at_least=1),
    _setting(
        "group.consumer.session.timeout.ms",
        _INT,
        45_000,
        "How long a member of a consumer group (KIP-848) may be silent.",
        at_least=1,
    ),
    _setting(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        5_000,
        "How often members of a consumer group (KIP-848) are told to send heartbeats.",
        at_least=1,
    ),
    _setting("group.consumer.max.size", _INT, 1_000, "Members of a consumer group (Kafka: no limit).", at_least=1),
    _setting("group.max.groups", _INT, 10_000, "Groups that a node coordinates (Kafka: no limit).", at_least=1),
    _setting(
        "group.max.metadata.bytes",
        _INT,
        262_144,
        "What a member may bring as its protocols' metadata, or be given as assignment (Kafka: no limit).",
        at_least=1,
    ),
    _setting("offsets.topic.num.partitions", _INT, 50, "Partitions of __consumer_offsets.", at_least=1),
    _setting(
        "offsets.topic.replication.factor",
        SettingType.SHORT,
        3,
        "Replicas of __consumer_offsets; fewer while there are fewer brokers.",
        at_least=1,
    ),
    _setting(
        "offsets.topic.segment.bytes", _INT, 104_857_600, "The size of a segment of __consumer_offsets.", at_least=1
    ),
    _setting("offsets.topic.compression.codec", _INT, 0, "The codec of __consumer_offsets.", at_least=0, at_most=4),
    _setting("offsets.load.buffer.size", _INT, 5_242_880, "Bytes read at once when offsets are loaded.", at_least=1),
    _setting("offsets.commit.timeout.ms", _INT, 5_000, "How long an offset commit may take.", at_least=1),
    _setting("offsets.retention.minutes", _INT, 10_080, "How long an empty group's offsets stay.", at_least=1),
    _setting(
        "offsets.retention.check.interval.ms", _LONG, 600_000, "How often old offsets are looked for.", at_least=1
    ),
    _setting("offset.metadata.max.bytes", _INT, 4_096, "The longest note beside a committed offset.", at_least=0),
)

_TRANSACTIONS = (
    _setting("transaction.state.log.num.partitions", _INT, 50, "Partitions of __transaction_state.", at_least=1),
    _setting(
        "transaction.state.log.replication.factor",
        SettingType.SHORT,
        3,
        "Replicas of __transaction_state; fewer while there are fewer brokers.",
        at_least=1,
    ),
    _setting(
        "transaction.state.log.min.isr",
        _INT,
        2,
        "Replicas in sync for a transaction; at most as many as there are.",
        at_least=1,
    ),
    _setting("transaction.state.log.segment.bytes", _INT, 104_857_600, "The size of a segment of it.", at_least=1),
    _setting("transaction.max.timeout.ms", _INT, 900_000, "The longest transaction.", at_least=1),
    _setting(
        "transactional.id.expiration.ms", _INT, 604_800_000, "How long an unused transactional id is kept.", at_least=1
    ),
    _setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _INT,
        10_000,
        "How often transactions are looked for that are open for too long.",
        at_least=1,
    ),
    _setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        3_600_000,
        "How often unused transactional ids are looked for.",
        at_least=1,
    ),
    _setting(
        "transaction.partition.verification.enable",
        _BOOLEAN,
        True,
        "Whether the coordinator is asked before a transaction's first batch is written to a partition.",
    ),
    _setting("transaction.max.ids", _INT, 100_000, "Transactional ids of a node (Kafka: no limit).", at_least=1),
    _setting("producer.id.expiration.ms", _INT, 86_400_000, "How long an idle producer is remembered.", at_least=1),
    _setting(
        "producer.id.expiration.check.interval.ms", _INT, 600_000, "How often idle ones are looked for.", at_least=1
    ),
)

_FETCH = (
    _setting("fetch.max.bytes", _INT, 4_194_304, "The most bytes of one answer to a fetch.", at_least=1024),
    _setting(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1_000,
        "Fetch sessions at once (KIP-227); 0: none.",
        at_least=0,
    ),
)

BROKER_SETTINGS: Table = table_of(
    *_IDENTITY,
    *_NETWORK,
    *_LOG,
    *_TOPIC_DEFAULTS,
    *_TOPICS,
    *_REPLICATION,
    *_QUORUM,
    *_GROUPS,
    *_TRANSACTIONS,
    *_FETCH,
)

DEV_DEFAULTS: Mapping[str, Value] = {
    "auto.create.topics.enable": True,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
"""What `dev.mode` changes where nothing else is said."""
