"""The walk over the records of produced batches (decision 0068): a leader's append with the walk, and without."""

import tempfile
import time
from contextlib import nullcontext

from benchmarks.lines.key_ranges.key_filter import chunk_of
from benchmarks.results.figures import Chart, Column, Section
from benchmarks.results.rounds import Rounds
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.kernels import KERNEL
from testkit.nodes.data_path import DataPath, unlooking

NAME = "record-walk"
DEFAULT = 64
"""The number of megabytes of plain records that a measurement appends."""
SIZES = {"100 B": 100, "1 KB": 1_000}
CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
WITH, WITHOUT = "with the walk", "without"

CONDITIONS = (
    "One thread, no socket. A leader appends batches of 64 KiB of plain records, one batch a turn, acks=1, page-cache "
    "durability, to a log on the disk; each record has a key of its own. The walk compares the largest time, the "
    "count and the offsets of the records with the header, and finds records that no reader could parse; for the walk "
    "a compressed batch is unpacked. Without: only the header and the checksum are checked, as before decision 0068. "
    "CPU time of the thread for each MB of plain records, the write to the file included."
)


def measure(rounds: Rounds, megabytes: int) -> Section:
    for size, value_bytes in SIZES.items():
        for codec in CODECS:
            chunk = chunk_of(value_bytes, codec)
            batch, plain_bytes = chunk.batches[0], chunk.plain_bytes // len(chunk.batches)
            for _ in rounds:
                for server in rounds.in_turn((WITH, WITHOUT)):
                    cost = _cost(batch, plain_bytes, megabytes, walks=server == WITH)
                    rounds.record(f"{size}, {codec.name.lower()}", server, us_per_MB=cost)
    return rounds.section(
        NAME,
        f"The walk over produced records ({KERNEL} kernel)",
        CONDITIONS,
        (Column("us_per_MB", "CPU us/MB", beside=(WITHOUT,), shows_rounds=True),),
        chart=Chart("us_per_MB", "CPU us for each MB of plain records, median; points are rounds"),
    )


def _cost(batch: bytes, plain_bytes: int, megabytes: int, *, walks: bool) -> float:
    """The CPU time for each MB of plain records, in us."""
    times = max(megabytes * 1_000_000 // plain_bytes, 1)
    with tempfile.TemporaryDirectory(prefix="record-walk-") as directory:
        node = DataPath(f"{directory}/logs", settings={"log.durability": "page-cache"})
        partition = node.create()
        with nullcontext() if walks else unlooking(partition):
            began = time.thread_time()
            for _ in range(times):
                partition.append_as_leader(
                    memoryview(bytearray(batch)),
                    acks=1,
                    produce_version=9,
                    now_ms=node.clock.now_ms(),
                    on_done=lambda _: None,
                )
                node.end_turn()
            spent = time.thread_time() - began
        partition.close()
    return spent * 1e6 / (times * plain_bytes / 1e6)
