"""The notes of a keyed consumer about handlers that run for long, which go with its commits."""

import time
from types import SimpleNamespace
from typing import Any

from tailrace.client.group.running_notes import note_in
from tailrace.client.keyed.handler_work import LONG_MS, HandlerWork, now_ms
from tailrace.client.keyed.keyed_partition import KeyedPartition
from tailrace.client.keyed.lanes import Lanes, LaneWork
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.model.partitions import TopicPartition

ONE, OTHER, QUICK = (TopicPartition("orders", number) for number in range(3))


def running(name: TopicPartition, offset: int, *, for_ms: int) -> LaneWork:
    lanes = Lanes(1, most_records=1, most_bytes=1)
    lanes.open(name)
    lanes.add(name, [KeyedRecord(*name, offset, 0, b"key", b"", ())])
    (work,) = lanes.take(now_ms() - for_ms)
    return work


def test_the_longest_handler_of_each_partition_is_noted_if_it_runs_for_long() -> None:
    settings = KeyedConsumerSettings("127.0.0.1:1", group="g", topics=["orders"])
    work = HandlerWork(settings, on_outcomes=lambda: None, on_end=lambda fault: None)
    queue: Any = SimpleNamespace(
        works=[
            running(ONE, 7, for_ms=60_000),
            running(ONE, 3, for_ms=50_000),
            running(OTHER, 5, for_ms=LONG_MS),
            running(QUICK, 1, for_ms=LONG_MS // 2),
        ]
    )
    work.queue = queue
    notes = {name: note_in(text) for name, text in work.notes("member 1").items()}
    long, barely = notes.pop(ONE), notes.pop(OTHER)
    assert not notes
    assert long is not None
    assert barely is not None
    assert (long.offset, long.member_id, barely.offset) == (7, "member 1", 5)
    age_ms = time.time() * 1000 - long.since_ms
    assert 59_000 < age_ms < 120_000


def test_the_note_goes_with_each_commit_until_the_partition_leaves() -> None:
    partition = KeyedPartition(ONE, 0, 256)
    partition.open(None)
    partition.note = "running"
    made = [partition.commit()]
    partition.is_leaving = True
    made += [partition.commit(), partition.last_commit()]
    assert [None if commit is None else commit.note for commit in made] == ["running", None, ""]
