"""Habits of other clients: forms of calls and names of settings that users of Kafka's clients type."""

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

import tailrace
from tailrace import aio
from tailrace.client.blocking import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer, RangedFetch
from tailrace.client.offsets import LATEST
from tailrace.client.partition_names import partition_named
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition


@pytest.fixture
def topic(servers: str) -> str:
    name = f"habits-{uuid4()}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
    return name


def test_servers_come_as_a_list_and_settings_by_dotted_names(servers: str, topic: str) -> None:
    settings = {"bootstrap.servers": servers, "linger.ms": "0", "compression.type": "lz4"}
    with Producer(settings) as producer:
        sent = producer.send_and_wait(topic, b"v")
    assert (sent.topic, sent.offset) == (topic, 0)
    read = {"bootstrap.servers": [servers], "group.id": str(uuid4()), "auto.offset.reset": "earliest"}
    with Consumer(read, topics=[topic], isolation_level="read_committed") as consumer:
        assert [record.value for record in consumer.poll(30)] == [b"v"]
    with Admin({"bootstrap.servers": servers}) as admin, Admin(bootstrap_servers=[servers, servers]) as other:
        assert admin.list_brokers() == other.list_brokers()


def test_a_pair_is_a_partition(servers: str, topic: str) -> None:
    with Producer(servers) as producer:
        for number in range(4):
            producer.send(topic, b"%d" % number, partition=0)
    with Consumer(servers, group=str(uuid4())) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 2)
        assert [record.value for record in consumer.poll(30)] == [b"2", b"3"]
        consumer.commit({(topic, 0): 3})
        assert consumer.committed([(topic, 0)])[TopicPartition(topic, 0)].offset == 3
        consumer.pause([(topic, 0)])
        assert consumer.paused() == {(topic, 0)}
        consumer.resume([(topic, 0)])
        assert consumer.position((topic, 0)) == 4


def test_a_pair_is_a_partition_for_an_administrator_too(servers: str, topic: str) -> None:
    group = f"g-{topic}"
    place = (topic, 0)
    with Producer(servers) as producer, Admin(servers) as admin:
        for number in range(4):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        admin.commit_offsets(group, {place: 2})
        assert {name: at.offset for name, at in admin.group_offsets(group, [place]).items()} == {place: 2}
        assert admin.reset_offsets(group, [place], shift_by=1)[TopicPartition(*place)].after == 3
        assert admin.list_offsets({place: LATEST})[TopicPartition(*place)].offset == 4
        assert admin.delete_records({place: 1}) == {place: 1}
        admin.delete_offsets(group, [place])
        assert admin.replication_factors([place]) == {place: 1}
        assert admin.elect_leaders([place]).keys() == {place}
        assert admin.list_partition_reassignments([place]) == {}
        admin.alter_partition_reassignments({place: [admin.list_brokers()[0].node_id]})
        assert admin.describe_leaderless([place]) == []
    with RangedFetch(servers) as fetch:
        assert sum(batch.num_rows for batch in fetch.arrow(place, 1, 4)) == 3
        assert sum(len(chunk) for chunk in fetch.fetch_range(place, 1, 4)) > 0
    with Consumer(servers, group=group) as consumer:
        consumer.assign([place])
        consumer.commit({place: 3})
        progress = consumer.committed(place)
        assert progress is not None
        assert progress.stable_offset == 3


def test_a_transaction_takes_pairs(servers: str, topic: str) -> None:
    with Consumer(servers, group=f"g-{topic}") as consumer, Producer(servers, transactional_id=topic) as producer:
        consumer.assign([(topic, 0)])
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction({(topic, 0): 7}, consumer.group_metadata())
        assert consumer.committed([(topic, 0)])[TopicPartition(topic, 0)].offset == 7


def test_a_pair_may_be_a_list_as_json_has_it() -> None:
    assert partition_named(["orders", 0]) == TopicPartition("orders", 0)


