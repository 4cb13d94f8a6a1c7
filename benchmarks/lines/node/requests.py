"""Rate of small requests: one record per request, many in flight."""

import time
from contextlib import ExitStack

from benchmarks.contests import FLUSHED, PAGE_CACHE, page_cache_and_flushed
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import TAILRACE, Peer
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire, batch, end_offsets, flood, produce_frame

NAME = "requests"
CONNECTIONS, IN_FLIGHT, VALUE_BYTES = 8, 16, 100
SECONDS = 2.0
PER_CORE = {"page-cache": 50_000, "flushed": 40_000}

CONDITIONS = (
    f"{CONNECTIONS} connections with {IN_FLIGHT} requests in flight each, a partition for each connection, one record "
    f"of {VALUE_BYTES} B a request, acks=all, {SECONDS:g} s a round. The client makes its requests before, and counts "
    "the answers without decoding them. Per core: requests divided by the CPU seconds of the server, all threads. "
    f"{PAGE_CACHE} {FLUSHED}"
)


def measure(rounds: Rounds, _: int) -> Section:
    with ExitStack() as stack:
        contests = page_cache_and_flushed(rounds, stack)
        for number in rounds:
            for durability, peers in contests.items():
                for peer in rounds.in_turn(peers):
                    _round(rounds, peer, durability, f"requests-{durability}-{number}")
    columns = (
        Column("requests_per_s", "requests/s", beside=(KAFKA,)),
        Column("requests_per_s_and_core", "requests/s per core", beside=(KAFKA,), shows_rounds=True),
    )
    targets = [
        Target(test=_test(durability), server=TAILRACE, quantity="requests_per_s_and_core", limit=limit, unit="/s")
        for durability, limit in PER_CORE.items()
    ]
    return rounds.section(
        NAME,
        f"1-record produce, {CONNECTIONS} connections x {IN_FLIGHT} in flight",
        CONDITIONS,
        columns,
        targets,
        chart=Chart("requests_per_s_and_core", "requests/s per core of the server, median; points are rounds"),
    )


def _test(durability: str) -> str:
    return f"1-record produce, {durability}"


def _round(rounds: Rounds, peer: Peer, durability: str, topic: str) -> None:
    topics = {topic: CONNECTIONS}
    peer.create_topics(topics)
    peer.wait_for_leaders(topics)
    records = batch(1, VALUE_BYTES)
    frames = [produce_frame(topic, partition, records) for partition in range(CONNECTIONS)]
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(peer.address)) for _ in range(CONNECTIONS)]
        cpu, began = peer.process.cpu_seconds(), time.perf_counter()
        answers = flood(wires, frames, in_flight=IN_FLIGHT, seconds=SECONDS)
        seconds, used = time.perf_counter() - began, peer.process.cpu_seconds() - cpu
        assert sum(end_offsets(wires[0], topic, CONNECTIONS)) == answers, "every record must have been appended"
    rounds.record(
        _test(durability), peer.name, requests_per_s=answers / seconds, requests_per_s_and_core=answers / used
    )
    peer.delete_topics(topics)
