"""The kernel's filter of stored batches by ranges of key hashes (KIP-X), alone: no broker, no disk."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.peers.peer import TAILRACE
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from tailrace.model.key_ranges import KeyRange, of_slots
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import HEADER_SIZE, read_header
from tailrace.protocol.records.compression import Codec, decompress
from tailrace.protocol.records.kernels import KERNEL, split_by_key
from tailrace.protocol.records.record import Record, build_batch

NAME = "key-filter"
DEFAULT = 64
"""The number of megabytes of plain records that a measurement filters."""
CHUNK_BYTES = 1 << 20
BATCH_BYTES = 64 << 10
READERS = 8
SIZES = {"100 B": 100, "1 KB": 1_000}
LEAST_GB_S = {"1 KB": 4.0, "100 B": 2.5}

CONDITIONS = (
    f"One thread. Chunks of {CHUNK_BYTES >> 20} MiB of batches of {BATCH_BYTES >> 10} KiB, each record with a key of "
    "its own; one chunk in a call. One range: an eighth of the hashes. Split: eight readers with an eighth each, in "
    "one call. Eight filters: a call for each of the eight readers. The time includes the checksums of the new "
    "batches, and for compressed batches the decompression, which a split does once. GB/s of plain records that the "
    "filter has looked through; CPU time of the thread."
)


class Chunk(NamedTuple):
    """Batches that are split in one call."""

    batches: Sequence[bytes]
    plain_bytes: int
    """The batches without compression."""


def measure(rounds: Rounds, megabytes: int) -> Section:
    readers = [[of_slots(32 * number, 32 * number + 31)] for number in range(READERS)]
    for size, value_bytes in SIZES.items():
        for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
            chunk = chunk_of(value_bytes, codec)
            times = max(megabytes * 1_000_000 // chunk.plain_bytes, 1)
            kind = size if codec == Codec.NONE else f"{size}, {codec.name.lower()}"
            for _ in rounds:
                rounds.record(f"{kind}, one range", TAILRACE, gb_s=_speed(chunk, [readers[:1]], times))
                rounds.record(f"{kind}, split for eight", TAILRACE, gb_s=_speed(chunk, [readers], times))
                each = [[reader] for reader in readers]
                rounds.record(f"{kind}, eight filters", TAILRACE, gb_s=_speed(chunk, each, times))
    targets = [
        Target(test=f"{size}, one range", server=TAILRACE, quantity="gb_s", limit=least, unit="GB/s")
        for size, least in LEAST_GB_S.items()
    ]
    return rounds.section(
        NAME,
        f"The filter by key ranges ({KERNEL} kernel)",
        CONDITIONS,
        (Column("gb_s", "GB/s", digits=2, shows_rounds=True),),
        targets,
        chart=Chart("gb_s", "GB/s of plain records, median; points are rounds"),
    )


def chunk_of(value_bytes: int, codec: Codec) -> Chunk:
    """A chunk of records with these values; every record has a key of its own."""
    batches: list[bytes] = []
    stored_bytes = plain_bytes = offset = 0
    per_batch = BATCH_BYTES // value_bytes
    while stored_bytes < CHUNK_BYTES:
        records = [
            Record(number, 0, b"key-%012d" % (offset + number), _value(offset + number, value_bytes), ())
            for number in range(per_batch)
        ]
        batch = bytes(build_batch(records, codec=codec, base_offset=offset))
        batches.append(batch)
        offset += per_batch
        plain_bytes += len(build_batch(records))
        stored_bytes += len(batch)
    return Chunk(batches, plain_bytes)


def _value(number: int, size: int) -> bytes:
    """A value like JSON: compressed, it takes a third of its size."""
    text = b'{"order":%d,"amount":%d,"currency":"EUR","status":"shipped"}' % (number, number * 7919 % 100_000)
    return (text * (size // len(text) + 1))[:size]


def _speed(chunk: Chunk, calls: Sequence[Sequence[Sequence[KeyRange]]], times: int) -> float:
    """GB/s when the chunk is split by these calls so many times."""
    began = time.thread_time()
    for _ in range(times):
        for readers in calls:
            split_by_key([(batch, _plain(batch)) for batch in chunk.batches], readers)
    return chunk.plain_bytes * times / (time.thread_time() - began) / 1e9


def _plain(batch: bytes) -> Buffer | None:
    codec = read_header(batch, 0).codec
    return decompress(codec, memoryview(batch)[HEADER_SIZE:]) if codec else None