@pytest.mark.parametrize("wrong", ["orders-0", ("orders",), (0, "orders"), 7, ("orders", "0"), None])
def test_another_form_of_a_partition_is_refused_with_the_right_form(servers: str, wrong: Any) -> None:
    with Consumer(servers) as consumer:
        for call in (consumer.assign, consumer.pause, consumer.end_offsets):
            with pytest.raises(TypeError, match=r"a partition is a TopicPartition, or a pair such as \('orders', 0\)"):
                call([wrong])
        with pytest.raises(TypeError, match="a partition is a TopicPartition"):
            consumer.seek(wrong, 0)
        with pytest.raises(TypeError, match=r"this takes several partitions: say \["):
            consumer.assign(TopicPartition("orders", 0))  # type: ignore[arg-type]


def test_offsets_are_looked_up_and_sought(servers: str, topic: str) -> None:
    with Producer(servers) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=1, timestamp=1_000 * (number + 1))
    name = TopicPartition(topic, 1)
    with Consumer(servers) as consumer:
        assert consumer.partitions_for_topic(topic) == [0, 1]
        assert consumer.beginning_offsets([(topic, 0), name]) == {(topic, 0): 0, name: 0}
        assert consumer.end_offsets([(topic, 0), name]) == {(topic, 0): 0, name: 5}
        found = consumer.offsets_for_times({name: 2_500, TopicPartition(topic, 0): 0})
        assert found[TopicPartition(topic, 0)] is None
        at = found[name]
        assert at is not None
        assert (at.offset, at.timestamp) == (2, 3_000)
        assert consumer.offsets_for_times({name: datetime.fromtimestamp(2.5, UTC)})[name] == at
        with pytest.raises(KafkaError, match="say milliseconds since 1970, or a datetime"):
            consumer.offsets_for_times({name: "now"})  # type: ignore[arg-type]
        consumer.assign([name])
        consumer.seek_to_end()
        assert consumer.position(name) == 5
        consumer.seek_to_beginning([name])
        assert [record.offset for record in consumer.poll(30)] == [0, 1, 2, 3, 4]
        with pytest.raises(KafkaError, match=f"{topic}-0 is not assigned"):
            consumer.seek_to_end([(topic, 0)])


def test_topics_are_created_by_name_and_by_position(servers: str) -> None:
    name = f"new-{uuid4()}"
    with Admin(servers) as admin:
        admin.create_topics([f"{name}-a", NewTopic(f"{name}-b", 3, 1), NewTopic(f"{name}-c", num_partitions=2)])
        described = admin.describe_topics([f"{name}-a", f"{name}-b", f"{name}-c"])
        assert [len(topic.partitions) for topic in described] == [1, 3, 2]
        with pytest.raises(TypeError, match="this takes several topics: say "):
            admin.create_topics(NewTopic(name))  # type: ignore[arg-type]
        with pytest.raises(KafkaError, match=r"say \['t'\] for one"):
            admin.create_topics("t")  # type: ignore[arg-type]
    with pytest.raises(KafkaError, match="partitions and num_partitions are names of the same setting"):
        NewTopic(name, 3, num_partitions=4)
    with pytest.raises(TypeError, match="partitions is a whole number, not '3'"):
        NewTopic(name, "3")  # type: ignore[arg-type]


def test_headers_come_as_a_dict_and_a_result_by_get(servers: str, topic: str) -> None:
    with Producer(servers) as producer:
        sent = producer.send(topic, b"v", headers={"trace": b"1", "none": None}, partition=0).get(60)
        assert sent == producer.send(topic, b"v", partition=0).get(timeout=60)._replace(
            offset=sent.offset, timestamp=sent.timestamp
        )
        with pytest.raises(
            TypeError, match="^the value of header 'a' must be bytes or None, not str; encode it: value"
        ):
            producer.send(topic, b"v", headers=[("a", "1")])  # type: ignore[list-item]
    with Consumer(servers, topics=[topic], auto_offset_reset="earliest", until="end") as consumer:
        assert next(iter(consumer)).headers == (("trace", b"1"), ("none", None))


