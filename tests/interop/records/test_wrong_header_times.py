"""Clients whose batches state a wrong largest time: kafkajs the largest that was given, sarama up to 1.45 none."""

import time

import pytest

from interop import kafkajs
from interop.kafkajs import absent as kafkajs_absent
from interop.records import sarama
from interop.records.sarama import absent as sarama_absent
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

HOUR_MS = 3_600_000
MAX_TIMESTAMP = -3
RETENTION = {"log.retention.check.interval.ms": "200"}
"""The first pass comes half a minute after the start."""
_SECONDS = 120.0


def test_kafkajs_records_without_a_time_are_kept_and_found() -> None:
    if why := kafkajs_absent():
        pytest.skip(why)
    fresh, old = TopicPartition("fresh", 0), TopicPartition("old", 0)
    settings = {"retention.ms": str(HOUR_MS), "segment.bytes": "65536"}
    with Cluster(config=RETENTION) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=each.topic, partitions=1, configs=settings) for each in (fresh, old)])
        before_ms = kafkajs.produce_pairs(cluster.bootstrap_servers, "fresh", 30, age_ms=2 * HOUR_MS)
        assert admin.list_offsets({fresh: before_ms})[fresh].offset == 1
        assert admin.list_offsets({fresh: before_ms - 2 * HOUR_MS})[fresh].offset == 0
        assert admin.list_offsets({fresh: MAX_TIMESTAMP})[fresh].offset % 2 == 1
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(30):
                producer.send("old", bytes(20_000), timestamp=before_ms - 2 * HOUR_MS)
                producer.flush()
        # Retention has gone over both topics then.
        wait_until(lambda: admin.list_offsets({old: -2})[old].offset > 0, "a deletion", deadline_s=_SECONDS)
        ends = admin.list_offsets({fresh: -2})[fresh].offset, admin.list_offsets({fresh: -1})[fresh].offset
        assert ends == (0, 60)


def test_records_of_sarama_are_found_by_their_times(tailrace_cluster: Cluster) -> None:
    if why := sarama_absent():
        pytest.skip(why)
    partition = TopicPartition("of-sarama", 0)
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({partition.topic: 1})
        before_ms = int(time.time() * 1000)
        assert sarama.produce(tailrace_cluster.bootstrap_servers, partition.topic) == [0, 1, 2]
        for timestamp in (0, before_ms - 60_000, before_ms):
            assert admin.list_offsets({partition: timestamp})[partition].offset == 0
        largest = admin.list_offsets({partition: MAX_TIMESTAMP})[partition]
        assert 0 <= largest.offset <= 2
        assert abs(largest.timestamp - before_ms) < 600_000, "the node's clock, which may be set meanwhile"
