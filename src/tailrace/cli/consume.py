"""`tailrace consume TOPIC`: print records."""

import json
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, admin_of, readable, say
from tailrace.client.blocking import Consumer, ConsumerRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition


class RecordFormat(StrEnum):
    """The forms of a record, one line each."""

    VALUE = "value"
    KEY_VALUE = "key-value"
    JSON = "json"


_POLL_SECONDS = 0.5
_MAX_RECORDS = 5_000


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest record.")] = False,
    max_messages: Annotated[int | None, typer.Option("--max-messages", min=1, help="Stop after so many.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Stop when none has come for so long.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Read this partition only.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", help="Start here; needs --partition.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Share the topic in this group, and commit.")] = None,
    isolation: Annotated[str, typer.Option("--isolation", help="read_uncommitted or read_committed.")] = (
        "read_uncommitted"
    ),
    rack: Annotated[str, typer.Option("--rack", help="Read from a replica in this rack if there is one.")] = "",
    record_format: Annotated[RecordFormat, typer.Option("--format", help="How to print.")] = RecordFormat.VALUE,
    key_separator: Annotated[str, typer.Option("--key-separator", help="For --format key-value.")] = "\t",
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of TOPIC, one line each, until interrupted."""
    if offset is not None and partition is None:
        raise typer.BadParameter("an offset belongs to a partition: give --partition too", param_hint="--offset")
    if group is not None and partition is not None:
        raise typer.BadParameter("a group decides who reads which partition", param_hint="--partition")
    with admin_of(bootstrap_server) as admin:
        count = len(admin.describe_topics([topic])[0].partitions)
    consumer = Consumer(
        bootstrap_server,
        group=group,
        topics=[topic] if group is not None else (),
        auto_offset_reset="earliest" if from_beginning else "latest",
        isolation=isolation,
        client_rack=rack,
    )
    line_of = _formatter(record_format, key_separator.encode())
    with consumer:
        if group is None:
            consumer.assign(_chosen(topic, count, partition))
        if partition is not None and offset is not None:
            consumer.seek(TopicPartition(topic, partition), offset)
        _print_records(consumer, line_of, max_messages, timeout)


def _chosen(topic: str, count: int, partition: int | None) -> list[TopicPartition]:
    if partition is None:
        return [TopicPartition(topic, index) for index in range(count)]
    if not 0 <= partition < count:
        detail = f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    return [TopicPartition(topic, partition)]


def _print_records(
    consumer: Consumer, line_of: Callable[[ConsumerRecord], bytes], max_messages: int | None, timeout: float | None
) -> None:
    stdout = sys.stdout.buffer
    printed = 0
    deadline = None if timeout is None else time.monotonic() + timeout
    while max_messages is None or printed < max_messages:
        wanted = _MAX_RECORDS if max_messages is None else min(_MAX_RECORDS, max_messages - printed)
        records = consumer.poll(_POLL_SECONDS, max_records=wanted)
        if records:
            stdout.write(b"".join(map(line_of, records)))
            stdout.flush()
            printed += len(records)
            deadline = None if timeout is None else time.monotonic() + timeout
        elif deadline is not None and time.monotonic() >= deadline:
            break
    say(f"{printed} records")


def _formatter(record_format: RecordFormat, separator: bytes) -> Callable[[ConsumerRecord], bytes]:
    match record_format:
        case RecordFormat.VALUE:
            return lambda record: (record.value or b"") + b"\n"
        case RecordFormat.KEY_VALUE:
            return lambda record: (record.key or b"null") + separator + (record.value or b"null") + b"\n"
        case RecordFormat.JSON:
            return _json_line


def _json_line(record: ConsumerRecord) -> bytes:
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": readable(record.key),
        "value": readable(record.value),
    }
    if record.headers:
        fields["headers"] = [[name, readable(content)] for name, content in record.headers]
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
