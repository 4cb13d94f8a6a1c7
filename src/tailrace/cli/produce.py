"""`tailrace produce TOPIC`: lines from stdin become records."""

import io
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn, cast

import typer

from tailrace.cli.completion import Topic
from tailrace.cli.output import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Format,
    Output,
    admin_of,
    cluster_of,
    counted,
    say,
    show,
)
from tailrace.cli.waiting import TroubleNotice, on_first_signal, without_client_warnings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_hash import partition_for_key

if TYPE_CHECKING:  # the help text and the completion of words need no producer
    from tailrace.client.blocking.producer import Producer
    from tailrace.client.writing.outgoing import RecordMetadata
    from tailrace.protocol.records.record import BatchBuilder


class Compression(StrEnum):
    """The compression of batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """The replicas that must have a record before the leader acknowledges the record."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


_READ_BYTES = 1 << 18
_BATCH_BYTES = 1 << 18
_LONGEST_LINE = 1 << 26
"""Bytes; more than any topic takes by default."""
_DELIVERY_TIMEOUT_MS = 60_000
_LAST_SECONDS = 1.0
"""The time that an interrupted command waits for the answers to the lines that were read."""
_PROGRESS_SECONDS = 1.0


def command(
    topic: Topic,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", metavar="TEXT", help="The text after the key, such as : or \\t; default: no keys."
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Write to this partition only.")] = None,
    compression: Annotated[Compression, typer.Option("--compression", help="Of the batches.")] = Compression.NONE,
    acks: Annotated[Acks, typer.Option("--acks", help="Replicas that confirm: all, the leader, none.")] = Acks.ALL,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Write each line of stdin as a record to TOPIC."""
    separator = _parse_separator(key_separator)
    with admin_of(bootstrap_server) as admin:
        # Before the user types into a cluster that is not there, or the first record creates the topic.
        is_new = not admin.existing_topics((topic,))
    from tailrace.client.blocking.producer import Producer
    from tailrace.client.writer_settings import ProducerSettings

    settings = ProducerSettings.on(
        cluster_of(bootstrap_server),
        acks=acks.value,
        compression=compression.value,
        max_request_size=_LONGEST_LINE,
        delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
    )
    producer = Producer.of(settings)
    lines = _InputLines(producer, topic, separator, partition, compression)
    was_interrupted = False
    with without_client_warnings(), on_first_signal(_interrupt):
        try:
            try:
                lines.open()
                lines.send_all(_whole_lines())
                lines.finish(None)
            except KeyboardInterrupt:
                was_interrupted = True
                lines.finish(_LAST_SECONDS)
        finally:
            lines.erase_count()
            if lines.is_complete:
                producer.close()  # `close` would wait for records that are still in flight
    if output is Format.JSON:
        show([{"topic": topic, "records": lines.written}], (), output)
    # A name that was mistyped shows as a topic that is new.
    new = f", a new topic ({counted(lines.partition_count, 'partition')})" if is_new and lines.partition_count else ""
    say(f"{counted(lines.written, 'record')} written to {topic}{new}")
    if was_interrupted:
        raise typer.Exit(1)


def _parse_separator(text: str | None) -> bytes | None:
    if text is None:
        return None
    if not text:
        raise typer.BadParameter("an empty text separates nothing", param_hint="--key-separator")
    return text.replace("\\t", "\t").encode()


def _interrupt() -> NoReturn:
    """End the reading at a signal; the lines that were read are written."""
    raise KeyboardInterrupt


def _whole_lines() -> Iterator[list[bytes]]:
    """The lines of stdin as they come: typed lines are sent at once, piped lines in large pieces."""
    source = cast(io.BufferedReader, sys.stdin.buffer)
    begun: list[bytes] = []
    size_bytes = 0
    while piece := source.read1(_READ_BYTES):
        end = piece.rfind(b"\n")
        if end >= 0:
            yield b"".join((*begun, piece[:end])).split(b"\n")
            begun.clear()
            size_bytes = 0
            piece = piece[end + 1 :]
        begun.append(piece)
        size_bytes += len(piece)
        if size_bytes > _LONGEST_LINE:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a line has more than {_LONGEST_LINE} bytes")
    if size_bytes:
        yield [b"".join(begun)]


class _SentRecord(NamedTuple):
    """A batch in flight."""

    future: "Future[RecordMetadata]"
    records: int
    first_line: int
    last_line: int

    @property
    def name(self) -> str:
        if self.records == 1:
            return f"line {self.first_line} was"
        whole = self.records == self.last_line - self.first_line + 1
        return f"{'' if whole else 'some of '}lines {self.first_line} to {self.last_line} were"


class _Open:
    """A batch that lines are added to."""

    def __init__(self, builder: "BatchBuilder", first_line: int) -> None:
        self.builder = builder
        self.first_line = self.last_line = first_line


class _InputLines:
    """Packs lines into batches, one open batch per partition, and tracks their answers."""

    def __init__(
        self, producer: "Producer", topic: str, separator: bytes | None, partition: int | None, compression: str
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._separator = separator
        self._only = partition
        from random import randrange

        from tailrace.client.writer_settings import parse_codec
        from tailrace.client.writing.partition_choice import StickyPartitioner
        from tailrace.protocol.records.record import BatchBuilder

        self._new_builder = partial(BatchBuilder, codec=parse_codec(compression))
        self.partition_count = 0
        """The partitions of the topic; 0 before `open`."""
        self._sticky = StickyPartitioner(randrange, _BATCH_BYTES)
        self._open: dict[int, _Open] = {}
        self._sent: deque[_SentRecord] = deque()
        self._fault: KafkaError | None = None
        self._notice = TroubleNotice()
        self._said_at = time.monotonic()
        self._line_number = 0
        self._has_counted = False
        self.written = 0
        """The number of acknowledged records."""

    def open(self) -> None:
        """Look up the number of partitions; this creates the topic if the cluster auto-creates topics."""
        self.partition_count = self._producer.partition_count(self._topic)

    @property
    def is_complete(self) -> bool:
        """Whether no batch is in flight."""
        return not self._sent

    def send_all(self, pieces: Iterator[list[bytes]]) -> None:
        """Send these lines until they end or a line cannot be written."""
        try:
            for lines in pieces:
                self._send(lines)
                if self._fault is not None:
                    return
        except KafkaError as fault:
            self._fault = self._fault or fault

    def _send(self, lines: list[bytes]) -> None:
        """Send these lines, lines in open batches too."""
        now_ms = time.time_ns() // 1_000_000
        for line in lines:
            self._add(line, now_ms)
        self._send_open()
        self._watch()

    def _add(self, line: bytes, now_ms: int) -> None:
        self._line_number += 1
        key: bytes | None = None
        value = line.removesuffix(b"\r")
        if self._separator is not None:
            key, found, value = value.partition(self._separator)
            if not found:
                detail = f"line {self._line_number} has no key separator {self._separator.decode()!r}"
                raise KafkaError(ErrorCode.INVALID_RECORD, detail)
        partition = self._choose(key, len(value))
        batch = self._open.get(partition)
        if batch is not None and batch.builder.size_bytes + len(line) > _BATCH_BYTES:
            self._send_batch(partition)  # a long line gets a batch of its own: the topic may refuse it
            batch = None
        if batch is None:
            batch = self._open[partition] = _Open(self._new_builder(), self._line_number)
        batch.builder.append(now_ms, key, value)
        batch.last_line = self._line_number

    def _choose(self, key: bytes | None, size_bytes: int) -> int:
        if self._only is not None:
            return self._only
        if key is not None:
            return partition_for_key(key, self.partition_count)
        return self._sticky.partition(self._topic, range(self.partition_count), size_bytes)

    def _send_open(self) -> None:
        for partition in list(self._open):
            self._send_batch(partition)

    def _send_batch(self, partition: int) -> None:
        batch = self._open.pop(partition)
        future = self._producer.send_batch(self._topic, partition, batch.builder.build())
        self._sent.append(_SentRecord(future, batch.builder.count, batch.first_line, batch.last_line))

    def _watch(self) -> None:
        """Record the answers so far; show the progress on a terminal."""
        while self._sent and self._sent[0].future.done():
            self._settle(self._sent.popleft())
        now = time.monotonic()
        if now - self._said_at >= _PROGRESS_SECONDS:
            self._said_at = now
            self._notice.check(self._producer.trouble)
            self._count_on_terminal()

    def _count_on_terminal(self) -> None:
        """Print the count over the last count; `erase_count` removes it."""
        if sys.stderr.isatty():
            self._has_counted = True
            sys.stderr.write(f"\r\x1b[K{counted(self.written, 'record')} ")
            sys.stderr.flush()

    def erase_count(self) -> None:
        """Erase the count, so that the next output begins at the margin."""
        if self._has_counted:
            self._has_counted = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _settle(self, sent: _SentRecord) -> None:
        try:
            sent.future.result()
        except KafkaError as fault:
            self._fault = self._fault or KafkaError(fault.code, f"{sent.name} not written: {fault.detail}")
        else:
            self.written += sent.records

    def finish(self, within: float | None) -> None:
        """Wait for every answer, `within` seconds at most. Raises the first failure."""
        self._send_open()
        deadline = None if within is None else time.monotonic() + within
        while self._sent:
            if deadline is not None and time.monotonic() >= deadline:
                waiting = counted(sum(sent.records for sent in self._sent), "record")
                detail = f"{waiting} given up unacknowledged; {counted(self.written, 'record')} written"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)
            try:
                self._sent[0].future.exception(timeout=_PROGRESS_SECONDS)
            except TimeoutError:
                self._notice.check(self._producer.trouble)
            self._watch()
        if self._fault is not None:
            written = f"{counted(self.written, 'record')} written"
            raise KafkaError(self._fault.code, f"{self._fault.detail}; {written}")
