"""A worker that copies each record of a topic once, as docs/guides/transactions.md has it, until the end of the topic.

Its name is its transactional id and its group instance. It kills itself at the moment that its last argument names,
such as `answered EndTxn 2`: the second answer to EndTxn has come, and nothing of the client has seen it. Without a
moment it copies to the end.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tailrace.client.blocking import Consumer, Producer
from tailrace.client.errors import AbortableTransactionError
from tailrace.client.reading.records_ahead import ConsumerRecord
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection

SOURCE, TARGET, GROUP = TopicPartition("source", 0), TopicPartition("target", 0), "copiers"
OF_ONE_TRANSACTION = 10
SESSION_MS = 3_000
TRANSACTION_MS = 5_000


def dying(moment: str) -> AbstractContextManager[object]:
    """Inside, this process dies when so many requests of that kind are about to be sent, or are answered."""
    send = Connection.send
    seen: Counter[str] = Counter()

    def note(what: str) -> None:
        seen[what] += 1
        if f"{what} {seen[what]}" == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def noted(connection: Connection, request: object, *arguments: Any, **options: Any) -> "asyncio.Future[Any]":
        name = type(request).__name__.removesuffix("Request")
        note(f"asked {name}")
        answer: asyncio.Future[Any] = send(connection, request, *arguments, **options)
        answer.add_done_callback(lambda _: note(f"answered {name}"))  # before the callbacks of the client
        return answer

    return patch.object(Connection, "send", noted)


def copy(consumer: Consumer, producer: Producer, end: int) -> None:
    """Copy up to this offset. Raises KafkaError when the producer cannot go on, or an outcome stays open."""
    producer.init_transactions()
    while (consumer.position(SOURCE) or 0) < end:
        records = consumer.poll(0.5)
        if not records:
            continue
        try:
            with producer.transaction():
                for record in records:
                    producer.send(TARGET.topic, record.value, partition=TARGET.partition)
                producer.send_offsets_to_transaction({SOURCE: records[-1].offset + 1}, consumer.group_metadata())
        except AbortableTransactionError:
            go_back(consumer, records)


def go_back(consumer: Consumer, records: list[ConsumerRecord]) -> None:
    """Read these records again, unless another member has the partition now."""
    if SOURCE in consumer.assignment():
        consumer.seek(SOURCE, records[0].offset)


def copy_with_new_clients(servers: str, end: int, name: str) -> bool:
    """Whether all is copied; if not, the next clients go on behind what is committed."""
    reading = Consumer(
        servers,
        group=GROUP,
        topics=[SOURCE.topic],
        isolation="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=OF_ONE_TRANSACTION,
        group_instance_id=name,  # its next process takes its place at once
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=SESSION_MS // 6,
    )
    producing = Producer(servers, transactional_id=name, transaction_timeout_ms=TRANSACTION_MS)
    try:
        with reading as consumer, producing as producer:
            copy(consumer, producer, end)
    except KafkaError as fault:
        sys.stderr.write(f"{fault}\n")
        return False
    return True


def main(servers: str, end: str, name: str, moment: str = "") -> None:
    """Copy, or die."""
    with dying(moment):
        while not copy_with_new_clients(servers, int(end), name):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
