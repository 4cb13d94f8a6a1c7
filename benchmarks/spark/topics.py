"""Topics that Spark reads, and the sums of their rows: a source that reads too few or wrong rows gets other sums."""

import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Final, NamedTuple

from benchmarks.peers.peer import Peer
from benchmarks.wire import Wire, end_offsets, produce_frame, stream
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch

VALUE_BYTES: Final = 100
BATCH_RECORDS: Final = 1_000
DISTINCT_BATCHES: Final = 16
"""The number of different batches, which are written again and again; every record of a batch has a key of its own."""
_IN_FLIGHT: Final = 8

VALUES, KEYED, ROWS = "values", "keys and values", "full rows"
SCHEMAS: Mapping[str, str | None] = {VALUES: "value binary", KEYED: "key binary, value binary", ROWS: None}
"""The schemas for `.schema`; a read without a schema has every column."""
COUNT_AND_LENGTHS = {
    "count": "count(1)",
    "keys": "sum(length(key))",
    "values": "sum(length(value))",
    "topics": "sum(length(topic))",
    "partitions": "sum(partition)",
    "offsets": "sum(offset)",
    "moments": "sum(unix_millis(timestamp) % 1000)",
    "kinds": "sum(timestampType)",
}
"""Aggregates that need every column."""
AGGREGATES: Mapping[str, Sequence[str]] = {
    VALUES: ("count", "values"),
    KEYED: ("count", "keys", "values"),
    ROWS: tuple(COUNT_AND_LENGTHS),
}
"""For each selection of columns the aggregates of COUNT_AND_LENGTHS that a read computes."""


class SparkTopic(NamedTuple):
    """A topic with a number of rows for each partition, all with the same timestamp."""

    name: str
    partitions: int
    rows_each: int
    moment_ms: int

    @property
    def rows(self) -> int:
        return self.partitions * self.rows_each

    def sums(self, columns: str) -> dict[str, int]:
        """The aggregates of a read of these columns."""
        key, value = body(0)
        found = {
            "count": self.rows,
            "keys": self.rows * len(key),
            "values": self.rows * len(value),
            "topics": self.rows * len(self.name),
            "partitions": self.rows_each * sum(range(self.partitions)),
            "offsets": self.partitions * sum(range(self.rows_each)),
            "moments": self.rows * (self.moment_ms % 1000),
            "kinds": 0,
        }
        return {name: found[name] for name in AGGREGATES[columns]}


def body(number: int) -> tuple[bytes, bytes]:
    """The key and the value of a record: text such as JSON, of which lz4 leaves about a half."""
    text = b'{"order":%08d,"amount":%05d,"currency":"EUR","status":"shipped","carrier":"%s"}'
    value = text % (number, number * 7919 % 100_000, b"abcdefghijklmnopq"[number % 16 :])
    return b"%08d" % number, value.ljust(VALUE_BYTES)[:VALUE_BYTES]


def fill(peer: Peer, name: str, partitions: int, rows: int, codec: Codec = Codec.NONE) -> SparkTopic:
    """A new topic of about so many rows, the same number in each partition, in batches of BATCH_RECORDS."""
    moment_ms = time.time_ns() // 1_000_000
    topics = {name: partitions}
    peer.create_topics(topics)
    peer.wait_for_leaders(topics)
    batches = [_batch(number, moment_ms, codec) for number in range(DISTINCT_BATCHES)]
    count = max(rows // partitions // BATCH_RECORDS, 1)
    with Wire(peer.address) as wire:
        for partition in range(partitions):
            frames = [produce_frame(name, partition, batch) for batch in batches]
            stream(wire, islice(cycle(frames), count), in_flight=_IN_FLIGHT)
        found = end_offsets(wire, name, partitions)
    topic = SparkTopic(name, partitions, count * BATCH_RECORDS, moment_ms)
    if found != [topic.rows_each] * partitions:
        raise RuntimeError(f"{name} ends at {found}, not at {topic.rows_each} in each partition")
    return topic


def _batch(number: int, moment_ms: int, codec: Codec) -> bytes:
    numbers = range(number * BATCH_RECORDS, (number + 1) * BATCH_RECORDS)
    return bytes(build_batch([Record(0, moment_ms, *body(each)) for each in numbers], codec=codec))


def check(contestant: str, found: Mapping[str, Any], topic: SparkTopic, columns: str) -> None:
    """Raise RuntimeError, with what differs, if the sums of a read differ from the sums of the topic."""
    wanted = topic.sums(columns)
    if dict(found) != wanted:
        raise RuntimeError(f"{contestant} has read {columns} of {topic.name} with {dict(found)}, not {wanted}")
