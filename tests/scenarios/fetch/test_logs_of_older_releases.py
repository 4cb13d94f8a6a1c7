"""Logs whose headers state times that their records do not have, as older releases have stored them (decision 0069)."""

import os
import time
from pathlib import Path

import pytest

from tailrace.client.blocking import Admin, Consumer, NewTopic, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import iter_batches, stamp_max_timestamp
from tailrace.storage.flushed_note import FLUSHED_OFFSET
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

HOUR_MS = 3_600_000
COUNT = 30
_SECONDS = 120.0


def make_older(directory: Path, offset_ms: int) -> None:
    """Change the directory of a partition: each header states a time so much after its first record's, nothing vouches,
    and the files are old."""
    for path in directory.glob("*.log"):
        content = bytearray(path.read_bytes())
        for position, header in list(iter_batches(content)):
            stamp_max_timestamp(content, position, header.base_timestamp + offset_ms)
        path.write_bytes(content)
        os.utime(path, (1_600_000_000, 1_600_000_000))
        for suffix in (".index", ".timeindex"):
            path.with_suffix(suffix).unlink(missing_ok=True)
    (directory / FLUSHED_OFFSET).unlink()


def test_lookups_and_retention_go_by_the_records_of_old_logs(tmp_path: Path) -> None:
    fresh, late = TopicPartition("fresh", 0), TopicPartition("late", 0)
    settings = {"retention.ms": str(HOUR_MS), "segment.bytes": "16384"}
    config = {"log.retention.check.interval.ms": "200"}
    with Cluster(config=config, directory=tmp_path) as cluster:
        servers = cluster.bootstrap_servers
        now_ms = int(time.time() * 1000)
        with Admin(servers) as admin, Producer(servers, linger_ms=1000, compression="gzip") as producer:
            admin.create_topics([NewTopic(name=each.topic, partitions=1, configs=settings) for each in (fresh, late)])
            for number in range(COUNT):
                for topic, newest_ms in (("fresh", now_ms + number), ("late", now_ms - 2 * HOUR_MS + number)):
                    producer.send(topic, b"old", timestamp=now_ms - 3 * HOUR_MS)
                    producer.send(topic, os.urandom(3000), timestamp=newest_ms)
                producer.flush()
        cluster.stop()
        make_older(cluster.data_dir() / "fresh-0", 0)
        make_older(cluster.data_dir() / "late-0", 3 * HOUR_MS)
        cluster.start()
        with Admin(servers) as admin:
            for number in (0, 7, COUNT - 1):
                assert admin.list_offsets({fresh: now_ms + number})[fresh].offset == 2 * number + 1
            assert admin.list_offsets({fresh: -3})[fresh].offset == 2 * COUNT - 1
            # Retention has gone over both topics then.
            wait_until(
                lambda: admin.list_offsets({late: -2})[late].offset > 0,
                "a deletion of what is old by its records",
                deadline_s=_SECONDS,
            )
            assert admin.list_offsets({fresh: -2})[fresh].offset == 0, "records of now are kept"
        with Consumer(servers) as consumer:
            consumer.assign([fresh])
            consumer.seek(fresh, 0)
            read = 0
            deadline = time.monotonic() + _SECONDS
            while read < 2 * COUNT and time.monotonic() < deadline:
                read += len(consumer.poll(0.5))
        assert read == 2 * COUNT
