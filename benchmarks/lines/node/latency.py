"""Latency of one small request on an idle server, and the disk's part of that latency."""

import os
import tempfile
import time
from contextlib import ExitStack

from benchmarks.contests import FLUSHED, PAGE_CACHE, page_cache_and_flushed
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import TAILRACE, Peer
from benchmarks.results.figures import Chart, Column, Section, Target, percentile
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire, batch, end_offsets, produce_frame

NAME = "latency"
REQUESTS, VALUE_BYTES = 5_000, 100
FDATASYNC = "one fdatasync"
PERCENTILES = {"p50_us": 50.0, "p99_us": 99.0, "p99.9_us": 99.9}
MOST_FDATASYNCS = 3.0

CONDITIONS = (
    f"One connection, one request in flight, one record of {VALUE_BYTES} B, acks=all unless the row says acks=1, "
    f"{REQUESTS:,} requests a round; the percentiles are medians of the rounds' percentiles. {PAGE_CACHE} {FLUSHED} "
    f"{FDATASYNC.capitalize()}: the same bytes are appended to a file in the directory that has the servers' "
    "directories, and only the call of fdatasync is timed. On an idle virtual machine, much of a round trip is the "
    "time to wake up the other core."
)


def measure(rounds: Rounds, _: int) -> Section:
    with ExitStack() as stack:
        contests = page_cache_and_flushed(rounds, stack)
        for number in rounds:
            _fdatasync(rounds)
            for durability, peers in contests.items():
                for peer in rounds.in_turn(peers):
                    _round(rounds, peer, _test(durability), f"latency-{durability}-{number}")
                    if durability == "flushed":  # the cost of a record that can be read when the record is acknowledged
                        _round(rounds, peer, _test(f"acks=1, {durability}"), f"latency-acks1-{number}", acks=1)
    columns = (
        Column("p50_us", "p50 us", beside=(KAFKA, FDATASYNC), shows_rounds=True),
        Column("p99_us", "p99 us"),
        Column("p99.9_us", "p99.9 us"),
    )
    target = Target(
        test=_test("flushed"),
        server=TAILRACE,
        quantity="p50_us",
        limit=MOST_FDATASYNCS,
        beside=FDATASYNC,
        is_upper=True,
    )
    return rounds.section(
        NAME,
        "1-record produce, one at a time",
        CONDITIONS,
        columns,
        [target],
        chart=Chart("p50_us", "p50 in microseconds, median; points are rounds"),
    )


def _test(durability: str) -> str:
    return f"1 x 1, {durability}"


def _round(rounds: Rounds, peer: Peer, test: str, topic: str, *, acks: int = -1) -> None:
    topics = {topic: 1}
    peer.create_topics(topics)
    peer.wait_for_leaders(topics)
    frame = produce_frame(topic, 0, batch(1, VALUE_BYTES), acks=acks)
    times: list[float] = []
    with Wire(peer.address) as wire:
        for _ in range(REQUESTS):
            began = time.perf_counter_ns()
            wire.socket.sendall(frame)
            wire.receive()
            times.append((time.perf_counter_ns() - began) / 1000)
        assert end_offsets(wire, topic, 1) == [REQUESTS], "every record must have been appended"
    _record(rounds, test, peer.name, times)
    peer.delete_topics(topics)


def _fdatasync(rounds: Rounds) -> None:
    records = batch(1, VALUE_BYTES)
    times: list[float] = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(REQUESTS):
            file.write(records)
            began = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter_ns() - began) / 1000)
    _record(rounds, _test("flushed"), FDATASYNC, times)


def _record(rounds: Rounds, test: str, server: str, times: list[float]) -> None:
    rounds.record(test, server, **{name: percentile(times, percent) for name, percent in PERCENTILES.items()})
