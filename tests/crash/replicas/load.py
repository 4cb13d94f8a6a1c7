"""Clients of replicated topics while brokers fail: `python -m crash.replicas.load ROLE NAME SERVERS HISTORY`.

| Role | NAME | Client |
|---|---|---|
| writer | the producer | librdkafka, idempotent, acks=all, for ever; to all topics but the transactional topic |
| transactions | the producer | librdkafka, commits four of five transactions and aborts the fifth |
| reader | a rack | librdkafka's consumer alone and a consumer in a group, and Tailrace's own, all of that rack |

Readers read committed records. Each program works until its stdin is closed, brings its work to an end and exits; a
reader reads to the ends of all partitions first. The history has the events of `testkit.verdicts.replica_history`, and
`fetches`: the fetch requests of a librdkafka reader by broker.
"""

import json
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from crash.librdkafka_offsets import offset_of
from crash.program import DEADLINE_S, Program, known, next_instance, note_polled, text_of
from tailrace.client.blocking import Consumer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

PLAIN: Final = "plain"
COMPACTED: Final = "last-value-wins"
TRIMMED: Final = "trimmed"
TRANSACTIONAL: Final = "transactional"
PARTITIONS: Final = {PLAIN: 3, COMPACTED: 1, TRANSACTIONAL: 2, TRIMMED: 1}
READ: Final = [(topic, number) for topic in (PLAIN, COMPACTED, TRANSACTIONAL) for number in range(PARTITIONS[topic])]
"""The partitions that readers read. The trimmed topic loses its oldest records meanwhile."""
GROUP: Final = "members"
KEYS: Final = 50
_RECORDS_PER_SECOND: Final = 200
_MOST_IN_FLIGHT: Final = 500
_PADDING: Final = "." * 80
_NOTE_EVERY_S: Final = 0.1
_COMMON: Final = {"reconnect.backoff.max.ms": 500, "log_level": 0, "socket.timeout.ms": 10_000}
_LOST_POSITION: Final = (
    confluent_kafka.KafkaError._AUTO_OFFSET_RESET,
    confluent_kafka.KafkaError._LOG_TRUNCATION,
    confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE,
)


def place_of(number: int) -> tuple[str, int]:
    """The topic and the partition of a writer's record."""
    kind = number % 5
    return (PLAIN, kind) if kind < 3 else (COMPACTED, 0) if kind == 3 else (TRIMMED, 0)


