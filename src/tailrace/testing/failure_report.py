"""The part about clusters in the report of a failed test: the ends of the logs, and the last records.

The report is short, takes seconds at most, and never fails: a cluster in trouble is the usual case.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tailrace.client.blocking.admin import Admin
from tailrace.client.blocking.consumer import Consumer
from tailrace.client.offsets import LATEST
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.partitions import TopicPartition
from tailrace.testing.comparison import show
from tailrace.testing.running_test import Section
from tailrace.testing.servers import Connection

LINES = 20
"""The last lines of the log of a node, of the lines since the test began."""
FEWEST_LINES = 5
"""The last lines of the log of a node that has written fewer lines since the test began."""
RECORDS = 5
"""The last records of a topic."""
TIME_S = 4.0
"""The longest time for the records of all topics."""
_LINE_CHARACTERS = 300
_CLUSTERS = 3
_TOPICS = 8
_PARTITIONS = 200


class ReportedCluster(Protocol):
    """A `tailrace.testing.Cluster`."""

    @property
    def node_ids(self) -> list[int]: ...

    @property
    def named_topics(self) -> Mapping[str, int]: ...

    @property
    def running_settings(self) -> dict[str, str]: ...

    def is_running(self, node: int = 1) -> bool: ...

    def log_tail(self, node: int, lines: int, *, of_test: bool = False) -> list[str]: ...


def used_clusters(values: Iterable[object]) -> list[ReportedCluster]:
    """The clusters among these values, of fixtures and of the test's class, that have nodes."""
    from tailrace.testing.cluster import Cluster
    from tailrace.testing.kafka_container import KafkaContainer

    found: dict[int, ReportedCluster] = {}
    for value in values:
        cluster = value.cluster if isinstance(value, KafkaContainer) and value.is_started else value
        if isinstance(cluster, Cluster) and cluster.node_ids:
            found[id(cluster)] = cluster
    return list(found.values())[:_CLUSTERS]


def sections(cluster: ReportedCluster, since_ms: int) -> list[Section]:
    """The sections about a cluster; records are of topics that were named, or written to, since the given time."""
    found: list[Section] = []
    for node in cluster.node_ids:
        state = "" if cluster.is_running(node) else " (not running)"
        lines, part = cluster.log_tail(node, LINES, of_test=True), "its log since the test began"
        if len(lines) < FEWEST_LINES:
            lines, part = cluster.log_tail(node, FEWEST_LINES), "the last lines of its log"
        shown = "\n".join(line[:_LINE_CHARACTERS] for line in lines)
        found.append((f"Tailrace node {node}{state}: {part}", shown or "(no line)"))
    records = _in_time(lambda: _records(cluster, since_ms))
    return [*found, ("Tailrace topics: the last records", records)] if records else found


def _in_time(look: Callable[[], str]) -> str:
    """The text of the look, or the reason for which there is no text. A look that hangs is left behind."""
    texts: list[str] = []

    def work() -> None:
        try:
            texts.append(look())
        except Exception as fault:  # noqa: BLE001 - a report of a failure must not hide the failure
            texts.append(f"(no records: {fault})")

    thread = threading.Thread(target=work, name="tailrace failure report", daemon=True)
    thread.start()
    thread.join(TIME_S)
    return texts[0] if texts else f"(no records: the cluster did not answer within {TIME_S:g} s)"


def _records(cluster: ReportedCluster, since_ms: int) -> str:
    deadline = time.monotonic() + TIME_S
    servers = cluster.running_settings
    timeout_ms = int(TIME_S * 1000)
    blocks = []
    with Admin(servers, bootstrap_timeout_ms=timeout_ms, default_api_timeout_ms=timeout_ms) as admin:
        found_topics = admin.list_topics()
        partitions = {
            topic.name: [TopicPartition(topic.name, each.partition) for each in topic.partitions if each.leader >= 0]
            for topic in found_topics
        }
        leaderless = [
            TopicPartition(topic.name, each.partition)
            for topic in found_topics
            for each in topic.partitions
            if each.leader < 0
        ]
        named = [topic for topic, ms in cluster.named_topics.items() if ms >= since_ms and topic in partitions]
        others = [each for topic, found in partitions.items() if topic not in named for each in found][:_PARTITIONS]
        ends = admin.list_offsets(dict.fromkeys(others, since_ms)) if others else {}
        written = sorted({partition.topic for partition, end in ends.items() if end.offset >= 0})
        topics = [*named, *written]
        for topic in topics[:_TOPICS]:
            lasts = admin.list_offsets(dict.fromkeys(partitions[topic], LATEST)) if partitions[topic] else {}
            tail = _last_records(servers, {partition: end.offset for partition, end in lasts.items()}, deadline)
            unread = [each for each in leaderless if each.topic == topic]
            lines = [f"    {show(record)}" for record in tail]
            lines += [f"    (partition {each.partition} has no leader now, and was not read)" for each in unread]
            lines = lines or ["    (no records)"]
            blocks.append("\n".join([f"{topic}:", *lines]))
    if len(topics) > _TOPICS:
        blocks.append(f"... and {len(topics) - _TOPICS} more topics")
    return "\n".join(blocks)


def _last_records(servers: Connection, ends: dict[TopicPartition, int], deadline: float) -> list[ConsumerRecord]:
    """The last records of the partitions that end at these offsets, the newest last."""
    starts = {partition: max(0, end - RECORDS) for partition, end in ends.items() if end > 0}
    if not starts:
        return []
    records: list[ConsumerRecord] = []
    with Consumer(servers, auto_offset_reset="earliest", until={each: ends[each] for each in starts}) as consumer:
        consumer.assign(list(starts))
        for partition, start in starts.items():
            consumer.seek(partition, start)
        while not consumer.is_at_end and time.monotonic() < deadline:
            records += consumer.poll(0.2)
    return sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset))[-RECORDS:]
