"""The lines of `make bench`: each measures one thing of all servers and gives one section."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.figures import Section
from benchmarks.lines import frames, latency, partitions, records, requests, start
from benchmarks.rounds import Rounds


class Line(NamedTuple):
    """What is measured, and how; `measure` takes the rounds and the number of partitions that was asked for."""

    help: str
    measure: Callable[[Rounds, int], Section]
    rounds: int = 5
    warm_ups: int = 3
    """A JVM compiles what it runs often, and is slower before: one round is not enough for it."""


LINES = {
    records.NAME: Line("produce and consume with librdkafka, 100 B and 1 KB", records.measure),
    frames.NAME: Line("produce of 1 MB frames and fetch of 1 MiB, beside the raw loopback", frames.measure),
    requests.NAME: Line("1-record produce, 8 connections x 16 in flight", requests.measure),
    latency.NAME: Line("1-record produce, one at a time: percentiles, beside one fdatasync", latency.measure),
    start.NAME: Line("start to the first acknowledged record; idle memory", start.measure, warm_ups=1),
    partitions.NAME: Line(
        "many partitions: create, clean restart, idle memory", partitions.measure, rounds=1, warm_ups=0
    ),
}
