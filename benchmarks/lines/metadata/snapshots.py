"""A snapshot of the metadata: the time to write it and to load it, and the longest time in which nothing else runs
(KIP-630)."""

import gc
import time
from pathlib import Path

from benchmarks.lines.metadata.timed_replica import STATE_ID, image_of, opened_log, quiet_collector, write_snapshot
from benchmarks.peers.peer import directory
from benchmarks.results.figures import Column, Section, Target
from benchmarks.results.rounds import Rounds
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.snapshot_image import SnapshotLoader
from tailrace.server.quorum.log import QuorumLog

NAME = "snapshots"
DEFAULT_MEGABYTES = 100
BROKERS = 10
PER_TOPIC = 50
RECORD_BYTES = 129
"""The approximate size of the record of a partition with three replicas, record framing included."""
WRITTEN, LOADED = "written", "loaded"
LONGEST_SLICE_MS = 20.0
SLOWEST_LOAD = 10.0

CONDITIONS = (
    f"{BROKERS} brokers, topics of {PER_TOPIC} partitions, replication factor 3. Written: a snapshot is written from "
    "an image in slices of 200 records, between two turns of a host, then checked to the last byte, synced and "
    "renamed, as a node's disk thread does. Loaded: the snapshot is loaded batch by batch into an image, which must "
    "equal the first image, with the garbage collector off, as in a node that loads. CPU time of the process; 1 MB is "
    "1,000,000 B of the file."
)


def measure(rounds: Rounds, megabytes: int) -> Section:
    image = image_of(int(megabytes * 1e6 / RECORD_BYTES / PER_TOPIC), PER_TOPIC, BROKERS)
    quiet_collector()
    test = f"a snapshot of {megabytes:,} MB"
    for _ in rounds:
        with directory() as home:
            _round(rounds, test, home, image)
    columns = (
        Column("MB_per_CPU_s", "MB per CPU s", digits=1, shows_rounds=True),
        Column("longest_slice_ms", "longest slice, CPU ms", digits=1),
        Column("seconds", "s", digits=1),
    )
    stalls = [
        Target(test=test, server=what, quantity="longest_slice_ms", limit=LONGEST_SLICE_MS, unit="ms", is_upper=True)
        for what in (WRITTEN, LOADED)
    ]
    speed = Target(test=test, server=LOADED, quantity="MB_per_CPU_s", limit=SLOWEST_LOAD, unit="MB per CPU s")
    return rounds.section(
        NAME,
        "Snapshots of the metadata",
        CONDITIONS,
        columns,
        [*stalls, speed],
    )


def _round(rounds: Rounds, test: str, home: Path, image: ClusterImage) -> None:
    log = opened_log(home)
    began, cpu = time.perf_counter(), time.process_time()
    slices = write_snapshot(log, image)
    written = time.perf_counter() - began
    cpu = time.process_time() - cpu
    megabytes = log.snapshots[0].size_bytes / 1e6
    rounds.record(test, WRITTEN, MB_per_CPU_s=megabytes / cpu, longest_slice_ms=max(slices) * 1000, seconds=written)
    gc.disable()
    try:
        began, cpu = time.perf_counter(), time.process_time()
        loaded, slices = _loaded(log)
        cpu = time.process_time() - cpu
        rounds.record(
            test,
            LOADED,
            MB_per_CPU_s=megabytes / cpu,
            longest_slice_ms=max(slices) * 1000,
            seconds=time.perf_counter() - began,
        )
    finally:
        gc.enable()
    assert loaded == image, "what was loaded is what was written"
    log.close()


def _loaded(log: QuorumLog) -> tuple[ClusterImage, list[float]]:
    reader = log.open_snapshot(STATE_ID)
    loader = SnapshotLoader()
    slices = []
    before = time.process_time()
    for batch in reader.batches():
        loader.load(batch)
        now = time.process_time()
        slices.append(now - before)
        before = now
    image = loader.image()
    slices.append(time.process_time() - before)
    reader.close()
    return image, slices
