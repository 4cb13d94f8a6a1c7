"""When a real node writes snapshots of its metadata (KIP-630, "When to Snapshot"), at the default ratio."""

import time
from collections.abc import Callable
from pathlib import Path

from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

_TOPIC = 2
_SETTINGS = (
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
)
_TOPICS = [f"topic-{number}" for number in range(8)]


def newest_snapshot(directory: Path) -> int:
    """The end offset of the newest snapshot; 0 if there is none."""
    found = [path.name for path in directory.rglob("__cluster_metadata-0/*.checkpoint")]
    return max((int(name.partition("-")[0]) for name in found), default=0)


def until(is_so: Callable[[], bool], cluster: Cluster) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, cluster.log_text()
        time.sleep(0.05)


def test_half_of_the_records_must_have_changed_and_new_ones_do_not_count(tmp_path: Path) -> None:
    """A setting is a record; without the ratio the log would have to grow to ten times the 4,000 bytes."""
    settings = {"metadata.log.max.record.bytes.between.snapshots": "4000"}
    with Cluster(config=settings, directory=tmp_path) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics(dict.fromkeys(_TOPICS, 1))
        for name in _TOPICS:  # some 1,000 bytes each; without a snapshot the ratio counts as met
            admin.alter_configs(_TOPIC, name, dict.fromkeys(_SETTINGS, "1000000"))
        until(lambda: newest_snapshot(tmp_path) > 0, cluster)
        admin.create_topics({"new": 60})  # some 6,000 bytes
        begun = admin.describe_quorum().high_watermark
        first = newest_snapshot(tmp_path)
        assert begun > first + 60
        for name in _TOPICS:
            admin.alter_configs(_TOPIC, name, dict.fromkeys(_SETTINGS, "2000000"))
        until(lambda: newest_snapshot(tmp_path) > first, cluster)
        assert newest_snapshot(tmp_path) > begun