def test_records_come_singly_and_by_partition(servers: str, topic: str) -> None:
    with Producer(servers) as producer:
        for number in range(6):
            producer.send(topic, b"%d" % number, partition=number % 2)
    with Consumer(servers, topics=[topic], auto_offset_reset="earliest") as consumer:
        first = consumer.getone()
        rest: dict[TopicPartition, list[Any]] = {}
        while sum(map(len, rest.values())) < 5:
            for name, records in consumer.getmany(timeout_ms=30_000, max_records=2).items():
                assert all((record.topic, record.partition) == name for record in records)
                rest.setdefault(name, []).extend(records)
        assert sorted(int(record.value) for records in rest.values() for record in records) == sorted(
            {0, 1, 2, 3, 4, 5} - {int(first.value or b"")}
        )


async def test_the_asyncio_clients_have_the_habits_of_aiokafka(servers: str, topic: str) -> None:
    async with aio.Producer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        sent = await producer.send_and_wait(topic, b"v", key=b"k", partition=1)
        assert (sent.partition, sent.offset) == (1, 0)
    consumer = aio.Consumer(servers, topics=[topic], group_id=str(uuid4()), auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(120):
        async for record in consumer:
            assert record.value == b"v"
            break
        assert consumer.position((topic, 1)) == 1


@pytest.mark.parametrize("client", [Producer, Consumer, Admin])
def test_a_call_of_a_closed_client_is_not_to_be_retried(servers: str, client: Any) -> None:
    made = client(servers)
    made.close()
    calls = {Producer: lambda: made.send("t", b"v"), Consumer: lambda: made.poll(0), Admin: lambda: made.list_topics()}
    with pytest.raises(KafkaError, match="is closed: make another one") as refused:
        calls[client]()
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert not refused.value.retriable


@pytest.mark.parametrize("client", ["Producer", "Consumer", "Admin", "KeyedConsumer", "RangedFetch"])
@pytest.mark.parametrize("module", [tailrace, aio])
def test_an_unknown_setting_names_the_class_that_was_typed_and_the_nearest_setting(module: Any, client: str) -> None:
    with pytest.raises(
        TypeError, match=f"^{client} has no setting 'request_timeout'; did you mean 'request_timeout_ms'"
    ):
        getattr(module, client)("127.0.0.1:1", request_timeout=7)
    with pytest.raises(TypeError, match=f"^{client} has no setting 'request_timeout_s'; did you mean"):
        getattr(module, client)({"bootstrap.servers": "127.0.0.1:1", "request.timeout.s": 7})
    with pytest.raises(TypeError, match="'sasl_oauth_token_provider'; OAUTHBEARER is not built in"):
        getattr(module, client)("127.0.0.1:1", sasl_oauth_token_provider=None)


def test_a_topic_as_first_argument_is_told_from_the_addresses(servers: str) -> None:
    make: Any = Consumer
    write: Any = Producer
    with pytest.raises(TypeError, match=r"^Consumer: the first argument is bootstrap_servers; say topics=\['t', 'u'\]"):
        make("t", "u", bootstrap_servers=servers)
    with pytest.raises(TypeError, match=r"^Producer: the first argument is bootstrap_servers; say it once$"):
        write(servers, bootstrap_servers=servers)


@pytest.mark.parametrize(
    ("client", "name", "way"),
    [
        (Producer, "message.timeout.ms", "did you mean 'delivery_timeout_ms'"),
        (Producer, "max_batch_size", "did you mean 'batch_size'"),
        (Producer, "on_delivery", "send\\(\\) returns a future"),
        (Consumer, "rebalance_timeout_ms", "max_poll_interval_ms is the time-out of a rebalance"),
        (Consumer, "enable.auto.offset.store", "counts as processed at the next poll"),
        (Consumer, "allow_auto_create_topics", "a consumer creates no topics"),
        (Consumer, "sasl.kerberos.service.name", "Kerberos is not built in"),
    ],
)
def test_a_setting_of_another_client_gets_the_way_to_the_same_end(client: Any, name: str, way: str) -> None:
    with pytest.raises(TypeError, match=way):
        client({"bootstrap.servers": "127.0.0.1:1", name: 1})


@pytest.mark.parametrize("name", ["configs", "config", "topic_configs"])
def test_settings_of_a_new_topic_have_the_names_of_all_clients(name: str) -> None:
    given: dict[str, Any] = {name: {"retention.ms": "1000"}}
    assert NewTopic("t", 1, 1, **given).configs == {"retention.ms": "1000"}


def test_a_key_comes_behind_the_value_and_a_poll_takes_milliseconds(servers: str, topic: str) -> None:
    with Producer(servers) as producer:
        producer.send(topic, b"v", b"k", partition=0)
        producer.flush(timeout=60)
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert [(record.key, record.value) for record in consumer.poll(0, timeout_ms=60_000)] == [(b"k", b"v")]


def test_a_flush_ends_at_its_limit_and_the_records_go_on(servers: str, topic: str) -> None:
    with Producer(servers, linger_ms=0) as producer:
        sent = producer.send(topic, b"v")
        while not sent.done():  # a limit of no time is over before an answer, and a record that is written needs none
            with contextlib.suppress(KafkaError):
                producer.flush(timeout=0)
        producer.flush(timeout=0)
    with Producer("127.0.0.1:1", delivery_timeout_ms=1_000, request_timeout_ms=500) as lost:
        unwritten = lost.send("t", b"v")
        with pytest.raises(KafkaError, match="bytes of records are not written after 0 s") as late:
            lost.flush(timeout=0)
        assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(KafkaError):
            unwritten.result(60)


async def test_an_asyncio_client_starts_and_stops_as_aiokafkas(servers: str, topic: str) -> None:
    producer = aio.Producer(servers)
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"v", partition=0)
    finally:
        await producer.stop()
    consumer = aio.Consumer(servers, topics=[topic], auto_offset_reset="earliest")
    await consumer.start()
    try:
        assert (await consumer.getone()).value == b"v"
    finally:
        await consumer.stop()
    admin = aio.Admin(servers)
    await admin.start()
    assert topic in [found.name for found in await admin.list_topics()]
    await admin.stop()


