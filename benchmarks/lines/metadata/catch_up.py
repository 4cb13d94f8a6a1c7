"""A new node: from a snapshot, and from the log that the snapshot stands for (KIP-630, "Loading State")."""

import asyncio
import time
from itertools import cycle
from pathlib import Path

from benchmarks.lines.metadata.snapshots import BROKERS, PER_TOPIC, RECORD_BYTES
from benchmarks.lines.metadata.timed_replica import Replica, image_of, opened_log, quiet_collector, write_snapshot
from benchmarks.peers.peer import directory
from benchmarks.results.figures import Column, Section, Target
from benchmarks.results.rounds import Rounds
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.kinds import encode_record
from tailrace.metadata.records.topics import PartitionChangeRecord
from tailrace.metadata.snapshot_image import snapshot_values
from tailrace.model.ids import TopicId
from tailrace.raft.effects import AppendAsLeader
from tailrace.server.quorum.log import QuorumLog

NAME = "catch-up"
DEFAULT_MEGABYTES = 10
LOG_TIMES_STATE = 20
BY_LOG, BY_SNAPSHOT = "the log replayed", "the snapshot loaded"
PER_BATCH = 1_000
LEAST_RATIO = 10.0

CONDITIONS = (
    f"A state ({BROKERS} brokers, topics of {PER_TOPIC} partitions, replication factor 3), and a log {LOG_TIMES_STATE} "
    "times as large that leads to this state: the records of the state, then changes of leaders and in-sync replicas, "
    "over and over. One replica starts with only the log, and another with only a snapshot; both end with equal "
    "images. Log and snapshot are on the disk already: over a network the log would also be as many times larger. CPU "
    "time of the process, and seconds until everything is applied."
)


def measure(rounds: Rounds, megabytes: int) -> Section:
    test = f"a state of {megabytes:,} MB"
    for _ in rounds:
        with directory() as with_log, directory() as with_snapshot:
            _write_log(with_log, image_of(int(megabytes * 1e6 / RECORD_BYTES / PER_TOPIC), PER_TOPIC, BROKERS))
            quiet_collector()
            by_log = asyncio.run(_start(rounds, test, BY_LOG, with_log))
            log = opened_log(with_snapshot)
            write_snapshot(log, by_log)
            log.close()
            by_snapshot = asyncio.run(_start(rounds, test, BY_SNAPSHOT, with_snapshot))
            assert by_snapshot == by_log, "both lead to the same image"
    columns = (
        Column("CPU_s", "CPU s", digits=2, beside=(BY_SNAPSHOT,)),
        Column("seconds", "s", digits=2, beside=(BY_SNAPSHOT,)),
        Column("MB", "MB read", digits=1, beside=(BY_SNAPSHOT,)),
        Column("longest_turn_ms", "longest turn, CPU ms", digits=1),
    )
    target = Target(test=test, server=BY_LOG, quantity="CPU_s", limit=LEAST_RATIO, beside=BY_SNAPSHOT)
    return rounds.section(
        NAME,
        "A new node catches up",
        CONDITIONS,
        columns,
        [target],
    )


def _write_log(home: Path, image: ClusterImage) -> None:
    log = opened_log(home)
    size = _append_all(log, list(snapshot_values(image)))
    changes = [values for topic in image.topics.values() for values in _changes(topic.topic_id, len(topic.partitions))]
    batches = cycle([tuple(changes[start : start + PER_BATCH]) for start in range(0, len(changes), PER_BATCH)])
    written = size
    while written < LOG_TIMES_STATE * size:
        values = next(batches)
        _append(log, values)
        written += _size_of(values)
    log.close()


def _changes(topic_id: TopicId, partitions: int) -> list[bytes]:
    """Changes in which each partition loses a replica in sync and gets it back; another replica leads meanwhile."""
    return [
        encode_record(PartitionChangeRecord(partition_id=number, topic_id=topic_id, isr=in_sync, leader=in_sync[0]))
        for number in range(partitions)
        for in_sync in ((1, 2), (0, 1, 2))
    ]


def _append_all(log: QuorumLog, values: list[bytes]) -> int:
    for start in range(0, len(values), PER_BATCH):
        _append(log, tuple(values[start : start + PER_BATCH]))
    return _size_of(values)


def _append(log: QuorumLog, values: tuple[bytes, ...]) -> None:
    log.append_as_leader(AppendAsLeader(log.end_offset, 1, values), now_ms=0)


def _size_of(values: list[bytes] | tuple[bytes, ...]) -> int:
    return sum(map(len, values))


def _megabytes(home: Path) -> float:
    return sum(path.stat().st_size for path in home.rglob("*") if path.suffix in (".log", ".checkpoint")) / 1e6


async def _start(rounds: Rounds, test: str, what: str, home: Path) -> ClusterImage:
    megabytes = _megabytes(home)
    began, cpu = time.perf_counter(), time.process_time()
    async with Replica(home) as replica:
        rounds.record(
            test,
            what,
            CPU_s=time.process_time() - cpu,
            seconds=time.perf_counter() - began,
            MB=megabytes,
            longest_turn_ms=max(replica.turns.seconds) * 1000,
        )
        return replica.controller.image
