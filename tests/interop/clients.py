"""Foreign clients behind one small face, so that every test runs with each client."""

import asyncio
import json
import multiprocessing
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.managers import BaseManager
from queue import Empty, Queue
from typing import Protocol

import aiokafka
import kafka

from interop import kafka_tools, kafkajs
from interop.java_client import Java
from interop.kafkajs import KafkaJs
from interop.librdkafka import DEADLINE_S, Confluent, Message
from interop.processes import RunningProgram
from testkit.programs.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Member(Protocol):
    """A consumer in a group."""

    def poll(self) -> list[Message]:
        """The records that have arrived, after a short wait. Must be called repeatedly: it keeps the member alive."""
        ...

    def assignment(self) -> set[int]: ...

    def close(self) -> None: ...


class ForeignClient(Protocol):
    """A client library or program."""

    name: str

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None: ...

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        """The first `count` records of partition 0."""
        ...

    def join(self, bootstrap: str, topic: str, group: str) -> Member: ...


class KafkaPythonMember:
    """A kafka-python consumer that a thread of its own polls without a pause.

    kafka-python 3.0.12 discards a join that completes between two polls and joins once more (`join_group_async` takes a
    finished task for none), so two members that one thread polls in turns may rebalance for ever. When new metadata was
    the only reason for that join, it does not even join again: so the topic's metadata is there before the first poll.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
        )
        # Not by `partitions_for_topic`: that asks for all topics, and a view is not among them.
        first = kafka.TopicPartition(topic, 0)
        wait_until(lambda: bool(self._consumer.beginning_offsets([first])), f"partitions of {topic} in kafka-python")
        self._polled: Queue[list[Message]] = Queue()
        self._assignment: frozenset[int] = frozenset()
        self._is_closed = False
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._polling = self._executor.submit(self._poll_until_closed)

    def _poll_until_closed(self) -> None:
        while not self._is_closed:
            polled = self._consumer.poll(timeout_ms=1_000)
            self._polled.put([_from_kafka_python(record) for records in polled.values() for record in records])
            self._assignment = frozenset(partition.partition for partition in self._consumer.assignment())

    def poll(self) -> list[Message]:
        if self._polling.done():
            self._polling.result()
        try:
            return self._polled.get(timeout=0.1)
        except Empty:
            return []

    def assignment(self) -> set[int]:
        return set(self._assignment)

    def close(self) -> None:
        self._is_closed = True
        self._executor.shutdown()
        self._consumer.close()


def _from_kafka_python(record: object) -> Message:
    return Message(record.key, record.value, tuple(record.headers))  # type: ignore[attr-defined]


class KafkaPython:
    name = "kafka-python"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=5
        )
        with closing(producer):
            sent = [producer.send(topic, key=m.key, value=m.value, headers=list(m.headers)) for m in messages]
            for future in sent:
                future.get(timeout=DEADLINE_S)

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        partition = kafka.TopicPartition(topic, 0)
        messages: list[Message] = []

        def enough() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                messages.extend(_from_kafka_python(record) for record in records)
            return len(messages) >= count

        with closing(consumer):
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            wait_until(enough, f"{count} records by {self.name}")
        return messages

    def join(self, bootstrap: str, topic: str, group: str) -> Member:
        return KafkaPythonMember(bootstrap, topic, group)


class MemberProcess(BaseManager):
    """A process of its own: kafka-python forgets the sockets to a broker that was stopped."""


MemberProcess.register("KafkaPythonMember", KafkaPythonMember)


class KafkaPythonMemberElsewhere:
    """A `KafkaPythonMember` in a process of its own."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._process = MemberProcess(ctx=multiprocessing.get_context("spawn"))
        self._process.start()
        self._member = self._process.KafkaPythonMember(bootstrap, topic, group)  # type: ignore[attr-defined]

    def poll(self) -> list[Message]:
        polled: list[Message] = self._member.poll()
        return polled

    def assignment(self) -> set[int]:
        assigned: set[int] = self._member.assignment()
        return assigned

    def close(self) -> None:
        self._member.close()
        self._process.shutdown()


class KafkaPythonElsewhere(KafkaPython):
    """For tests that stop a broker."""

    def join(self, bootstrap: str, topic: str, group: str) -> Member:
        return KafkaPythonMemberElsewhere(bootstrap, topic, group)


