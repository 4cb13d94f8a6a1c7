"""Readers of key ranges go through a log in any order and with any limits: each gets its records, each one once."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.key_ranges import KeyRange, contains, hash_of, of_slots
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches, read_header
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.replication.outcomes import PartitionRead
from tailrace.server.fetch.key_reads import KeyRangeConfig, KeyRangeReads
from tailrace.storage import AppendBatch, Log, ReadLimits
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk

RANGES = [
    (of_slots(0, 127),),
    (of_slots(128, 255),),
    (of_slots(10, 20), of_slots(200, 210)),
    (KeyRange(5, 2**31 + 77),),
]
BATCHES = st.lists(
    st.tuples(st.lists(st.none() | st.binary(max_size=2), min_size=1, max_size=6), st.sampled_from([0, 1, 3, 4])),
    min_size=1,
    max_size=12,
)
READ = st.tuples(st.integers(0, len(RANGES) - 1), st.sampled_from([1, 100, 300, 1 << 20]))


class PartitionOfBatches:
    """A partition with these batches, in segments of a few."""

    leader_epoch = 3

    def __init__(self, batches: list[tuple[list[bytes | None], int]], *, is_indexed: bool) -> None:
        config = TopicConfig(
            segment_bytes=600, index_interval_bytes=100, key_ranges_index="auto" if is_indexed else "none"
        )
        self.log = Log.open("/log", files=SimulatedDisk(), config=config, now_ms=0)
        self.records: list[Record] = []
        for keys, codec in batches:
            offset = self.end
            built = build_batch([Record(0, 1, key, b"v" * 20, ()) for key in keys], base_offset=offset, codec=codec)
            self.log.append([AppendBatch(bytes(built), read_header(built))])
            self.records += read_records(built)

    @property
    def end(self) -> int:
        return self.log.log_end_offset

    def readable_end(self, isolation: int) -> int:
        return self.end

    def read(self, limits: ReadLimits) -> PartitionRead:
        result = self.log.read(limits)
        return PartitionRead(
            b"".join(result.records),
            result.size_bytes,
            next_offset=result.next_offset,
            reaches_end=result.next_offset == self.end,
            high_watermark=self.end,
            last_stable_offset=self.end,
            log_start_offset=0,
        )


@given(
    BATCHES,
    st.lists(READ, max_size=30),
    st.sampled_from([100, 1 << 20]),
    st.sampled_from([0, 1_000, 1 << 20]),
    st.booleans(),
)
def test_each_reader_gets_its_records_once(
    batches: list[tuple[list[bytes | None], int]],
    order: list[tuple[int, int]],
    chunk_bytes: int,
    split_bytes: int,
    is_indexed: bool,
) -> None:
    """Partitions with a key index, or without an index until the first reader of a batch adds it."""
    partition: Any = PartitionOfBatches(batches, is_indexed=is_indexed)
    reads = KeyRangeReads(
        ManualClock(),
        KeyRangeConfig(max_bytes_key_range_hashing=split_bytes, key_range_fetch_max_scan_bytes=200),
        is_known=lambda: True,
        chunk_bytes=chunk_bytes,
    )
    places = [0] * len(RANGES)
    got: list[list[Record]] = [[] for _ in RANGES]
    for number, max_bytes in [*order, *((number, 100) for number in range(len(RANGES)) for _ in range(100))]:
        limits = ReadLimits(places[number], max_bytes)
        result = reads.read(partition, RANGES[number], limits, partition.read, reads.new_scan())
        assert result is not None
        assert result.scanned_to >= places[number]
        view = bytes(result.batches)
        for position, header in iter_batches(view):
            got[number] += read_records(view[position : position + header.size_bytes])
        places[number] = result.scanned_to
        assert reads.splits.kept_bytes <= split_bytes
    for number, ranges in enumerate(RANGES):
        assert places[number] == partition.end
        assert got[number] == [
            record for record in partition.records if contains(ranges, hash_of(record.key, record.offset))
        ]
