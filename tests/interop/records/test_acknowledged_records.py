"""Records that foreign producers have acknowledged with acks=1 lie below the end that foreign readers get."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, OffsetSpec

from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

pytestmark = pytest.mark.interop

TIMES = 40


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that flushes, as a node does by default."""
    config = {"log.durability": "flushed"}
    with Cluster(directory=tmp_path_factory.mktemp("node"), config=config) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics({"aio": 1, "rd": 1})
        yield cluster.bootstrap_servers


def test_aiokafkas_default_producer_has_written_before_the_end(bootstrap: str) -> None:
    async def write_and_ask() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        partition, behind = aiokafka.TopicPartition("aio", 0), []
        await producer.start()
        await consumer.start()
        try:
            consumer.assign([partition])
            for _ in range(TIMES):
                written = await producer.send_and_wait("aio", b"a")
                end = (await consumer.end_offsets([partition]))[partition]
                await consumer.seek_to_end(partition)
                behind += [end - written.offset, await consumer.position(partition) - written.offset]
        finally:
            await producer.stop()
            await consumer.stop()
        return behind

    assert asyncio.run(write_and_ask()) == [1] * (2 * TIMES)


def test_records_of_acks_1_can_be_listed_and_deleted_at_once(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "1", "linger.ms": 0})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for _ in range(TIMES):
        written: list[Any] = []
        producer.produce("rd", b"a", on_delivery=lambda _, message, written=written: written.append(message.offset()))
        assert producer.flush(60) == 0
        (offset,) = written
        partition = confluent_kafka.TopicPartition("rd", 0)
        listed = admin.list_offsets({partition: OffsetSpec.latest()})[partition].result()
        assert listed.offset == offset + 1
        up_to = confluent_kafka.TopicPartition("rd", 0, offset + 1)
        assert admin.delete_records([up_to])[up_to].result().low_watermark == offset + 1
