"""The programs with a session measure what they say: batches that end, and work on each row."""

import time

import pyarrow as pa
import pytest

from benchmarks.spark.reader import busy
from benchmarks.spark.streams import Ended, ended_s, latencies, total


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([Ended(1, 4), Ended(10.5, 1), Ended(11.75, 1), Ended(12.25, 1)], [0.5, 0.75, 0.25]),
        ([Ended(1, 1), Ended(2, 3), Ended(11.5, 2), Ended(13, 1)], [1.5, 0.5, 1.0]),
        ([Ended(12.5, 7)], [2.5, 1.5, 0.5]),
        ([Ended(1, 4), Ended(11, 2)], [1.0, 0.0]),
        ([], []),
    ],
    ids=["one each", "two at once", "with those before", "one is missing", "no batch"],
)
def test_a_record_has_arrived_when_the_batch_with_it_has_ended(batches: list[Ended], expected: list[float]) -> None:
    assert latencies([10, 11, 12], batches, before=4) == expected


def test_a_batch_ends_when_its_trigger_has_been_executed() -> None:
    progress = {"timestamp": "1970-01-01T00:00:10.500Z", "durationMs": {"triggerExecution": 250, "addBatch": 90}}
    assert ended_s(progress) == 10.75


def test_the_sums_of_batches_are_added_and_a_sum_without_rows_is_nothing() -> None:
    assert total([{"count": 2, "values": 7}, {"count": 0, "values": None}, {"count": 1, "values": 3}]) == {
        "count": 3,
        "values": 10,
    }


def test_work_on_rows_takes_the_time_of_its_thread_and_counts_what_it_has_seen() -> None:
    batches = [
        pa.RecordBatch.from_pydict({"key": [b"k"] * count, "value": [b"abc"] * count}) for count in (2_000, 1_000)
    ]
    began = time.thread_time()
    found = list(busy(batches, 20))
    assert time.thread_time() - began >= 0.06
    assert pa.Table.from_batches(found).to_pydict() == {
        "count": [2_000, 1_000],
        "keys": [2_000, 1_000],
        "values": [6_000, 3_000],
    }
