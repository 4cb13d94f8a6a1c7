"""Programs that load a node while it is killed: `python -m crash.node.load ROLE SERVERS HISTORY`.

A program has a process of its own: a client made of C takes everything with it when it falls. A program works until its
stdin is closed, brings what it has begun to an end, and exits. It writes one JSON object per line: to HISTORY the
answers of the node, as `testkit.verdicts.replica_history` has them; to stdout now and then how far it is.

A request that came back with an error is `unknown`: it may have happened or not. All others are written down after the
node has acknowledged them.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from crash.librdkafka_offsets import offset_of
from crash.program import DEADLINE_S, REPORT_EVERY_S, Program, note_polled
from tailrace.client.blocking import Producer
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.model.errors import KafkaError

TOPIC: Final = "survives"
PARTITIONS: Final = 3
COMPACTED: Final = "last-value-wins"
SETTINGS_TOPIC: Final = "settings"
GROUP: Final = "readers"
CHECKER: Final = "checker"
"""The reader after the last start."""
KEYS: Final = 20
PRODUCERS: Final = 30
ON_THE_WIRE: Final = 5
"""librdkafka's limit for an idempotent producer; with one record per request, so many requests."""


class NumberedProducer:
    """A librdkafka producer that sends 0, 1, 2, ... under its name, one record per request."""

    def __init__(self, program: Program, name: str, servers: str, **settings: str | int | bool) -> None:
        self._program = program
        self._name = name
        self._sent = 0
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "linger.ms": 0,
                "batch.num.messages": 1,
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "log_level": 0,
                **settings,
            }
        )

    @property
    def in_flight(self) -> int:
        return min(len(self._client), ON_THE_WIRE)

    def fill(self, topic: str, partition: int, key: Callable[[int], bytes | None] = lambda number: None) -> None:
        """Keep a few records waiting, so that the wire is never idle, and take what has been answered."""
        while len(self._client) < ON_THE_WIRE + 3:
            number = self._sent
            self._client.produce(
                topic,
                key=key(number),
                value=f"{self._name}:{number}".encode(),
                partition=partition,
                on_delivery=lambda fault, message: self._take(number_of(message), fault, message),
            )
            self._sent += 1
        self._client.poll(0)

    def _take(self, number: int, fault: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if fault is not None:
            self._program.note("unknown", producer=self._name, number=number, why=str(fault))
            return
        self._program.done += 1
        place = {"topic": message.topic(), "partition": message.partition()}
        self._program.note("acked", producer=self._name, records=[(number, offset_of(message))], **place)

    def finish(self) -> None:
        self._client.flush(DEADLINE_S)  # the verdict misses the records that are left
        self._program.note("sent", producer=self._name, count=self._sent)


def number_of(message: confluent_kafka.Message) -> int:
    """The number in a record's value."""
    return int(bytes(message.value() or b"").partition(b":")[2])


def key_of(value: str) -> str:
    """The key of a record of the compacted topic."""
    return str(int(value.partition(":")[2]) % KEYS)


def idempotent(program: Program, servers: str) -> None:
    """Thirty producers, each with five requests on the wire: 150 at any time."""
    _keep_sending(program, [_producer(program, f"i{n}", servers, idempotent=True) for n in range(PRODUCERS)])


def plain(program: Program, servers: str) -> None:
    """Producers that neither number nor repeat: what was in flight at a kill is unknown, and never there twice."""
    _keep_sending(program, [_producer(program, f"p{n}", servers, idempotent=False) for n in range(3)])


def _producer(program: Program, name: str, servers: str, *, idempotent: bool) -> NumberedProducer:
    settings = {"enable.idempotence": True} if idempotent else {"retries": 0}
    return NumberedProducer(program, name, servers, **settings)


def _keep_sending(program: Program, producers: list[NumberedProducer]) -> None:
    while program.goes_on:
        for index, producer in enumerate(producers):
            producer.fill(TOPIC, index % PARTITIONS)
        program.report(sum(producer.in_flight for producer in producers))
        time.sleep(0.001)  # without a pause the loop takes a core from the node
    for producer in producers:
        producer.finish()


def compacted(program: Program, servers: str) -> None:
    """A producer that writes a few keys again and again to a compacted topic."""
    producer = _producer(program, "c0", servers, idempotent=True)
    while program.goes_on:
        producer.fill(COMPACTED, 0, key=lambda number: key_of(f"c0:{number}").encode())
        program.report(producer.in_flight)
        time.sleep(0.001)
    producer.finish()


def own(program: Program, servers: str) -> None:
    """Tailrace's own producer, which is idempotent: batches of what comes together, several on the wire."""
    sent = 0
    with Producer(servers, delivery_timeout_ms=DEADLINE_S * 1000) as producer:
        waiting: list[tuple[int, Future[RecordMetadata]]] = []
        while program.goes_on or waiting:
            while program.goes_on and len(waiting) < 50:
                waiting.append((sent, producer.send(TOPIC, f"o0:{sent}".encode(), partition=sent % PARTITIONS)))
                sent += 1
            wait([waiting[0][1]], timeout=REPORT_EVERY_S)
            while waiting and waiting[0][1].done():
                _take_own(program, *waiting.pop(0))
            program.report(len(waiting))
    program.note("sent", producer="o0", count=sent)


def _take_own(program: Program, number: int, future: "Future[RecordMetadata]") -> None:
    try:
        written = future.result()
    except KafkaError as fault:
        program.note("unknown", producer="o0", number=number, why=str(fault))
        return
    program.done += 1
    place = {"topic": TOPIC, "partition": written.partition}
    program.note("acked", producer="o0", records=[(number, written.offset)], **place)


class GroupMember:
    """A consumer of the group that commits what it has read before it reads on."""

    def __init__(self, program: Program, name: str, servers: str) -> None:
        self._program = program
        self._name = name
        self._client = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": GROUP,
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._client.subscribe([TOPIC], on_assign=self._assigned)

    def _assigned(self, client: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        for partition in partitions:
            here = {"reader": self._name, "topic": TOPIC, "partition": partition.partition}
            self._program.note("assigned", offset=None, at_s=time.monotonic(), **here)

    def turn(self) -> None:
        """Read a little, and commit it."""
        messages = [message for message in self._client.consume(500, timeout=0.05) if message.error() is None]
        for (_, partition), offset in note_polled(self._program, self._name, messages).items():
            self._commit(partition, offset)

    def _commit(self, partition: int, offset: int) -> None:
        place = confluent_kafka.TopicPartition(TOPIC, partition, offset)
        facts = {"reader": self._name, "topic": TOPIC, "partition": partition, "offset": offset}
        facts["asked_s"] = time.monotonic()
        fault: object
        try:
            (result,) = self._client.commit(offsets=[place], asynchronous=False)
            fault = result.error
        except confluent_kafka.KafkaException as raised:
            fault = raised
        if fault is not None:
            self._program.note("commit-unknown", why=str(fault), **facts)
            return
        self._program.done += 1
        self._program.note("committed", at_s=time.monotonic(), **facts)

    def close(self) -> None:
        self._client.close()


def group(program: Program, servers: str) -> None:
    """Two members of one group; the second leaves and joins again now and then."""
    members = [GroupMember(program, f"m{n}", servers) for n in range(2)]
    turns = 0
    while program.goes_on:
        for member in members:
            member.turn()
        turns += 1
        if turns % 20 == 0:
            members.pop(0).close()
            members.append(GroupMember(program, f"m{turns}", servers))
        program.report()
    for member in members:
        member.close()


def admin(program: Program, servers: str) -> None:
    """Makes topics, enlarges and deletes some of them, and changes a setting."""
    client = AdminClient({"bootstrap.servers": servers, "reconnect.backoff.max.ms": 200, "log_level": 0})
    number = 0
    while program.goes_on:
        topic = f"made-{number}"
        _try(program, "create", client.create_topics([NewTopic(topic, 2, 1)], request_timeout=5), topic=topic, count=2)
        if number % 3 == 1:
            change = [NewPartitions(topic, 4)]
            _try(program, "enlarge", client.create_partitions(change, request_timeout=5), topic=topic, count=4)
        if number % 3 == 2:
            _try(program, "delete", client.delete_topics([topic], request_timeout=5), topic=topic)
        _try(program, "set", _set(client, 1_000_000 + number), value=1_000_000 + number)
        number += 1
        program.report()
        time.sleep(0.02)


def _set(client: AdminClient, value: int) -> dict[Any, "Future[Any]"]:
    change = ConfigEntry("delete.retention.ms", str(value), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, SETTINGS_TOPIC, incremental_configs=[change])
    outcomes: dict[Any, Future[Any]] = client.incremental_alter_configs([resource], request_timeout=5)
    return outcomes


def _try(program: Program, action: str, answers: dict[Any, "Future[Any]"], **facts: Any) -> None:
    (answer,) = answers.values()
    try:
        answer.result(DEADLINE_S)
    except confluent_kafka.KafkaException as fault:
        program.note(f"{action}-unknown", why=str(fault), **facts)
        return
    program.done += 1
    program.note(action, **facts)


def read(program: Program, servers: str) -> None:
    """Read the topics from their starts to their ends; does not wait for stdin."""
    places = [confluent_kafka.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
    places.append(confluent_kafka.TopicPartition(COMPACTED, 0, 0))
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": CHECKER, "enable.partition.eof": True}
    )
    consumer.assign(places)
    for place in places:
        here = {"reader": CHECKER, "topic": place.topic, "partition": place.partition}
        program.note("assigned", offset=0, at_s=time.monotonic(), **here)
    ended = 0
    while ended < len(places):
        messages = consumer.consume(10_000, timeout=1.0)
        note_polled(program, CHECKER, (message for message in messages if message.error() is None))
        for fault in filter(None, (message.error() for message in messages)):
            assert fault.code() == confluent_kafka.KafkaError._PARTITION_EOF, fault
            ended += 1
    consumer.close()


ROLES: Final = {role.__name__: role for role in (idempotent, plain, own, compacted, group, admin, read)}


def main() -> None:
    role, servers, history = sys.argv[1:]
    program = Program(Path(history))
    ROLES[role](program, servers)
    program.close()


if __name__ == "__main__":
    main()
