"""A member of an elastic group: `python -m crash.groups.elastic_member KIND SERVERS NAME LEDGER`.

It writes down the begin and the end of each handling, and its commits with their answers. It is killed at any moment:
each line is one write. It leaves the group in order when its stdin ends. `ElasticMember.java` is the same of Java.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import confluent_kafka

from crash.groups.keyed_worker import Diary
from tailrace.aio import Consumer, KeyedConsumer
from tailrace.client.group.range_progress import RangeBudget, RangeProgress
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.reading.consumer_reader import ConsumerReader
from tailrace.model.committed_progress import Rectangle
from tailrace.model.key_ranges import hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import View

TOPIC: Final = "orders"
GROUP: Final = "elastic"
FAN_OUT: Final = 64
VIEW: Final = View(TOPIC, FAN_OUT).name
HANDLER_S: Final = 0.003
COMMIT_S: Final = 1.0
COMMIT_TRIES: Final = 20
COMMIT_PAUSE_S: Final = 0.1
"""A commit is refused while the answer with the member's next epoch is on its way: it is sent again. Our clients do
this by themselves."""
IN_HAND: Final = 64
"""The most records that a keyed member has in hand."""


def slot_of_key(partition: int, key: bytes | None) -> int:
    """The slot of a record of this partition of the topic."""
    return partition * FAN_OUT + (hash_of(key, 0) * FAN_OUT >> 32)


class MemberLedger:
    """The file of one member."""

    def __init__(self, path: Path) -> None:
        self._diary = Diary(path)

    def begin(self, slot: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        self._diary.write(begin=(slot, offset), key=(key or b"").decode(), number=int(value or b""))

    def end(self, slot: int, offset: int) -> None:
        self._diary.write(end=(slot, offset))

    def leaving(self) -> None:
        self._diary.write(leaving=True)

    @contextmanager
    def commit(self, rectangles: Mapping[int, Iterable[Rectangle]]) -> Iterator[None]:
        """Inside, the commit of these rectangles by slot is sent and answered."""
        noted = [(slot, list(found)) for slot, found in rectangles.items()]
        sent_ns = time.monotonic_ns()
        is_acknowledged = False
        try:
            yield
            is_acknowledged = True
        finally:
            if noted:
                self._diary.write(commit=noted, sent=sent_ns, ok=is_acknowledged)


def _up_to(offsets: Mapping[int, int]) -> dict[int, list[Rectangle]]:
    """Rectangles of the records before these offsets."""
    return {slot: [Rectangle(0, offset - 1)] for slot, offset in offsets.items() if offset > 0}


def when_stdin_ends(call: Any) -> None:
    """Call this, from another thread, when the test asks the member to leave."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        call()

    threading.Thread(target=wait, daemon=True).start()


# Our clients


def _noting_ranges(ledger: MemberLedger) -> AbstractContextManager[object]:
    commit = RangeProgress.commit

    async def noted(
        progress: RangeProgress, ranges: Mapping[TopicPartition, Iterable[Rectangle]], **settings: Any
    ) -> dict[TopicPartition, RangeBudget]:
        taken = {name: tuple(rectangles) for name, rectangles in ranges.items()}
        with ledger.commit({name.partition: rectangles for name, rectangles in taken.items()}):
            return await commit(progress, taken, **settings)

    return patch.object(RangeProgress, "commit", noted)


def _noting_offsets(ledger: MemberLedger) -> AbstractContextManager[object]:
    commit = ConsumerReader.commit

    async def noted(reader: ConsumerReader, offsets: Mapping[TopicPartition, Any], **settings: Any) -> None:
        with ledger.commit(_up_to({name.partition: at.offset for name, at in offsets.items()})):
            await commit(reader, offsets, **settings)

    return patch.object(ConsumerReader, "commit", noted)


async def keyed(servers: str, name: str, ledger: MemberLedger) -> None:
    """A keyed consumer with slots."""
    consumer = KeyedConsumer(
        servers, group=GROUP, topics=[TOPIC], slots=FAN_OUT, client_id=name, max_records_in_hand=IN_HAND
    )

    async def handle(record: KeyedRecord) -> None:
        assert record.slot is not None, "the consumer has slots"
        slot = record.partition * FAN_OUT + record.slot
        ledger.begin(slot, record.offset, record.key, record.value)
        await asyncio.sleep(HANDLER_S)
        ledger.end(slot, record.offset)

    def leave() -> None:
        ledger.leaving()
        consumer.stop()

    when_stdin_ends(leave)
    await consumer.run(handle)


