"""`tailrace consume TOPIC`: print records."""

import json
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.completion import Topic, group_names
from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, admin_of, cluster_of, counted, readable, say
from tailrace.cli.waiting import (
    CorruptAction,
    Isolation,
    IsolationLevel,
    OnCorrupt,
    TroubleNotice,
    describe,
    on_first_signal,
    without_client_warnings,
)
from tailrace.client.blocking.admin import Admin
from tailrace.client.offsets import EARLIEST, LATEST
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import parse_view

if TYPE_CHECKING:  # the help text and the completion of words need no consumer
    from tailrace.client.blocking.consumer import Consumer
    from tailrace.client.reading.records_ahead import ConsumerRecord


class RecordFormat(StrEnum):
    """The forms of a record, one line each."""

    VALUE = "value"
    KEY_VALUE = "key-value"
    JSON = "json"


_POLL_SECONDS = 0.2
"""The longest time until an interruption is noticed."""
_MAX_RECORDS = 5_000


def command(
    topic: Topic,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest record.")] = False,
    max_messages: Annotated[int | None, typer.Option("--max-messages", min=1, help="Stop after this number.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Stop after this time without a record.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Read this partition only.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Start here; needs --partition.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Read the records with this key only.", show_default=False)
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Share the topic in this group, and commit.", autocompletion=group_names),
    ] = None,
    isolation: IsolationLevel = Isolation.READ_UNCOMMITTED,
    rack: Annotated[
        str,
        typer.Option(
            "--rack", help="Read from a replica in this rack if the brokers choose by racks (replica.selector.class)."
        ),
    ] = "",
    on_corrupt: OnCorrupt = CorruptAction.RAISE,
    record_format: Annotated[
        RecordFormat, typer.Option("--format", "-o", "--output", help="How to print.")
    ] = RecordFormat.VALUE,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="For --format key-value; default: a tab.", show_default=False)
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of TOPIC, one line each, until interrupted."""
    _check_start(partition=partition, offset=offset, group=group, from_beginning=from_beginning, key=key)
    with admin_of(bootstrap_server) as admin:
        partitions = admin.topic_partitions(topic, None if partition is None else [partition])
        if offset is not None:
            _check_offset(admin, partitions[0], offset)
    from tailrace.client.blocking.consumer import Consumer
    from tailrace.client.reader_settings import ConsumerSettings

    settings = ConsumerSettings.on(
        cluster_of(bootstrap_server),
        group=group,
        topics=[topic] if group is not None else (),
        auto_offset_reset="earliest" if from_beginning else "latest",
        isolation=isolation.value,
        client_rack=rack,
        on_corrupt=on_corrupt.value,
    )
    consumer = Consumer.of(settings)
    line_of = _formatter(record_format, b"\t" if key_separator is None else key_separator.replace("\\t", "\t").encode())
    begins_at_end = offset is None and not from_beginning
    waiting = _WaitingNotice(bootstrap_server, topic, partitions, is_new=begins_at_end)
    with without_client_warnings(), _until_interrupted() as is_interrupted, consumer:
        if group is None:
            # A view has key ranges of its own, and takes no other ranges.
            ranges = () if key is None or parse_view(topic) is not None else _hash_range(key)
            consumer.assign(dict.fromkeys(partitions, ranges))
        elif begins_at_end:
            waiting.is_new = not consumer.committed(partitions)
        if offset is not None:
            consumer.seek(partitions[0], offset)
        records = _Records(consumer, None if key is None else key.encode())
        _print_records(records, line_of, max_messages, timeout, is_interrupted, waiting)


def _hash_range(key: str) -> list[KeyRange]:
    """The hash of a key as a range: the broker sends its records and the few records of other keys with this hash."""
    key_hash = hash_of(key.encode(), 0)
    return [KeyRange(key_hash, key_hash)]


class _Records:
    """The records that a consumer polls, of the given key, if any."""

    def __init__(self, consumer: "Consumer", key: bytes | None) -> None:
        self.consumer = consumer
        self._key = key

    def poll(self, most: int) -> "list[ConsumerRecord]":
        polled = self.consumer.poll(_POLL_SECONDS, max_records=most)
        return polled if self._key is None else [record for record in polled if record.key == self._key]


def _check_start(
    *, partition: int | None, offset: int | None, group: str | None, from_beginning: bool, key: str | None
) -> None:
    if key is not None and group is not None:
        raise typer.BadParameter("a group reads whole partitions", param_hint="--key")
    if offset is not None and partition is None:
        raise typer.BadParameter("an offset belongs to a partition: give --partition too", param_hint="--offset")
    if offset is not None and from_beginning:
        raise typer.BadParameter("say either --offset or --from-beginning", param_hint="--offset")
    if group is not None and partition is not None:
        raise typer.BadParameter("a group assigns the partitions to its members", param_hint="--partition")
    if group == "":
        raise typer.BadParameter("a group has a name", param_hint="--group")


def _check_offset(admin: Admin, partition: TopicPartition, offset: int) -> None:
    """Raise KafkaError for an offset out of range: a consumer would start at one end of the log instead."""
    first = admin.list_offsets({partition: EARLIEST})[partition].offset
    end = admin.list_offsets({partition: LATEST})[partition].offset
    if not first <= offset <= end:
        detail = f"{partition} has offsets {first} to {end}, not {offset}"
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """End the command cleanly at SIGINT or SIGTERM: polled records are printed and committed, the group is left.

    A second signal ends the command at once.
    """
    is_caught = False

    def catch() -> None:
        nonlocal is_caught
        is_caught = True

    with on_first_signal(catch):
        yield lambda: is_caught


def _print_records(
    source: _Records,
    line_of: "Callable[[ConsumerRecord], bytes]",
    max_messages: int | None,
    timeout: float | None,
    is_interrupted: Callable[[], bool],
    waiting: "_WaitingNotice",
) -> None:
    consumer, stdout = source.consumer, sys.stdout.buffer
    notice = TroubleNotice()
    printed = 0
    deadline = None if timeout is None else time.monotonic() + timeout
    while (max_messages is None or printed < max_messages) and not is_interrupted():
        wanted = _MAX_RECORDS if max_messages is None else min(_MAX_RECORDS, max_messages - printed)
        records = source.poll(wanted)
        if records:
            stdout.write(b"".join(map(line_of, records)))
            stdout.flush()
            printed += len(records)
            deadline = None if timeout is None else time.monotonic() + timeout
            continue
        _check_reader()
        notice.check(consumer.trouble)
        if not printed and consumer.trouble is None:
            waiting.tell()
        if deadline is not None and time.monotonic() >= deadline:
            if consumer.trouble is not None:
                detail = f"{describe(consumer.trouble)}; {counted(printed, 'record')} came before"
                raise KafkaError(consumer.trouble.code, detail)
            break
    if consumer.trouble is not None:
        say(f"{describe(consumer.trouble)}; interrupt again not to wait for it")
    say(counted(printed, "record") + _corrupt(consumer) + ("" if printed else waiting.skipped()))


def _corrupt(consumer: "Consumer") -> str:
    """A part of the last line: the batches that could not be decoded."""
    from tailrace.client.reading.consumer_metrics import MetricName

    skipped = consumer.metrics()[MetricName("corrupt-batches-skipped-total")]
    return f"; {skipped} corrupt {'batch' if skipped == 1 else 'batches'} skipped" if skipped else ""


class _WaitingNotice:
    """Tells a waiting person the topic, and the number of older records that the command does not print."""

    def __init__(self, servers: str, topic: str, partitions: Sequence[TopicPartition], *, is_new: bool) -> None:
        self._servers = servers
        self._topic = topic
        self._partitions = partitions
        self.is_new = is_new
        """Whether the command begins at the end: no option and no committed offset names another start."""
        self._is_printed = False

    def tell(self) -> None:
        """Print the notice, on a terminal, once."""
        if self._is_printed or not sys.stderr.isatty():
            return
        self._is_printed = True
        older = self._count()
        records = "" if older is None else f", {counted(older, 'record')}"
        way_out = " before; --from-beginning reads them" if older and self.is_new else ""
        partitions = counted(len(self._partitions), "partition")
        say(f"waiting for records of {self._topic} ({partitions}{records}{way_out}) ...")

    def skipped(self) -> str:
        """The end of the last line if no record was printed: the number of older records."""
        older = self._count() if self.is_new else None
        if not older:
            return ""
        return f"; {self._topic} has {older} older {'one' if older == 1 else 'ones'}: --from-beginning reads them"

    def _count(self) -> int | None:
        """The number of records in the partitions, from their offsets; None if unknown."""
        try:
            with admin_of(self._servers) as admin:
                firsts, ends = (admin.list_offsets(dict.fromkeys(self._partitions, end)) for end in (EARLIEST, LATEST))
        except KafkaError:
            return None
        return sum(ends[partition].offset - firsts[partition].offset for partition in self._partitions)


def _check_reader() -> None:
    """Raise BrokenPipeError if the reader of stdout has gone: `| head -1` on a topic without new records."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        events = poll.poll(0)
    except (AttributeError, OSError, ValueError):
        return  # this system has no poll(), or stdout is no file
    if any(event & select.POLLERR for _, event in events):
        raise BrokenPipeError


def _formatter(record_format: RecordFormat, separator: bytes) -> "Callable[[ConsumerRecord], bytes]":
    match record_format:
        case RecordFormat.VALUE:
            return lambda record: (record.value or b"") + b"\n"
        case RecordFormat.KEY_VALUE:
            return lambda record: _shown(record.key) + separator + _shown(record.value) + b"\n"
        case RecordFormat.JSON:
            return _json_line


def _shown(content: bytes | None) -> bytes:
    return b"null" if content is None else content


def _json_line(record: "ConsumerRecord") -> bytes:
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
