"""Consumers of one rack (KIP-392), by foreign clients and by ours. Each reads new records of partition 0."""

import asyncio
import multiprocessing
from collections.abc import Callable
from multiprocessing.managers import BaseManager
from typing import Protocol

import aiokafka
import kafka

from interop import kafka_tools, kafkajs
from interop.kafka_tools import command
from interop.kafkajs import KafkaJsTail
from interop.librdkafka import librdkafka
from interop.processes import RunningProgram
from tailrace.client.blocking import Consumer
from tailrace.model.partitions import TopicPartition


class RackConsumer(Protocol):
    """A consumer that begins at the end of the log."""

    def poll(self) -> list[bytes]:
        """The values that have arrived, after a short wait at most. Must be called repeatedly."""
        ...

    def close(self) -> None: ...


METADATA_MAX_AGE_MS = 5_000
"""kafka-python 3.0.12 that is sent to a replica which its metadata have as offline asks the leader again, and is sent
there again, until the metadata are too old: five minutes by default."""


class KafkaPythonTail:
    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            client_rack=rack,
            auto_offset_reset="latest",
            enable_auto_commit=False,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
        self._consumer.assign([kafka.TopicPartition(topic, 0)])

    def poll(self) -> list[bytes]:
        return [record.value for records in self._consumer.poll(timeout_ms=100).values() for record in records]

    def close(self) -> None:
        self._consumer.close()


class TailProcess(BaseManager):
    """A process of its own: kafka-python forgets the sockets to a broker that was killed."""


TailProcess.register("KafkaPythonTail", KafkaPythonTail)


class KafkaPythonTailElsewhere:
    """A `KafkaPythonTail` in a process of its own."""

    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        self._process = TailProcess(ctx=multiprocessing.get_context("spawn"))
        self._process.start()
        self._tail = self._process.KafkaPythonTail(bootstrap, topic, rack)  # type: ignore[attr-defined]

    def poll(self) -> list[bytes]:
        polled: list[bytes] = self._tail.poll()
        return polled

    def close(self) -> None:
        self._tail.close()
        self._process.shutdown()


class AiokafkaTail:
    """A consumer on an event loop that turns while the consumer is polled."""

    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(self._start(bootstrap, topic, rack))

    async def _start(self, bootstrap: str, topic: str, rack: str) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, client_rack=rack, auto_offset_reset="latest", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        return consumer

    def poll(self) -> list[bytes]:
        polled = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=100))
        return [record.value for records in polled.values() for record in records]

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


class JavaTail:
    """kafka-console-consumer."""

    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        where = ("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "latest")
        properties = ("--consumer-property", f"client.rack={rack}")
        self._program = RunningProgram(command("kafka-console-consumer", *where, *properties))

    def poll(self) -> list[bytes]:
        return [line.encode() for line in self._program.output()]

    def close(self) -> None:
        self._program.terminate()


class OwnTail:
    """A `tailrace.Consumer`."""

    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        self._consumer = Consumer(bootstrap, client_rack=rack, auto_offset_reset="latest")
        self._consumer.assign([TopicPartition(topic, 0)])

    def poll(self) -> list[bytes]:
        return [record.value or b"" for record in self._consumer.poll(0.1)]

    def close(self) -> None:
        self._consumer.close()


CONSUMERS: dict[str, Callable[[str, str, str], RackConsumer]] = {
    "confluent-kafka": lambda *where: librdkafka().Tail(*where),
    "kafka-python": KafkaPythonTailElsewhere,
    "aiokafka": AiokafkaTail,
    "kafkajs": KafkaJsTail,
    "java": JavaTail,
    "tailrace": OwnTail,
}


def absent(name: str) -> str | None:
    """The reason why this client cannot be run here; None if it can."""
    return {"java": kafka_tools.absent, "kafkajs": kafkajs.absent}.get(name, lambda: None)()
