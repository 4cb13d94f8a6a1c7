"""Readers that split a partition by key ranges, beside a single reader of the whole partition: the broker's CPU
(KIP-X)."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from benchmarks.lines.key_ranges.key_filter import READERS, SIZES, chunk_of
from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.wire import PRODUCE_VERSION, Wire, produce_request
from tailrace.model.key_ranges import of_slots
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, WireKeyRange
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.compression import Codec

NAME = "key-readers"
DEFAULT = 64
"""The number of megabytes of plain records in the partition."""
FETCH_BYTES: Final = 1 << 20
VERSION: Final = 12
PASSES: Final = 8
"""The number of times that the partition is read in a round."""
MOST_TIMES_ONE = {"1 KB": 2.0, "100 B": 2.5}
ONE, SHARED, APART = "one reader of all", "eight readers of an eighth", "eight readers, no part kept"

CONDITIONS = (
    "One node, one partition, read from the page cache before each round. Each reader has a connection with one Fetch "
    f"v{VERSION} of {FETCH_BYTES >> 20} MiB in flight; eight readers take turns, and each has fetched once before. "
    f"{PASSES} passes a round. No part kept: with max.bytes.key.range.hashing=0 a chunk is split anew for each reader. "
    "CPU: of the node's process, all threads, for the whole partition, per megabyte of plain records. Ratio: to one "
    "reader of all records in the same round."
)


class RangeReader:
    """A client that reads to the end of a partition."""

    def __init__(self, address: str, topic: str, ranges: Sequence[WireKeyRange]) -> None:
        self._wire = Wire(address)
        self._topic = topic
        self._ranges = tuple(ranges)
        self._offset = 0
        self.is_done = False

    def fetch(self) -> int:
        """Fetch once; returns the bytes that came."""
        data = self._ask()
        stored = bytes(data.records or b"")
        if self._ranges:
            assert data.applied_key_ranges == self._ranges, "the broker filters"
            self._offset = data.scanned_to
        else:
            for _, header in iter_batches(stored):
                self._offset = header.end_offset
        self.is_done = self._offset >= data.high_watermark
        return len(stored)

    def rewind(self) -> None:
        """Read from the start again."""
        self._offset, self.is_done = 0, False

    def _ask(self) -> PartitionData:
        wanted = FetchPartition(
            partition=0, fetch_offset=self._offset, partition_max_bytes=FETCH_BYTES, key_ranges=self._ranges
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            topics=(FetchTopic(topic=self._topic, partitions=(wanted,)),),
        )
        ((data,),) = (topic.partitions for topic in self._wire.ask(request, VERSION).responses)
        assert not data.error_code, f"error {data.error_code}"
        found: PartitionData = data
        return found

    def close(self) -> None:
        self._wire.close()


class Written(NamedTuple):
    """A topic of one partition, and its plain bytes."""

    topic: str
    plain_bytes: int


def measure(rounds: Rounds, megabytes: int) -> Section:
    with ExitStack() as stack:
        keeping = stack.enter_context(running(tailrace("page-cache")))
        apart = stack.enter_context(running(tailrace("page-cache", settings={"max.bytes.key.range.hashing": "0"})))
        for size, value_bytes in SIZES.items():
            for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
                kind = size if codec == Codec.NONE else f"{size}, {codec.name.lower()}"
                written = [_write(peer, value_bytes, codec, megabytes) for peer in (keeping, apart)]
                for _ in rounds:
                    alone = _cost(keeping, written[0], 1)
                    rounds.record(f"{kind}, {ONE}", TAILRACE, us_per_mb=alone, times_one=1.0)
                    for what, peer, place in ((SHARED, keeping, 0), (APART, apart, 1)):
                        cost = _cost(peer, written[place], READERS)
                        rounds.record(f"{kind}, {what}", TAILRACE, us_per_mb=cost, times_one=cost / alone)
    columns = (Column("us_per_mb", "CPU us per MB"), Column("times_one", "x one reader", digits=2, shows_rounds=True))
    targets = [
        Target(
            test=f"{size}, {SHARED}",
            server=TAILRACE,
            quantity="times_one",
            limit=most,
            unit="x one reader of all",
            is_upper=True,
        )
        for size, most in MOST_TIMES_ONE.items()
    ]
    return rounds.section(
        NAME,
        "Readers that split a partition",
        CONDITIONS,
        columns,
        targets,
        chart=Chart("times_one", "CPU of the broker, x one reader of all, median; points are rounds"),
    )


def _write(peer: Peer, value_bytes: int, codec: Codec, megabytes: int) -> Written:
    topic = f"keys-{value_bytes}-{codec.name.lower()}"
    peer.create_topics({topic: 1})
    peer.wait_for_leaders({topic: 1})
    chunk = chunk_of(value_bytes, codec)
    plain_bytes = 0
    with Wire(peer.address) as wire:
        while plain_bytes < megabytes * 1_000_000:
            for batch in chunk.batches:
                (answer,) = wire.ask(produce_request(topic, 0, bytes(8) + batch[8:]), PRODUCE_VERSION).responses
                assert not answer.partition_responses[0].error_code, answer
            plain_bytes += chunk.plain_bytes
    return Written(topic, plain_bytes)


def _cost(peer: Peer, written: Written, count: int) -> float:
    """CPU microseconds of the broker for a plain megabyte, while so many readers share the partition."""
    shares = [[of_slots(256 // count * number, 256 // count * (number + 1) - 1)] for number in range(count)]
    ranges = [[WireKeyRange(first=first, last=last) for first, last in share] for share in shares]
    readers = [RangeReader(peer.address, written.topic, share if count > 1 else ()) for share in ranges]
    try:
        spent = 0.0
        for _ in range(PASSES):
            for reader in readers:
                reader.rewind()
                reader.fetch()
                reader.rewind()
            began, got = peer.process.cpu_clock(), 0
            while not all(reader.is_done for reader in readers):
                got += sum(reader.fetch() for reader in readers if not reader.is_done)
            spent += peer.process.cpu_clock() - began
            assert got, f"{written.topic} has records"
    finally:
        for reader in readers:
            reader.close()
    return spent / PASSES / written.plain_bytes * 1e12