async def plain(servers: str, name: str, ledger: MemberLedger) -> None:
    """The plain loop, with allow_individual_commit."""
    is_over = threading.Event()

    def leave() -> None:
        ledger.leaving()
        is_over.set()

    when_stdin_ends(leave)
    async with Consumer(
        servers,
        group=GROUP,
        topics=[TOPIC],
        client_id=name,
        allow_individual_commit=True,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=int(COMMIT_S * 1_000),
        max_poll_records=20,
    ) as consumer:
        while not is_over.is_set():
            for record in await consumer.poll(0.2):
                slot = slot_of_key(record.partition, record.key)
                ledger.begin(slot, record.offset, record.key, record.value)
                await asyncio.sleep(HANDLER_S)
                ledger.end(slot, record.offset)


# librdkafka


class LibrdkafkaMember:
    """A member of librdkafka that commits the records that it has handled."""

    def __init__(self, servers: str, name: str, ledger: MemberLedger) -> None:
        self._ledger = ledger
        self._done: dict[int, int] = {}
        """By slot, the offset behind the last record that is handled and not committed."""
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": GROUP,
                "client.id": name,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._consumer.subscribe([VIEW], on_revoke=self._on_revoke, on_lost=self._on_lost)

    def run(self, is_over: threading.Event) -> None:
        """Work until the end, and leave."""
        committed_s = time.monotonic()
        while not is_over.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and (fault := message.error()) is not None:
                sys.stderr.write(f"{fault}\n")
                if fault.fatal():
                    sys.exit(1)
            elif message is not None:
                self._handle(message)
            if time.monotonic() - committed_s > COMMIT_S:
                self._commit(dict(self._done))
                committed_s = time.monotonic()
        self._commit(dict(self._done))
        self._consumer.close()

    def _handle(self, message: confluent_kafka.Message) -> None:
        slot, offset = message.partition(), message.offset()
        assert slot is not None
        assert offset is not None
        self._ledger.begin(slot, offset, _bytes(message.key()), _bytes(message.value()))
        time.sleep(HANDLER_S)
        self._ledger.end(slot, offset)
        self._done[slot] = offset + 1

    def _commit(self, offsets: dict[int, int]) -> None:
        if not offsets:
            return
        wanted = [confluent_kafka.TopicPartition(VIEW, slot, offset) for slot, offset in offsets.items()]
        for _ in range(COMMIT_TRIES):
            try:
                with self._ledger.commit(_up_to(offsets)):
                    for answer in self._consumer.commit(offsets=wanted, asynchronous=False) or ():
                        if answer.error is not None:
                            raise confluent_kafka.KafkaException(answer.error)
            except confluent_kafka.KafkaException as fault:
                sys.stderr.write(f"commit: {fault}\n")
                if fault.args[0].code() != confluent_kafka.KafkaError.STALE_MEMBER_EPOCH:
                    return
                time.sleep(COMMIT_PAUSE_S)
            else:
                self._forget(offsets)
                return

    def _forget(self, offsets: Mapping[int, int]) -> None:
        """Forget these offsets, which are committed."""
        for slot, offset in offsets.items():
            if self._done.get(slot) == offset:
                del self._done[slot]

    def _on_revoke(self, _: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        slots = [partition.partition for partition in partitions]
        self._commit({slot: self._done[slot] for slot in slots if slot in self._done})
        for slot in slots:
            self._done.pop(slot, None)

    def _on_lost(self, _: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        for partition in partitions:
            self._done.pop(partition.partition, None)


def _bytes(content: str | bytes | None) -> bytes:
    return content.encode() if isinstance(content, str) else content or b""


def main() -> None:
    kind, servers, name, path = sys.argv[1:]
    ledger = MemberLedger(Path(path))
    if kind == "keyed":
        with _noting_ranges(ledger), _noting_offsets(ledger):
            asyncio.run(keyed(servers, name, ledger))
    elif kind == "plain":
        with _noting_offsets(ledger):
            asyncio.run(plain(servers, name, ledger))
    else:
        is_over = threading.Event()

        def leave() -> None:
            ledger.leaving()
            is_over.set()

        when_stdin_ends(leave)
        LibrdkafkaMember(servers, name, ledger).run(is_over)


if __name__ == "__main__":
    main()
