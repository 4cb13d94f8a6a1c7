"""Settings of the metadata quorum: who votes, who waits how long, and when snapshots are written."""

from tailrace.node.settings.broker_setting import DOUBLE, INT, LIST, LONG, setting

QUORUM_SETTINGS = (
    setting(
        "controller.quorum.voters",
        LIST,
        (),
        "The controllers that found the quorum, ID@HOST:PORT, the same on every node. Once it is founded its log says"
        " who votes, and this is where they are asked first. For Kafka they are who votes, for ever.",
    ),
    setting(
        "controller.quorum.bootstrap.servers",
        LIST,
        (),
        "Controllers to ask who leads, HOST:PORT: for nodes that come to a quorum that is there.",
    ),
    setting(
        "controller.quorum.fetch.timeout.ms",
        INT,
        1_000,
        "A leader silent this long is replaced (Kafka: 2000).",
        at_least=1,
    ),
    setting(
        "controller.quorum.election.timeout.ms", INT, 500, "How long an election may take (Kafka: 1000).", at_least=1
    ),
    setting(
        "controller.quorum.election.backoff.max.ms", INT, 1_000, "The longest rest after a lost election.", at_least=0
    ),
    setting("controller.quorum.request.timeout.ms", INT, 2_000, "How long a controller waits for another.", at_least=1),
    setting("controller.quorum.retry.backoff.ms", INT, 20, "The rest before a controller is asked again.", at_least=0),
    setting(
        "controller.quorum.fetch.max.bytes",
        INT,
        1_048_576,
        "Bytes of the metadata log that are fetched at a time: they must arrive within the fetch timeout (KIP-1219).",
        at_least=1,
    ),
    setting(
        "controller.quorum.fetch.snapshot.max.bytes",
        INT,
        1_048_576,
        "Bytes of a snapshot that are fetched at a time; replica.fetch.response.max.bytes if that is less (KIP-1219).",
        at_least=1,
    ),
    setting(
        "metadata.log.max.record.bytes.between.snapshots",
        LONG,
        20_971_520,
        "Bytes of metadata between two snapshots, at least.",
        at_least=1,
    ),
    setting(
        "metadata.snapshot.min.changed_records.ratio",
        DOUBLE,
        0.5,
        "How much of a snapshot must have changed before the next is written (KIP-630; Kafka has none of this).",
        at_least=0,
        at_most=1,
    ),
    setting(
        "metadata.start.offset.lag.time.max.ms",
        LONG,
        604_800_000,
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