def key_of(value: str) -> str:
    """The key of a record of the compacted topic."""
    return str(int(value.partition(":")[2]) // 5 % KEYS)


class Writer:
    """An idempotent producer that never gives a record up."""

    def __init__(self, program: Program, name: str, servers: str) -> None:
        self._program = program
        self._name = name
        self._sent = 0
        self._acked: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self._client = confluent_kafka.Producer(
            {
                **_COMMON,
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "debug": "eos",  # on stderr, which the run keeps: the error after which it raises its epoch
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": 0,
                "retry.backoff.ms": 50,
            }
        )

    def run(self) -> None:
        began_s = next_note_s = time.monotonic()
        while self._program.goes_on:
            due = (time.monotonic() - began_s) * _RECORDS_PER_SECOND
            while self._sent < due and len(self._client) < _MOST_IN_FLIGHT:
                self._send()
            if len(self._client) >= _MOST_IN_FLIGHT:
                began_s = time.monotonic() - self._sent / _RECORDS_PER_SECOND  # records that were not sent are not due
            self._client.poll(0.01)
            if time.monotonic() > next_note_s:
                next_note_s = time.monotonic() + _NOTE_EVERY_S
                self._note()
        left = self._client.flush(DEADLINE_S)
        self._note()
        if left:
            self._program.note("failed", producer=self._name, number=-1, why=f"{left} records without an answer")
        self._program.note("sent", producer=self._name, count=self._sent)

    def _send(self) -> None:
        number, self._sent = self._sent, self._sent + 1
        topic, partition = place_of(number)
        value = f"{self._name}:{number}"
        self._client.produce(
            topic,
            key=key_of(value).encode() if topic == COMPACTED else None,
            value=(value + _PADDING).encode(),
            partition=partition,
            on_delivery=lambda fault, message: self._take(number, fault, message),
        )

    def _take(self, number: int, fault: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if fault is not None:
            self._program.note("failed", producer=self._name, number=number, why=str(fault))
            return
        self._program.done += 1
        self._acked[str(message.topic()), known(message.partition())].append((number, offset_of(message)))

    def _note(self) -> None:
        for (topic, partition), records in self._acked.items():
            self._program.note("acked", producer=self._name, topic=topic, partition=partition, records=records)
        self._acked.clear()
        self._program.report()


def writer(program: Program, name: str, servers: str) -> None:
    Writer(program, name, servers).run()


def transactions(program: Program, name: str, servers: str) -> None:
    """Transactions of 1 to 8 records, in turn."""
    chance = random.Random(name)
    number = 0
    producer = _new_transactional(name, servers)
    while program.goes_on:
        count = chance.randrange(1, 9)
        try:
            _transaction(program, producer, name, number, count, commits=chance.random() < 0.8)
            time.sleep(0.005)
        except confluent_kafka.KafkaException:
            producer = _new_transactional(name, servers)  # which ends the transaction, whatever became of it
        number += count
        program.done += 1
        program.report()
    _new_transactional(name, servers)
    program.note("sent", producer=name, count=number)


def _transaction(
    program: Program, producer: confluent_kafka.Producer, name: str, first: int, count: int, *, commits: bool
) -> None:
    program.note("begun", producer=name, first=first, count=count)
    outcome = "aborted"  # what is not to be committed never will be
    try:
        producer.begin_transaction()
        for number in range(first, first + count):
            value = f"{name}:{number}{_PADDING}".encode()
            producer.produce(TRANSACTIONAL, value, partition=number % PARTITIONS[TRANSACTIONAL])
        if not commits:
            producer.flush(10)
        program.note("ending", producer=name, first=first, commits=commits, at_s=time.monotonic())
        if commits:
            outcome = "unknown"
            producer.commit_transaction(10)
            outcome = "committed"
        else:
            producer.abort_transaction(10)
    finally:
        program.note("ended", producer=name, first=first, outcome=outcome)


def _new_transactional(name: str, servers: str) -> confluent_kafka.Producer:
    """The next instance of the producer, which fences the one before."""
    settings = {**_COMMON, "bootstrap.servers": servers, "transactional.id": name, "linger.ms": 1}
    return next_instance(settings)


class RackReader:
    """A librdkafka consumer of a rack, and the records that it has got."""

    def __init__(self, program: Program, name: str, rack: str, servers: str, group: str | None) -> None:
        self._program = program
        self._name = name
        self.is_member = group is not None
        self.ends: dict[tuple[str, int], int] = {}
        """By partition, the offset at which its reader has last found no more records."""
        self.done = 0
        self.client = confluent_kafka.Consumer(
            {
                **_COMMON,
                "bootstrap.servers": servers,
                "client.rack": rack,
                "client.id": name,
                "group.id": group or name,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "session.timeout.ms": 6_000,
                "enable.partition.eof": True,
                "statistics.interval.ms": 2_000,
                "stats_cb": self._take_statistics,
            }
        )
        self._fetches: Mapping[str, int] = {}
        if self.is_member:
            self.client.subscribe(list({topic: None for topic, _ in READ}), on_assign=self._assigned)
        else:
            self._assigned(None, [confluent_kafka.TopicPartition(*place, 0) for place in READ])
            self.client.assign([confluent_kafka.TopicPartition(*place, 0) for place in READ])

    def _take_statistics(self, statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        self._fetches = {
            str(broker["nodeid"]): broker["req"].get("Fetch", 0) for broker in brokers if broker["nodeid"] > 0
        }

    def _assigned(self, _: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        for place in partitions:
            here = {"reader": self._name, "topic": place.topic, "partition": place.partition}
            offset = None if self.is_member else place.offset
            self._program.note("assigned", offset=offset, at_s=time.monotonic(), **here)
            self.ends.pop((str(place.topic), int(place.partition)), None)

    def turn(self) -> None:
        """Take some records; a member commits them."""
        ends: dict[tuple[str, int], int] = {}
        records: list[confluent_kafka.Message] = []
        for message in self.client.consume(500, timeout=0.1):
            fault = message.error()
            if fault is None:
                records.append(message)
            elif fault.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ends[str(message.topic()), known(message.partition())] = known(message.offset())
            elif fault.code() in _LOST_POSITION:
                place = f"{message.topic()}-{message.partition()}"
                self._program.note("reset", reader=self._name, why=f"{place}: {fault}")
        self.ends |= ends
        self.done += len(records)
        commits = note_polled(self._program, self._name, records)
        commits |= {place: max(end, commits.get(place, 0)) for place, end in ends.items()}
        if self.is_member and commits:
            self._commit(commits)

    def _commit(self, commits: Mapping[tuple[str, int], int]) -> None:
        asked_s = time.monotonic()
        places = [confluent_kafka.TopicPartition(*place, offset) for place, offset in commits.items()]
        try:
            results = self.client.commit(offsets=places, asynchronous=False)
        except confluent_kafka.KafkaException:
            results = None
        at_s = time.monotonic()
        for number, place in enumerate(places):
            here = {"reader": self._name, "topic": place.topic, "partition": place.partition, "offset": place.offset}
            if results is not None and results[number].error is None:
                self._program.note("committed", asked_s=asked_s, at_s=at_s, **here)
            else:
                self._program.note("commit-unknown", asked_s=asked_s, **here)

    def has_read_all(self, ends: Mapping[tuple[str, int], int]) -> bool:
        """Whether it, or its group, has come to these ends."""
        if not self.is_member:
            return all(self.ends.get(place, -1) >= end for place, end in ends.items())
        wanted = [confluent_kafka.TopicPartition(*place) for place in ends]
        try:
            committed = self.client.committed(wanted, timeout=10)
        except confluent_kafka.KafkaException:
            return False
        return all(position.offset >= ends[position.topic, position.partition] for position in committed)

    def close(self) -> None:
        self.client.close()
        self._program.note("fetches", reader=self._name, by_node=self._fetches)


class OwnRackReader:
    """Tailrace's consumer, in the same rack."""

    def __init__(self, program: Program, name: str, rack: str, servers: str) -> None:
        self._program = program
        self._name = name
        self.done = 0
        self._consumer = Consumer(
            servers,
            isolation="read_committed",
            auto_offset_reset="none",
            client_rack=rack,
            client_id=name,
            bootstrap_timeout_ms=DEADLINE_S * 1_000,
        )
        places = [TopicPartition(*place) for place in READ]
        self._consumer.assign(places)
        for topic, partition in places:
            self._consumer.seek(TopicPartition(topic, partition), 0)
            here = {"reader": name, "topic": topic, "partition": partition}
            program.note("assigned", offset=0, at_s=time.monotonic(), **here)

    def turn(self) -> None:
        try:
            records = self._consumer.poll(0.1)
        except KafkaError as fault:
            is_lost = fault.code is ErrorCode.OFFSET_OUT_OF_RANGE
            self._program.note("reset" if is_lost else "trouble", reader=self._name, why=str(fault))
            time.sleep(0.1)
            return
        polled: dict[tuple[str, int], tuple[list[int], list[str]]] = defaultdict(lambda: ([], []))
        for record in records:
            offsets, values = polled[record.topic, record.partition]
            offsets.append(record.offset)
            values.append(text_of(record.value))
        for (topic, partition), (offsets, values) in polled.items():
            here = {"reader": self._name, "topic": topic, "partition": partition}
            self._program.note("polled", offsets=offsets, values=values, at_s=time.monotonic(), **here)
            self.done += len(offsets)

    def has_read_all(self, ends: Mapping[tuple[str, int], int]) -> bool:
        positions = {place: self._consumer.position(TopicPartition(*place)) for place in ends}
        return all((positions[place] or 0) >= end for place, end in ends.items())

    def close(self) -> None:
        self._consumer.close()


def reader(program: Program, rack: str, servers: str) -> None:
    """Run the consumers of one rack, each on a thread of its own."""
    alone = RackReader(program, f"alone-{rack}", rack, servers, None)
    readers: list[RackReader | OwnRackReader] = [
        alone,
        RackReader(program, f"member-{rack}", rack, servers, GROUP),
        OwnRackReader(program, f"own-{rack}", rack, servers),
    ]
    faults: list[BaseException] = []
    threads = [threading.Thread(target=_read, args=(program, consumer, servers, faults)) for consumer in readers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not faults:
        program.done = min(consumer.done for consumer in readers)
        program.report()
        time.sleep(0.1)
    if faults:
        raise faults[0]


def _read(program: Program, consumer: RackReader | OwnRackReader, servers: str, faults: list[BaseException]) -> None:
    try:
        while program.goes_on:
            consumer.turn()
        ends = _ends(servers)
        deadline = time.monotonic() + DEADLINE_S
        while not consumer.has_read_all(ends) and time.monotonic() < deadline:
            consumer.turn()
        consumer.close()
    except BaseException as fault:
        faults.append(fault)
        raise


def _ends(servers: str) -> dict[tuple[str, int], int]:
    """The last stable offsets."""
    settings: dict[str, Any] = {**_COMMON, "bootstrap.servers": servers, "group.id": "ends"}
    client = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed"})
    try:
        return {
            place: client.get_watermark_offsets(confluent_kafka.TopicPartition(*place), timeout=DEADLINE_S)[1]
            for place in READ
        }
    finally:
        client.close()


ROLES: Final = {role.__name__: role for role in (writer, transactions, reader)}


def main() -> None:
    role, name, servers, history = sys.argv[1:]
    program = Program(Path(history))
    ROLES[role](program, name, servers)
    program.close()


if __name__ == "__main__":
    main()
