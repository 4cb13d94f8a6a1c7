"""A node that hangs, stopped with its connections open, costs its readers two seconds and not a request's time limit.

The time limit here is longer than any test: a client that waits for it does not get its records.
"""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin, Producer
from tailrace.client.consumer import AsyncConsumer
from tailrace.client.reader_settings import RangedFetchSettings
from tailrace.client.reading.consumer_metrics import MetricName
from tailrace.client.reading.ranged_fetch import AsyncRangedFetch
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

SECONDS = 60.0
ENDLESS_MS = 10**9
LEADER, FOLLOWER = 1, 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with Cluster(brokers=3, racks=["a", "b", "c"], config=config) as cluster:
        yield cluster


@pytest.fixture
def partition(cluster: Cluster) -> TopicPartition:
    """The leader is in rack a, its only follower in rack c."""
    name = f"topic-{uuid4()}"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=name, assignments={0: (LEADER, FOLLOWER)})])
    _produce(cluster, name, b"0")
    return TopicPartition(name, 0)


def _produce(cluster: Cluster, topic: str, value: bytes) -> None:
    with Producer(cluster.bootstrap_servers, acks=1) as producer:
        producer.send(topic, value, partition=0).result(SECONDS)


def test_a_consumer_leaves_a_replica_that_hangs(cluster: Cluster, partition: TopicPartition) -> None:
    async def run() -> list[bytes | None]:
        values: list[bytes | None] = []
        async with AsyncConsumer(cluster.bootstrap_servers, client_rack="c") as consumer:
            consumer._reader.router.request_timeout_ms = ENDLESS_MS
            await consumer.assign([partition])
            await consumer.seek(partition, 0)
            served_by = MetricName("preferred-read-replica", partition)
            async with asyncio.timeout(SECONDS):
                while not values or consumer.metrics()[served_by] != FOLLOWER:
                    values += [record.value for record in await consumer.poll(0.1)]
            cluster.pause(FOLLOWER)
            try:
                await asyncio.to_thread(_produce, cluster, partition.topic, b"1")
                async with asyncio.timeout(SECONDS):
                    while len(values) < 2:
                        values += [record.value for record in await consumer.poll(0.1)]
            finally:
                cluster.resume(FOLLOWER)
            await asyncio.to_thread(_produce, cluster, partition.topic, b"2")
            async with asyncio.timeout(SECONDS):
                while len(values) < 3:
                    values += [record.value for record in await consumer.poll(0.1)]
        return values

    assert asyncio.run(run()) == [b"0", b"1", b"2"]


async def test_a_range_is_read_from_the_leader_when_the_replica_hangs(
    cluster: Cluster, partition: TopicPartition
) -> None:
    router = Router(ClientSettings(cluster.bootstrap_servers, request_timeout_ms=ENDLESS_MS))
    async with AsyncRangedFetch.of(RangedFetchSettings.on(router.settings, rack="c"), router) as reader:
        await router.refresh((partition.topic,))
        reader._near_replicas.name(partition, FOLLOWER, router.now_ms())
        cluster.pause(FOLLOWER)
        try:
            async with asyncio.timeout(SECONDS):
                chunks = [chunk async for chunk in reader.fetch_range(partition, 0, 1)]
        finally:
            cluster.resume(FOLLOWER)
    assert [chunk.next_offset for chunk in chunks] == [1]


@pytest.mark.parametrize("is_connected", [True, False])
async def test_metadata_come_from_another_node_when_the_first_hangs(cluster: Cluster, is_connected: bool) -> None:
    addresses = cluster.bootstrap_servers.split(",")
    first = ",".join([addresses[FOLLOWER - 1], *addresses[: FOLLOWER - 1]])
    router = Router(ClientSettings(first, request_timeout_ms=ENDLESS_MS, socket_connection_setup_timeout_ms=ENDLESS_MS))
    try:
        if is_connected:
            await router.any_connection()
        cluster.pause(FOLLOWER)
        try:
            async with asyncio.timeout(SECONDS):
                await router.refresh(())
                assert (await router.any_connection()).address != router.bootstrap[0]
        finally:
            cluster.resume(FOLLOWER)
    finally:
        router.close()
