"""Serializers and deserializers of clients: what they are called with, and records that a function refuses."""

import json as standard_json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tailrace import aio, json
from tailrace.client.blocking import Admin, Consumer, KafkaError, Producer, RecordDeserializationError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

SECONDS = 60.0


@pytest.fixture
def servers(tailrace_cluster: Cluster) -> str:
    return tailrace_cluster.bootstrap_servers


@pytest.fixture
def topic(servers: str) -> Iterator[str]:
    name = f"values-{uuid4()}"
    with Admin(servers) as admin:
        admin.create_topics([name])
        yield name


def raw(servers: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values of a topic as bytes."""
    with Consumer(servers, topics=[topic], auto_offset_reset="earliest", until="end") as consumer:
        return [(record.key, record.value) for record in consumer]


def test_values_go_through_json_and_come_back(servers: str, topic: str) -> None:
    sent: list[Any] = [{"city": "Łódź", "count": 3}, [1, None], "text", 1.5, True]
    with Producer(servers, key_serializer=str.encode, value_serializer=json.serialize) as producer:
        for value in sent:
            producer.send(topic, value, key="k")
        assert producer.send_and_wait(topic, 0).offset == len(sent)
    assert raw(servers, topic)[0] == (b"k", '{"city":"Łódź","count":3}'.encode())
    with Consumer(
        servers,
        topics=[topic],
        auto_offset_reset="earliest",
        until="end",
        key_deserializer=bytes.decode,
        value_deserializer=json.deserialize,
    ) as consumer:
        assert [(record.key, record.value) for record in consumer] == [*(("k", value) for value in sent), (None, 0)]


def test_none_is_a_tombstone_and_no_function_gets_it(servers: str, topic: str) -> None:
    with Producer(servers, value_serializer=json.serialize) as producer:
        producer.send(topic, None, key=b"deleted")
        producer.send(topic, key=b"deleted, too")
    assert raw(servers, topic) == [(b"deleted", None), (b"deleted, too", None)]
    with Consumer(
        servers, topics=[topic], auto_offset_reset="earliest", until="end", value_deserializer=json.deserialize
    ) as consumer:
        assert [record.value for record in consumer] == [None, None]


def test_a_value_that_a_serializer_refuses_is_not_sent(servers: str, topic: str) -> None:
    with Producer(servers, value_serializer=json.serialize) as producer:
        with pytest.raises(TypeError, match="not JSON serializable") as refused:
            producer.send(topic, {1, 2})
        with pytest.raises(ValueError, match="not JSON compliant"):
            producer.send(topic, float("nan"))
        producer.send(topic, 1)
    assert refused.value.__notes__ == ["raised by value_serializer of a producer; the record is not sent"]
    assert raw(servers, topic) == [(None, b"1")]


def test_a_serializer_that_returns_no_bytes_is_named_by_its_result(servers: str, topic: str) -> None:
    text: Any = standard_json.dumps
    with Producer(servers, value_serializer=text) as producer, pytest.raises(TypeError, match="value must be bytes"):
        producer.send(topic, {"a": 1})


def test_the_partition_is_that_of_the_serialized_key(servers: str) -> None:
    topic = f"keys-{uuid4()}"
    with Admin(servers) as admin, Producer(servers) as plain, Producer(servers, key_serializer=str.encode) as texts:
        admin.create_topics({topic: 7})
        for number in range(20):
            placed = plain.send_and_wait(topic, key=b"%d" % number), texts.send_and_wait(topic, key=str(number))
            assert placed[0].partition == placed[1].partition


@pytest.fixture
def spoilt(servers: str, topic: str) -> str:
    """A topic with a text between numbers, at offset 2."""
    with Producer(servers) as producer:
        for value in (b"0", b"1", b"no number", b"3"):
            producer.send(topic, value, key=b"k")
    return topic


def refusal(consumer: Consumer[Any, Any]) -> RecordDeserializationError:
    """The error of the next poll that has a record."""
    while True:
        try:
            assert consumer.poll(SECONDS) == []
        except RecordDeserializationError as error:
            return error


def test_a_poll_ends_before_a_refused_record_and_the_next_poll_raises(servers: str, spoilt: str) -> None:
    place = TopicPartition(spoilt, 0)
    with Consumer(servers, group=f"g-{spoilt}", auto_offset_reset="earliest", value_deserializer=int) as consumer:
        consumer.subscribe([spoilt])
        values: list[int | None] = []
        while len(values) < 2:
            values += [record.value for record in consumer.poll(SECONDS)]
        assert values == [0, 1]
        for _ in range(2):
            error = refusal(consumer)
            assert (error.topic_partition, error.offset, error.key, error.value) == (place, 2, b"k", b"no number")
            assert isinstance(error.__cause__, ValueError)
            assert "value_deserializer cannot read the record at offset 2" in str(error)
            assert consumer.position(place) == 2
        consumer.commit()
        assert {name: at.offset for name, at in consumer.committed([place]).items()} == {place: 2}
        consumer.seek(error.topic_partition, error.offset + 1)
        assert [record.value for record in consumer.poll(SECONDS)] == [3]


def test_an_iteration_stops_at_a_refused_record_and_goes_on_behind_it(servers: str, spoilt: str) -> None:
    values = []
    with Consumer(
        servers, topics=[spoilt], auto_offset_reset="earliest", until="end", value_deserializer=int
    ) as consumer:
        while not consumer.is_at_end:
            try:
                values += [record.value for record in consumer]
            except RecordDeserializationError as error:
                with pytest.raises(RecordDeserializationError):
                    next(iter(consumer))
                consumer.seek(error.topic_partition, error.offset + 1)
    assert values == [3], "a list that an exception has ended is lost; the records before were returned"


def test_a_block_that_a_refused_record_ends_has_processed_every_record_before(servers: str, spoilt: str) -> None:
    group = f"g-{spoilt}"
    seen: list[int | None] = []

    def read() -> None:
        with Consumer(
            servers, group=group, topics=[spoilt], auto_offset_reset="earliest", value_deserializer=int
        ) as consumer:
            seen.extend(record.value for record in consumer)

    with pytest.raises(RecordDeserializationError):
        read()
    assert seen == [0, 1]
    with Admin(servers) as admin:
        assert [offset.offset for offset in admin.group_offsets(group).values()] == [2]


async def test_asyncio_clients_have_the_same_functions(servers: str, spoilt: str) -> None:
    async with aio.Producer(servers, value_serializer=json.serialize) as producer:
        await producer.send_and_wait(spoilt, 4)
    async with aio.Consumer(
        servers, topics=[spoilt], auto_offset_reset="earliest", until="end", value_deserializer=json.deserialize
    ) as consumer:
        assert [(await consumer.getone()).value for _ in range(2)] == [0, 1]
        with pytest.raises(RecordDeserializationError) as refused:
            await consumer.getone()
        await consumer.seek(refused.value.topic_partition, refused.value.offset + 1)
        assert [record.value async for record in consumer] == [3, 4]


def test_a_serializer_is_a_function() -> None:
    text: Any = "json"
    with pytest.raises(KafkaError, match=r"value.serializer 'json'; say a function that returns bytes, such as"):
        Producer("127.0.0.1:1", value_serializer=text)
    properties = {"bootstrap.servers": "127.0.0.1:1", "key.deserializer": "org.apache.kafka.StringDeserializer"}
    with pytest.raises(KafkaError, match=r"say a function of bytes, such as tailrace.json.deserialize"):
        Consumer(properties)
