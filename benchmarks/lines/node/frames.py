"""Large frames on a bare socket, compared with the throughput of the loopback."""

import time
from contextlib import ExitStack
from itertools import cycle, islice

from benchmarks.peers import loopback
from benchmarks.peers.kafka import KAFKA, apache_kafka
from benchmarks.peers.loopback import LOOPBACK
from benchmarks.peers.peer import TAILRACE, Absent, Peer, running, tailrace, touch_pages
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire, batch, end_offsets, fetch_frame, produce_frame, stream

NAME = "frames"
RECORDS, RECORD_BYTES = 990, 1_000
"""A batch of almost 1,000,000 bytes."""
MAX_BYTES = 1 << 20
PRODUCED, FETCHED = 600, 2_000
IN_FLIGHT = 4
RAW_SECONDS = 1
PRODUCE, FETCH = "produce of 1 MB frames", "fetch of 1 MiB"

CONDITIONS = (
    f"One connection, {IN_FLIGHT} requests in flight. The client makes its requests before, and does not decode the "
    f"answers. {PRODUCED} batches of {RECORDS} records of {RECORD_BYTES:,} B are written (page-cache durability, "
    f"acks=all, pages touched just before) and fetched {FETCHED:,} times from the page cache, at most 1 MiB each time. "
    "iperf3: one TCP stream, which writes no file. MB/s counts the frames' bytes."
)


def measure(rounds: Rounds, _: int) -> Section:
    with ExitStack() as stack:
        ours = stack.enter_context(running(tailrace("page-cache")))
        peers = [ours, *rounds.enter(stack, KAFKA, running(apache_kafka()))]
        for number in rounds:
            _raw(rounds)
            for peer in rounds.in_turn(peers):
                _round(rounds, peer, f"frames-{number}", batch(RECORDS, RECORD_BYTES))
    columns = (
        Column("MB_per_s", "MB/s", beside=(LOOPBACK, KAFKA), shows_rounds=True),
        Column("CPU_us_per_MB", "CPU us/MB", beside=(KAFKA,)),
    )
    targets = [
        Target(test=test, server=TAILRACE, quantity="MB_per_s", limit=0.8, beside=LOOPBACK) for test in (PRODUCE, FETCH)
    ]
    return rounds.section(
        NAME,
        "Large frames beside the raw loopback",
        CONDITIONS,
        columns,
        targets,
        chart=Chart("MB_per_s", "MB/s, median; points are rounds"),
    )


def _raw(rounds: Rounds) -> None:
    try:
        rate, cpu = loopback.measure(RAW_SECONDS)
    except Absent as why:
        rounds.miss(LOOPBACK, str(why))
        return
    for test in (PRODUCE, FETCH):
        rounds.record(test, LOOPBACK, MB_per_s=rate, CPU_us_per_MB=cpu)


def _round(rounds: Rounds, peer: Peer, topic: str, records: bytes) -> None:
    topics = {topic: 1}
    peer.create_topics(topics)
    peer.wait_for_leaders(topics)
    touch_pages(PRODUCED + 100)
    frame = produce_frame(topic, 0, records)
    fetches = [fetch_frame(topic, 0, index * RECORDS, MAX_BYTES) for index in range(PRODUCED)]
    with Wire(peer.address) as wire:
        _timed(rounds, peer, PRODUCE, wire, [frame] * PRODUCED)
        assert end_offsets(wire, topic, 1) == [PRODUCED * RECORDS], "every batch must have been appended"
        answered = _timed(rounds, peer, FETCH, wire, list(islice(cycle(fetches), FETCHED)))
        assert answered >= FETCHED * len(records), "every fetch must have brought a whole batch"
    peer.delete_topics(topics)


def _timed(rounds: Rounds, peer: Peer, test: str, wire: Wire, frames: list[bytes]) -> int:
    cpu, began = peer.process.cpu_seconds(), time.perf_counter()
    received = stream(wire, frames, in_flight=IN_FLIGHT)
    seconds = time.perf_counter() - began
    megabytes = max(received, sum(map(len, frames))) / 1e6
    used = peer.process.cpu_seconds() - cpu
    rounds.record(test, peer.name, MB_per_s=megabytes / seconds, CPU_us_per_MB=used * 1e6 / megabytes)
    return received
