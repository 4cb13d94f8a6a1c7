"""The time from the start of the process to the first acknowledged record, and the memory of an idle server."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks.downloads.kafka_jars import absent
from benchmarks.peers.first_record import first_record
from benchmarks.peers.kafka import KAFKA, apache_kafka
from benchmarks.peers.peer import TAILRACE, Peer, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds

NAME = "start"
TEST = "one node"
IDLE_S = 3.0
LONGEST_START_S, MOST_IDLE_MB = 0.5, 60.0

CONDITIONS = (
    "From the start of the process on an empty directory (Kafka's directory is formatted before, outside of the time) "
    f"to the answer to one record with acks=all in a topic that was just created. Memory: resident (VmRSS), {IDLE_S:g} "
    "s after that record; 1 MB is 1,000,000 B. The files of both programs are in the page cache. Both have their "
    "default settings."
)


def measure(rounds: Rounds, _: int) -> Section:
    servers: dict[str, Callable[[], AbstractContextManager[Peer]]] = {TAILRACE: tailrace}
    if why := absent():
        rounds.miss(KAFKA, why)
    else:
        servers[KAFKA] = apache_kafka
    for _ in rounds:
        for name in rounds.in_turn(list(servers)):
            _round(rounds, servers[name]())
    columns = (
        Column("start_s", "start s", digits=2, beside=(KAFKA,), shows_rounds=True),
        Column("idle_MB", "idle MB", digits=0, beside=(KAFKA,)),
    )
    targets = [
        Target(
            test=TEST,
            server=TAILRACE,
            quantity="start_s",
            limit=LONGEST_START_S,
            unit="s to the first acknowledged record",
            is_upper=True,
        ),
        Target(test=TEST, server=TAILRACE, quantity="idle_MB", limit=MOST_IDLE_MB, unit="MB", is_upper=True),
    ]
    return rounds.section(
        NAME,
        "Start and idle memory",
        CONDITIONS,
        columns,
        targets,
        chart=Chart("start_s", "seconds to the first acknowledged record, median; points are rounds"),
    )


def _round(rounds: Rounds, server: AbstractContextManager[Peer]) -> None:
    with server as peer:
        began = time.perf_counter()
        peer.process.start()
        try:
            first_record(peer)
            seconds = time.perf_counter() - began
            time.sleep(IDLE_S)
            rounds.record(TEST, peer.name, start_s=seconds, idle_MB=peer.process.resident_megabytes())
        finally:
            peer.process.kill()