class AiokafkaMember:
    """An aiokafka consumer on an event loop that turns while the consumer is polled."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(self._start(bootstrap, topic, group))

    async def _start(self, bootstrap: str, topic: str, group: str) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
        )
        # start() waits for the first assignment, which needs the other members' loops to turn: do not wait here.
        self._starting = asyncio.ensure_future(consumer.start())
        await asyncio.sleep(0)
        return consumer

    def poll(self) -> list[Message]:
        return self._loop.run_until_complete(self._poll())

    async def _poll(self) -> list[Message]:
        await asyncio.wait([self._starting], timeout=0.1)
        if not self._starting.done():
            return []
        self._starting.result()
        polled = await self._consumer.getmany(timeout_ms=100)
        return [Message(r.key, r.value, tuple(r.headers)) for records in polled.values() for r in records]

    def assignment(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def close(self) -> None:
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    async def _stop(self) -> None:
        if not self._starting.done():  # a test that failed early
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._consumer.stop()


class Aiokafka:
    name = "aiokafka"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        asyncio.run(self._produce(bootstrap, topic, messages, codec))

    async def _produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
        )
        async with producer:
            for m in messages:
                await producer.send_and_wait(topic, key=m.key, value=m.value, headers=list(m.headers))

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        return asyncio.run(self._consume(bootstrap, topic, count))

    async def _consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        async with consumer, asyncio.timeout(DEADLINE_S):
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            records = [await consumer.getone() for _ in range(count)]
        return [Message(r.key, r.value, tuple(r.headers)) for r in records]

    def join(self, bootstrap: str, topic: str, group: str) -> Member:
        return AiokafkaMember(bootstrap, topic, group)


class KcatMember:
    """`kcat -G`: its standard error tells the assignments, its standard output the records."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        options = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=10000")
        self._program = RunningProgram(["kcat", "-b", bootstrap, "-G", group, "-J", "-u", *options, topic])
        self._assigned: set[int] = set()

    def poll(self) -> list[Message]:
        for line in self._program.errors():
            if "rebalanced" in line:
                told = line.partition("assigned:")[2] if "revoked" not in line else ""
                self._assigned = {int(word.split("]")[0]) for word in told.split("[")[1:]}
        return [_from_kcat(line) for line in self._program.output() if line.startswith("{")]

    def assignment(self) -> set[int]:
        return set(self._assigned)

    def close(self) -> None:
        self._program.terminate()


def _from_kcat(line: str) -> Message:
    record = json.loads(line)
    flat = record.get("headers") or []
    headers = tuple(
        (key, None if value is None else value.encode()) for key, value in zip(flat[::2], flat[1::2], strict=True)
    )
    key, value = record["key"], record["payload"]
    return Message(None if key is None else key.encode(), None if value is None else value.encode(), headers)


class Kcat:
    name = "kcat"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        for message in messages:  # headers are per run, and so is "no key"
            command = ["kcat", "-b", bootstrap, "-P", "-t", topic, "-p", "0", "-z", codec, "-Z"]
            for name, value in message.headers:
                command += ["-H", name if value is None else f"{name}={value.decode()}"]
            text = (message.value or b"").decode()
            if message.key is not None:
                command += ["-K", "\t"]
                text = f"{message.key.decode()}\t{text}"
            # -l sends a line as a message without waiting for more of them.
            done = subprocess.run(command, input=text + "\n", capture_output=True, text=True, timeout=DEADLINE_S)
            assert done.returncode == 0, done.stderr

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        done = subprocess.run(
            ["kcat", "-b", bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-J", "-e"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr
        return [_from_kcat(line) for line in done.stdout.splitlines()]

    def join(self, bootstrap: str, topic: str, group: str) -> Member:
        return KcatMember(bootstrap, topic, group)


CLIENTS: tuple[ForeignClient, ...] = (Confluent(), KafkaPython(), Aiokafka(), Kcat(), KafkaJs(), Java())


def absent(client: ForeignClient) -> str | None:
    """The reason why this client cannot be run here, with the command that would bring it; None if it can."""
    if client.name == "kcat" and shutil.which("kcat") is None:
        return "kcat is not installed: apt-get install kcat"
    if isinstance(client, KafkaJs):
        return kafkajs.absent()
    if isinstance(client, Java):
        return kafka_tools.absent()
    return None


def knows(client: ForeignClient, codec: str) -> bool:
    """Whether the client has this codec without more packages."""
    return codec in KafkaJs.codecs if isinstance(client, KafkaJs) else True


def as_kept(messages: Sequence[Message], *clients: ForeignClient) -> list[Message]:
    """The messages as these clients can keep them: some keep headers by name, not in order."""
    if not any(isinstance(client, KafkaJs) for client in clients):
        return list(messages)
    return [message._replace(headers=tuple(sorted(message.headers, key=lambda pair: pair[0]))) for message in messages]
