"""Batches written by foreign libraries, byte for byte as they made them (tests/golden/make_record_batches.py)."""

import runpy
from pathlib import Path

import pytest

from tailrace.protocol.records.batch import HEADER_SIZE, iter_batches, validate_produced
from tailrace.protocol.records.compression import Codec, decompress
from tailrace.protocol.records.record import Record, build_batch, read_records

GOLDEN = Path(__file__).parents[3] / "golden"
MAKER = runpy.run_path(str(GOLDEN / "make_record_batches.py"))
FILES = sorted((GOLDEN / "record_batches").glob("*.bin"))
EXPECTED = [
    Record(offset, timestamp, key, value, tuple(headers))
    for offset, (timestamp, key, value, headers) in enumerate(MAKER["RECORDS"])
]


def test_there_is_a_file_of_every_codec() -> None:
    assert {path.stem.rsplit("-", 1)[1] for path in FILES} == set(MAKER["CODECS"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
class TestGoldenBatch:
    def test_is_taken_from_a_producer(self, path: Path) -> None:
        header = validate_produced(path.read_bytes(), produce_version=9)
        assert header.codec == MAKER["CODECS"][path.stem.rsplit("-", 1)[1]]
        assert (header.base_timestamp, header.max_timestamp) == (EXPECTED[0].timestamp, EXPECTED[-1].timestamp)
        if not path.stem.startswith("librdkafka"):
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 3, 42)
            assert header.is_transactional

    def test_reads_as_the_records_that_were_written(self, path: Path) -> None:
        assert read_records(path.read_bytes(), strict=True) == EXPECTED

    def test_is_rebuilt_to_the_same_bytes_but_for_compression(self, path: Path) -> None:
        golden = path.read_bytes()
        ((_, header),) = iter_batches(golden)
        rebuilt = build_batch(
            read_records(golden),
            leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
        )
        assert rebuilt[HEADER_SIZE:] == decompress(header.codec, golden[HEADER_SIZE:])
        if header.codec == Codec.NONE:
            assert rebuilt == golden