def test_a_future_of_a_record_takes_the_callbacks_of_kafka_python(servers: str, topic: str) -> None:
    got: list[Any] = []
    with Producer(servers) as producer:
        sent = producer.send(topic, b"v", partition=0).add_callback(got.append).add_errback(got.append)
        sent.add_callback(lambda tag, metadata: got.append((tag, metadata.offset)), "tagged")
        producer.flush()
    assert got == [sent.result(), ("tagged", sent.result().offset)]
    with Producer("127.0.0.1:1", delivery_timeout_ms=1_000, request_timeout_ms=500) as lost:
        failed = lost.send("t", b"v").add_callback(got.append).add_errback(got.append)
        with pytest.raises(KafkaError):
            failed.get(60)
    assert got[2:] == [failed.exception()]


@pytest.mark.parametrize("parts", [(1, ""), (1, -1, None), ("1",)])
def test_parts_of_an_offset_in_the_order_of_other_clients_are_refused(servers: str, topic: str, parts: Any) -> None:
    wrong = OffsetAndMetadata(*parts)
    with Consumer(servers, group=f"g-{topic}") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(
            TypeError, match=r"or OffsetAndMetadata\(offset, leader_epoch=-1, metadata=''\), not Offset"
        ):
            consumer.commit({(topic, 0): wrong})
        metadata = consumer.group_metadata()
    with Producer(servers, transactional_id=topic) as producer:
        producer.init_transactions()
        with pytest.raises(TypeError, match="an offset is a number"), producer.transaction():
            producer.send_offsets_to_transaction({(topic, 0): wrong}, metadata)


def test_a_group_is_given_to_a_transaction_by_its_metadata(servers: str, topic: str) -> None:
    group: Any = "g"
    with Producer(servers, transactional_id=topic) as producer:
        producer.init_transactions()
        with pytest.raises(TypeError, match=r"group_metadata is consumer.group_metadata\(\), not 'g'"):
            producer.send_offsets_to_transaction({(topic, 0): 1}, group)


def test_a_seek_of_no_partition_says_that_none_is_assigned(servers: str, topic: str) -> None:
    with Consumer(servers, topics=[topic]) as consumer:
        for seek in (consumer.seek_to_beginning, consumer.seek_to_end):
            with pytest.raises(KafkaError, match=r"no partition is assigned yet: poll\(\) first, or assign\(\)"):
                seek()
