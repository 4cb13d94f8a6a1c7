"""Transactions of a whole client, librdkafka, in a process of its own: small transactions, and large transactions."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from benchmarks.contests import DURABILITIES, PAGE_CACHE
from benchmarks.peers.kafka import KAFKA, apache_kafka
from benchmarks.peers.peer import READY_TIMEOUT_S, TAILRACE, NotReady, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire, end_offsets

NAME = "transactional-produce"
RECORD_BYTES: Final = 100
PARTITIONS: Final = 4
TRANSACTIONS: Final = {100: 200, 10_000: 20}
"""Records of a transaction -> transactions in a round."""
_FLUSHED_KAFKA: Final = {"log.flush.interval.messages": "1"}
_LOAD_TIMEOUT_S: Final = 600

CONDITIONS = (
    f"Client: librdkafka (confluent-kafka) in its own process, one producer with a transactional id, values of "
    f"{RECORD_BYTES} B, linger 5 ms, no compression. "
    + " and ".join(f"{count} transactions of {records:,} records" for records, count in TRANSACTIONS.items())
    + f" a round, each after the commit of the transaction before, over {PARTITIONS} partitions of a new topic. A "
    f"first transaction is left out of the time, and is part of the CPU. One node for each server. {PAGE_CACHE} "
    "Flushed: no record and no state of a transaction is acknowledged before it is synced (Kafka: "
    "`log.flush.interval.messages=1`; the default here); the flushed tests have no target. CPU is that of the server's "
    "process, all threads."
)


def measure(rounds: Rounds, _: int) -> Section:
    for durability in DURABILITIES:
        settings = {} if durability == DURABILITIES[0] else _FLUSHED_KAFKA
        with ExitStack() as stack:
            peers = [stack.enter_context(running(tailrace(durability)))]
            peers += rounds.enter(stack, KAFKA, running(apache_kafka(settings)))
            for records in TRANSACTIONS:
                for number in rounds:
                    for peer in rounds.in_turn(peers):
                        _round(rounds, peer, f"bench-{records}-{number}", durability, records)
    columns = (
        Column("records_per_s", "records/s", beside=(KAFKA,), shows_rounds=True),
        Column("ms_per_transaction", "ms/transaction", digits=2),
        Column("CPU_us", "CPU us/transaction", beside=(KAFKA,)),
    )
    targets = [
        Target(test=_test(records, DURABILITIES[0]), server=TAILRACE, quantity="records_per_s", limit=1.0, beside=KAFKA)
        for records in TRANSACTIONS
    ]
    return rounds.section(
        NAME,
        "Transactions with librdkafka",
        CONDITIONS,
        columns,
        targets,
        chart=Chart("records_per_s", "records/s, median; points are rounds"),
    )


def _test(records: int, durability: str) -> str:
    return f"{records:,} records a transaction, {durability}"


def _round(rounds: Rounds, peer: Peer, topic: str, durability: str, records: int) -> None:
    topics = {topic: PARTITIONS}
    peer.create_topics(topics)
    peer.wait_for_leaders(topics)
    # The previous peer's dirty pages are written back before this one begins, which would pay for them otherwise.
    os.sync()
    transactions = TRANSACTIONS[records]
    cpu = peer.process.cpu_seconds()
    seconds = _load(peer, topic, records, transactions)
    _check(peer, topics, records * (transactions + 1) + PARTITIONS * (transactions + 1))
    rounds.record(
        _test(records, durability),
        peer.name,
        records_per_s=records * transactions / seconds,
        ms_per_transaction=seconds * 1000 / transactions,
        CPU_us=(peer.process.cpu_seconds() - cpu) * 1e6 / (transactions + 1),
    )
    peer.delete_topics(topics)


def _load(peer: Peer, topic: str, records: int, transactions: int) -> float:
    """The seconds that the transactions take."""
    numbers = (RECORD_BYTES, records, transactions, PARTITIONS)
    command = [sys.executable, "-m", "benchmarks.loads.transactions", peer.address, topic, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LOAD_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"transactions at {peer.name} failed: {done.stderr.strip()}")
    return float(done.stdout)


def _check(peer: Peer, topics: Mapping[str, int], wanted: int) -> None:
    """Return when the topic has all records, and a marker of each transaction in each partition: the markers come later
    than the answers."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    with Wire(peer.address) as wire:
        for topic, partitions in topics.items():
            while (found := sum(end_offsets(wire, topic, partitions))) != wanted:
                if time.monotonic() > deadline:
                    raise NotReady(f"{peer.name} has {found} records and markers, not {wanted}")
                time.sleep(0.01)
