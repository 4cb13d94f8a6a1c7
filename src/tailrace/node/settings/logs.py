"""Settings of the logs: when a record counts as written, how long records are kept, and when files are flushed."""

from tailrace.model.settings import BOOLEAN, DOUBLE, INT, LONG, STRING, setting
from tailrace.server.partitions.cleaner import CleanerConfig
from tailrace.server.partitions.periodic_work import PeriodicWorkConfig
from tailrace.server.partitions.scrubber import ScrubberConfig

FLUSHED = "flushed"
PAGE_CACHE = "page-cache"

LOG_SETTINGS = (
    setting(
        "log.durability",
        STRING,
        FLUSHED,
        "When a record counts as written: `flushed` means on the disk of min.insync.replicas nodes; `page-cache` means"
        " in their memory, as Kafka does.",
        one_of=(FLUSHED, PAGE_CACHE),
    ),
    setting(
        "log.retention.ms",
        LONG,
        None,
        "The age above which old segments go; -1: none. Wins over minutes.",
        at_least=-1,
        dynamic=True,
    ),
    setting("log.retention.minutes", INT, None, "As log.retention.ms, in minutes. Wins over hours."),
    setting("log.retention.hours", INT, 168, "As log.retention.ms, in hours."),
    setting("log.retention.check.interval.ms", LONG, PeriodicWorkConfig, "How often retention is applied.", at_least=1),
    setting(
        "log.roll.ms",
        LONG,
        None,
        "The age at which a new segment starts. Wins over hours.",
        at_least=1,
        dynamic=True,
    ),
    setting("log.roll.hours", INT, 168, "As log.roll.ms, in hours.", at_least=1),
    setting(
        "log.roll.jitter.ms",
        LONG,
        None,
        "The most by which log.roll.ms is shortened, by another share for each log. Wins over hours.",
        at_least=0,
        dynamic=True,
    ),
    setting("log.roll.jitter.hours", INT, 0, "As log.roll.jitter.ms, in hours.", at_least=0),
    setting(
        "log.flush.scheduler.interval.ms",
        LONG,
        PeriodicWorkConfig,
        "How often logs are looked at that have waited for flush.ms (page-cache durability).",
        at_least=0,
    ),
    setting(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        PeriodicWorkConfig,
        "How often the offsets known to be on disk are written down.",
        at_least=0,
    ),
    setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        PeriodicWorkConfig,
        "How often the first offsets of the logs are written down.",
        at_least=0,
    ),
    setting(
        "log.dir.failure.timeout.ms",
        LONG,
        30_000,
        "Accepted for Kafka's files; a node whose disk fails gives itself up and begins anew when the disk answers.",
        at_least=1,
    ),
    setting("log.cleaner.enable", BOOLEAN, CleanerConfig, "Whether compacted logs are compacted."),
    setting(
        "log.cleaner.backoff.ms", LONG, CleanerConfig, "The rest between two looks for logs to compact.", at_least=0
    ),
    setting(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        CleanerConfig,
        "Memory for the keys of the log that is compacted; what does not fit waits for the next pass.",
        at_least=1,
    ),
    setting(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        CleanerConfig,
        "Bytes that compaction may read and write in a second.",
        at_least=1,
    ),
    setting(
        "log.scrub.enable",
        BOOLEAN,
        ScrubberConfig,
        "Whether logs at rest are looked through in the background for damage (ours; Kafka has none).",
    ),
    setting(
        "log.scrub.interval.ms",
        LONG,
        ScrubberConfig,
        "How often every log is looked through; the first time a minute after the start (ours).",
        at_least=1,
    ),
    setting(
        "log.scrub.io.max.bytes.per.second",
        DOUBLE,
        ScrubberConfig,
        "Bytes that may be read in a second to look through logs (ours).",
        at_least=1,
    ),
    setting("log.cleaner.io.buffer.size", INT, 524_288, "Accepted for Kafka's files.", at_least=0),
    setting("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, "Accepted for Kafka's files."),
    setting("log.cleaner.threads", INT, 1, "Accepted for Kafka's files; one log at a time.", at_least=0),
    setting(
        "log.dir.reserve.bytes",
        LONG,
        PeriodicWorkConfig,
        "With less than this free on the disk, producers are refused with KAFKA_STORAGE_ERROR; deletes, retention,"
        " offsets and metadata go on. 0: no reserve (ours; Kafka has none).",
        at_least=0,
    ),
    setting(
        "log.dir.stall.timeout.ms",
        INT,
        2_500,
        "How long the disk may take for one sync of a round of flushes, or for a round beyond 20 ms for each of its"
        " syncs. After that other nodes lead the partitions that this node leads, and this node leaves the in-sync"
        " replicas, until no round has taken so long for twice that time, or longer if the disk hangs again soon (ours;"
        " Kafka waits for replica.lag.time.max.ms).",
        at_least=1,
    ),
    setting("num.recovery.threads.per.data.dir", INT, 1, "Accepted for Kafka's files.", at_least=1),
)
