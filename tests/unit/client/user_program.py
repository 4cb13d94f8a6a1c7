# ruff: noqa: T201
"""A program of a user with planted typos: mypy finds each typo, as a part of `make check`.

A line with a typo has `type: ignore` with the code of its error. With `--strict` an ignore that nothing needs is an
error: so a typo that is not found any more fails the check. The program is never run.
"""

import asyncio
from datetime import datetime

import tailrace.json
from tailrace import (
    Admin,
    Consumer,
    ConsumerRebalanceListener,
    Done,
    ErrorCode,
    KafkaError,
    KeyedConsumer,
    KeyedRecord,
    NewTopic,
    Outcome,
    Producer,
    RangedFetch,
    Retry,
    TopicPartition,
    aio,
)

SERVERS = "127.0.0.1:9092"
ORDERS = TopicPartition("orders", 0)


class PrintingListener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        print(partitions)


def settings(listener: PrintingListener) -> None:
    Producer(SERVERS, compression="lz4", linger_ms=5, acks="all")
    Producer(SERVERS, compresion="lz4")  # type: ignore[call-arg]
    Producer(SERVERS, compression="lz5")  # type: ignore[arg-type]
    Producer(SERVERS, acks=2)  # type: ignore[arg-type]
    Producer(SERVERS, partitioner="murmur2")  # type: ignore[arg-type]
    Consumer([SERVERS, SERVERS], topics=["orders"], auto_offset_reset="earliest", until="end")
    Consumer(SERVERS, topics="orders")  # type: ignore[arg-type]
    Consumer(SERVERS, topics=["orders"], auto_offset_reset="earlist")  # type: ignore[arg-type]
    Consumer(SERVERS, topics=["orders"], until="ende")  # type: ignore[arg-type]
    Consumer(SERVERS, group_id="g", isolation_level="commited")  # type: ignore[arg-type]
    Consumer(SERVERS, enable_auto_comit=False)  # type: ignore[call-arg]
    KeyedConsumer(SERVERS, group="g", topics=["orders"], slots="many")  # type: ignore[arg-type]
    RangedFetch(SERVERS, on_corrupt="ignore")  # type: ignore[arg-type]
    Consumer(SERVERS, group="g").subscribe(["orders"], listener=listener)
    Consumer(SERVERS, group="g").subscribe(["orders"], listener=print)  # type: ignore[arg-type]


def write() -> None:
    with Producer(SERVERS) as producer:
        sent = producer.send("orders", b"coffee", key=b"alice", headers={"trace": b"1"})
        print(sent.result(10).offset, sent.get(timeout=10).partition)
        producer.sned("orders", b"coffee")  # type: ignore[attr-defined]
        producer.send("orders", "coffee")  # type: ignore[arg-type]
        producer.send("orders", {"drink": "coffee"})  # type: ignore[arg-type]
        producer.send("orders", b"coffee", key="alice")  # type: ignore[arg-type]
        producer.send("orders", b"coffee", partition="0")  # type: ignore[arg-type]
        producer.send("orders", b"coffee", headers=[("trace", "1")])  # type: ignore[list-item]
        producer.send("orders", b"coffee", timestamp=datetime.now())  # type: ignore[arg-type]  # noqa: DTZ005
        producer.send("orders", b"coffee").reslt()  # type: ignore[attr-defined]
        print(sent.result().ofset)  # type: ignore[attr-defined]


def write_values() -> None:
    with Producer(SERVERS, key_serializer=str.encode, value_serializer=tailrace.json.serialize) as producer:
        producer.send("orders", {"drink": "coffee"}, key="alice")
        producer.send("orders", {"drink": "coffee"}, key=b"alice")  # type: ignore[arg-type]
    Producer(SERVERS, value_serializer=str)  # type: ignore[arg-type]
    with Consumer(SERVERS, topics=["orders"], value_deserializer=bytes.decode) as consumer:
        for record in consumer:
            print((record.value or "").upper())
            record.value.decode()  # type: ignore[union-attr]


def read() -> None:
    with Consumer(SERVERS, group="billing", topics=["orders"]) as consumer:
        for record in consumer.poll(timeout=1.0):
            print(record.topic, record.partition, record.offset, record.value)
            print(record.val)  # type: ignore[attr-defined]
            print(record.value.decode())  # type: ignore[union-attr]
        consumer.poll(timeout_ms=100)
        consumer.poll(timeout_s=1)  # type: ignore[call-arg]
        consumer.seek(("orders", 0), 5)
        consumer.seek(("orders", "0"), 5)  # type: ignore[arg-type]
        consumer.seek(ORDERS)  # type: ignore[call-arg]
        consumer.commit({ORDERS: 5})
        consumer.commit({ORDERS: "5"})  # type: ignore[arg-type]
        consumer.pause(ORDERS)  # type: ignore[arg-type]
        consumer.assign("orders")  # type: ignore[arg-type]


def administer() -> None:
    with Admin(SERVERS) as admin:
        admin.create_topics([NewTopic("orders", 3, 1)])
        admin.create_topics(["orders", "stock"])
        admin.create_topics({"orders": 3})
        admin.create_topics("orders")  # type: ignore[arg-type]
        admin.create_topics({"orders": "3"})  # type: ignore[arg-type]
        admin.create_topics([NewTopic("orders", "3")])  # type: ignore[arg-type]
        admin.create_topics([NewTopic("orders", 3, replicas=1)])  # type: ignore[call-arg]
        admin.delete_topics("orders")  # type: ignore[arg-type]
        admin.create_topic("orders")  # type: ignore[attr-defined]
    TopicPartition("orders")  # type: ignore[call-arg]
    TopicPartition("orders", "0")  # type: ignore[arg-type]


def errors() -> None:
    try:
        administer()
    except KafkaError as error:
        print(error.code.name, error.retriable, error.detail)
        print(error.retryable)  # type: ignore[attr-defined]
        print(error.code is ErrorCode.UNKNOWN_TOPC)  # type: ignore[attr-defined]


def handle(record: KeyedRecord) -> Outcome:
    print(record.vale)  # type: ignore[attr-defined]
    if record.attempt == 1:
        return Retry(afer=1)  # type: ignore[call-arg]
    return Done  # type: ignore[return-value]


def work() -> None:
    workers = KeyedConsumer(SERVERS, group="g", topics=["orders"])
    workers.run(handle, concurrency=16)
    workers.run(handle, concurency=16)  # type: ignore[call-arg]
    workers.run(print)


async def with_asyncio() -> None:
    async with aio.Producer(SERVERS) as producer:
        place = await (await producer.send("orders", b"coffee"))
        print(place.offset)
        print((await producer.send("orders", b"coffee")).offset)  # type: ignore[attr-defined]
        await producer.send_and_wait("orders", "coffee")  # type: ignore[arg-type]
    async with aio.Consumer(SERVERS, topics=["orders"]) as consumer:
        async for record in consumer:
            print(record.timestmp)  # type: ignore[attr-defined]
        for record in consumer:  # type: ignore[attr-defined]
            print(record)
    with aio.Admin(SERVERS) as admin:  # type: ignore[attr-defined]
        print(admin)


asyncio.run(with_asyncio())
