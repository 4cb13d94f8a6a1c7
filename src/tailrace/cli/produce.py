"""`tailrace produce TOPIC`: lines from stdin become records."""

import io
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from random import randrange
from typing import Annotated, cast

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, admin_of, say
from tailrace.client.accumulator import RecordMetadata, StickyPartitioner
from tailrace.client.blocking import Producer
from tailrace.client.producer import parse_codec
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_hash import partition_for_key
from tailrace.protocol.records.record import BatchBuilder

_READ_BYTES = 1 << 18
_BATCH_BYTES = 1 << 18
_PROGRESS_SECONDS = 1.0


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="What stands between key and value; none: no keys.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Write to this partition only.")] = None,
    compression: Annotated[str, typer.Option("--compression", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option("--acks", help="all, 1 or 0.")] = "all",
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Write each line of stdin as a record to TOPIC."""
    with admin_of(bootstrap_server) as admin:
        admin.describe_cluster()  # nobody wants to type into a cluster that is not there
    with Producer(bootstrap_server, acks=acks, compression=compression) as producer:
        lines = _Lines(producer, topic, key_separator.encode() if key_separator else None, partition, compression)
        for chunk in _whole_lines():
            lines.send(chunk)
        lines.finish()
    say(f"{lines.count} records written to {topic}")


def _whole_lines() -> Iterator[list[bytes]]:
    """The lines of stdin as they come: what is typed is sent at once, what is piped goes in large pieces."""
    source = cast(io.BufferedReader, sys.stdin.buffer)
    rest = b""
    while piece := source.read1(_READ_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


class _Lines:
    """Packs lines into batches, one open per partition, and watches what becomes of them."""

    def __init__(
        self, producer: Producer, topic: str, separator: bytes | None, partition: int | None, compression: str
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._separator = separator
        self._only = partition
        self._codec = parse_codec(compression)
        self._partition_count = producer.partitions_for(topic)
        self._sticky = StickyPartitioner(randrange, _BATCH_BYTES)
        self._builders: dict[int, BatchBuilder] = {}
        self._sent: deque[Future[RecordMetadata]] = deque()
        self._said_at = time.monotonic()
        self._line_number = 0
        self.count = 0

    def send(self, lines: list[bytes]) -> None:
        """Send these lines; nothing stays behind."""
        now_ms = time.time_ns() // 1_000_000
        for line in lines:
            self._add(line, now_ms)
        for partition in list(self._builders):
            self._send_batch(partition)
        self._watch()

    def _add(self, line: bytes, now_ms: int) -> None:
        self._line_number += 1
        key: bytes | None = None
        value = line.removesuffix(b"\r")
        if self._separator is not None:
            key, found, value = value.partition(self._separator)
            if not found:
                self.finish()
                detail = f"line {self._line_number} has no key separator {self._separator.decode()!r}"
                raise KafkaError(ErrorCode.INVALID_RECORD, f"{detail}; the lines before it are written")
        partition = self._choose(key, len(value))
        builder = self._builders.get(partition)
        if builder is None:
            builder = self._builders[partition] = BatchBuilder(codec=self._codec)
        builder.append(now_ms, key, value)
        self.count += 1
        if builder.size_bytes >= _BATCH_BYTES:
            self._send_batch(partition)

    def _choose(self, key: bytes | None, size_bytes: int) -> int:
        if self._only is not None:
            return self._only
        if key is not None:
            return partition_for_key(key, self._partition_count)
        return self._sticky.partition(self._topic, range(self._partition_count), size_bytes)

    def _send_batch(self, partition: int) -> None:
        payload = self._builders.pop(partition).build()
        self._sent.append(self._producer.send_batch(self._topic, partition, payload))

    def _watch(self) -> None:
        """Raise what has failed; tell the person at the terminal how far it is."""
        while self._sent and self._sent[0].done():
            self._sent.popleft().result()
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._said_at >= _PROGRESS_SECONDS:
            self._said_at = now
            sys.stderr.write(f"\r{self.count} records ")
            sys.stderr.flush()

    def finish(self) -> None:
        """Wait for every answer. Raises the first failure."""
        for partition in list(self._builders):
            self._send_batch(partition)
        while self._sent:
            self._sent.popleft().result()
