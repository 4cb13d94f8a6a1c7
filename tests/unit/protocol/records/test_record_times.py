"""The times of a stored batch's records, without an object for each record."""

from typing import Any

import pytest

from tailrace.protocol.records import record_times as module
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.records.record_times import record_times

TIMES = (7, -1, 5, 9, 9, 2**62, 3)
BATCHES: dict[str, dict[str, Any]] = {
    "of a producer": {},
    "with the broker's clock": {"log_append_time": 8},
    "of a transaction": {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True},
    "of control records": {"is_control": True},
}


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", BATCHES)
def test_times_are_those_that_a_reader_of_records_sees(kind: str, codec: Codec) -> None:
    records = [Record(0, time, b"k", b"v" * 50) for time in TIMES]
    batch = bytes(build_batch(records, base_offset=40, codec=codec, **BATCHES[kind]))
    for from_offset in range(38, 49):
        seen = [record for record in read_records(batch) if record.offset >= from_offset]
        times = record_times(batch, read_header(batch), from_offset=from_offset)
        assert list(zip(times.offsets, times.timestamps, strict=True)) == [
            (record.offset, record.timestamp) for record in seen
        ]
        assert times.largest == max((record.timestamp for record in seen), default=-1)
        for timestamp in range(10):
            found = next(((record.timestamp, record.offset) for record in seen if record.timestamp >= timestamp), None)
            assert times.first_at_least(timestamp) == found


def test_a_batch_of_very_many_records_is_searched_without_an_object_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = bytes(build_batch([Record(0, number // 1000, None, None) for number in range(10_000)]))
    monkeypatch.delattr(module, "read_records")
    times = record_times(batch, read_header(batch), from_offset=2)
    assert times.first_at_least(0) == (0, 2)
    assert times.first_at_least(9) == (9, 9_000)
    assert times.first_at_least(10) is None
