"""acks=0: brokers do not answer; nevertheless a clean end loses no record, and buffers are bounded."""

import time
from collections.abc import Iterator

import pytest

from tailrace.client.blocking import Admin, Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.record import Record, build_batch
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

SECONDS = 60.0
BATCH = bytes(build_batch([Record(0, 1, None, b"x" * 900_000)]))
BATCHES = 40


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> Iterator[str]:
    """A topic of one partition, deleted afterwards: what is written here is large."""
    name = new_topic(tailrace_cluster)
    yield name
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.delete_topics([name])


def _send(producer: Producer, topic: str) -> None:
    for _ in range(BATCHES):
        producer.send_batch(topic, 0, BATCH)


def test_a_clean_end_leaves_nothing_unsent(tailrace_cluster: Cluster, topic: str) -> None:
    with Producer(tailrace_cluster.bootstrap_servers, acks=0, buffer_memory=100_000_000) as producer:
        _send(producer, topic)
    partition = TopicPartition(topic, 0)
    written, deadline = 0, time.monotonic() + SECONDS
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        while written < BATCHES and time.monotonic() < deadline:
            written = admin.list_offsets({partition: -1})[partition].offset
    assert written == BATCHES


def test_a_broker_that_does_not_read_fills_the_buffer_and_no_more() -> None:
    with Cluster() as cluster:
        producer = Producer(cluster.bootstrap_servers, acks=0, buffer_memory=4_000_000, max_block_ms=500)
        with producer:
            producer.send("orders", b"first", partition=0).result(SECONDS)
            cluster.pause()
            with pytest.raises(KafkaError, match=r"buffer\.memory 4000000 stayed full") as caught:
                _send(producer, "orders")
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            cluster.resume()
