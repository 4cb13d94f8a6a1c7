"""Settings of the metadata quorum: voters, timeouts, and snapshots."""

from tailrace.node.settings.broker_setting import DOUBLE, INT, LIST, LONG, setting
from tailrace.raft.ports import RaftConfig
from tailrace.raft.snapshots import SnapshotTrigger

_RAFT = RaftConfig()
_TRIGGER = SnapshotTrigger()

QUORUM_SETTINGS = (
    setting(
        "controller.quorum.voters",
        LIST,
        (),
        "The controllers that found the quorum, ID@HOST:PORT, the same on every node. Once it is founded its log has"
        " the voters, and these addresses are asked first. For Kafka they are the voters for ever.",
    ),
    setting(
        "controller.quorum.bootstrap.servers",
        LIST,
        (),
        "Controllers to ask for the leader, HOST:PORT: for nodes that join a quorum that exists.",
    ),
    setting(
        "controller.quorum.fetch.timeout.ms",
        INT,
        _RAFT.fetch_timeout_ms,
        "A leader silent this long is replaced (Kafka: 2000).",
        at_least=1,
    ),
    setting(
        "controller.quorum.election.timeout.ms",
        INT,
        _RAFT.election_timeout_ms,
        "How long an election may take (Kafka: 1000).",
        at_least=1,
    ),
    setting(
        "controller.quorum.election.backoff.max.ms",
        INT,
        _RAFT.election_backoff_max_ms,
        "The longest rest after a lost election.",
        at_least=0,
    ),
    setting(
        "controller.quorum.request.timeout.ms",
        INT,
        _RAFT.request_timeout_ms,
        "How long a controller waits for another.",
        at_least=1,
    ),
    setting(
        "controller.quorum.retry.backoff.ms",
        INT,
        _RAFT.retry_backoff_ms,
        "The rest before a controller is asked again.",
        at_least=0,
    ),
    setting(
        "controller.quorum.fetch.max.bytes",
        INT,
        _RAFT.fetch_max_bytes,
        "Bytes of the metadata log that are fetched at a time: they must arrive within the fetch timeout (KIP-1219).",
        at_least=1,
    ),
    setting(
        "controller.quorum.fetch.snapshot.max.bytes",
        INT,
        _RAFT.snapshot_max_bytes,
        "Bytes of a snapshot that are fetched at a time; replica.fetch.response.max.bytes if that is less (KIP-1219).",
        at_least=1,
    ),
    setting(
        "metadata.log.max.record.bytes.between.snapshots",
        LONG,
        _TRIGGER.min_log_bytes,
        "Bytes of metadata between two snapshots, at least.",
        at_least=1,
    ),
    setting(
        "metadata.snapshot.min.changed_records.ratio",
        DOUBLE,
        _TRIGGER.min_changed_ratio,
        "How much of a snapshot must have changed before the next is written (KIP-630; Kafka has none of this).",
        at_least=0,
        at_most=1,
    ),
    setting(
        "metadata.start.offset.lag.time.max.ms",
        LONG,
        _RAFT.start_offset_lag_ms,
        "How long metadata that a snapshot stands for is kept for a replica that lags (KIP-630; not in Kafka).",
        at_least=0,
    ),
    setting(
        "metadata.log.max.snapshot.interval.ms",
        LONG,
        3_600_000,
        "Accepted for Kafka's files; snapshots go by what has changed.",
        at_least=0,
    ),
    setting(
        "metadata.log.segment.bytes", INT, 1_073_741_824, "The size of a segment of the metadata log.", at_least=14
    ),
    setting(
        "metadata.max.retention.bytes",
        LONG,
        104_857_600,
        "Accepted for Kafka's files; old metadata goes when a snapshot stands for it.",
    ),
    setting(
        "metadata.max.retention.ms", LONG, 604_800_000, "Accepted for Kafka's files, as metadata.max.retention.bytes."
    ),
)
