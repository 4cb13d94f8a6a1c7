"""The reads by which the metadata log is kept short: with snapshots, and with log compaction (KIP-630, "Loading
State")."""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.lines.metadata.snapshots import BROKERS, PER_TOPIC, RECORD_BYTES
from benchmarks.lines.metadata.timed_replica import image_of, opened_log, write_snapshot
from benchmarks.peers.peer import directory
from benchmarks.results.figures import Column, Section
from benchmarks.results.rounds import Rounds
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.kinds import encode_record
from tailrace.metadata.records.topics import PartitionChangeRecord, partition_record
from tailrace.model.ids import TopicId
from tailrace.model.partitions import PartitionState
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import BatchBuilder
from tailrace.raft.snapshots import MIB, SnapshotTrigger
from tailrace.storage import AppendBatch, Log, OsFiles
from tailrace.storage.file_system import File

NAME = "compaction"
DEFAULT_MEGABYTES = 20
PER_BATCH = 100
SNAPSHOT, COMPACTION = "snapshots", "compaction"
SEGMENT_BYTES = 256 * 1024
"""The size of a segment. It is small, so that the active segment, which is never compacted, has little weight."""
TEXT_STATE_MB = 100
"""The size of the state in the example of KIP-630; its triggers are scaled with the state."""

CONDITIONS = (
    f"A state of so many MB ({BROKERS} brokers, topics of {PER_TOPIC} partitions, replication factor 3), and "
    f"partitions drawn at random whose leader and in-sync replicas change, {PER_BATCH} a batch. Compaction: a log with "
    "the partition as key and its whole record as value, cleaned by the product's cleaner when the default "
    "min.cleanable.dirty.ratio (0.5) asks for it; its reads are those of the state machine (each byte once), of the "
    "map of keys and of the copy. Snapshots: changes as in the metadata log, and a snapshot by the rule of KIP-630 "
    f"(half of its records changed, and 20 MiB for a state of {TEXT_STATE_MB} MB, less for a smaller state in "
    "proportion); its reads are those of the state machine, and the check of the snapshot before it gets its name. "
    "Bytes of files."
)


B = TypeVar("B", bound=Buffer)


class _Reads(NamedTuple):
    """The reads of one cycle, from one clean state to the next."""

    changes: int
    log_bytes: int
    keeping_bytes: int
    """The bytes that are read in addition to the one read of the state machine."""


def measure(rounds: Rounds, megabytes: int) -> Section:
    for _ in rounds:
        for size in sorted({max(megabytes // 20, 1), max(megabytes // 4, 1), megabytes}):
            image = image_of(int(size * 1e6 / RECORD_BYTES / PER_TOPIC), PER_TOPIC, BROKERS)
            for name, keep in ((SNAPSHOT, _with_snapshots), (COMPACTION, _with_compaction)):
                with directory() as home:
                    _record(rounds, f"a state of {size:,} MB", name, keep, home, image)
    columns = (
        Column("read_per_written", "MB read for 1 MB in the log", digits=2),
        Column("kept_per_written", "of that to keep it short", digits=2),
        Column("bytes_per_change", "bytes read for one change", digits=0, beside=(SNAPSHOT,)),
        Column("log_bytes_per_change", "bytes in the log for one change", digits=0),
        Column("cycle_MB", "MB written until the next", digits=1),
    )
    return rounds.section(NAME, "Keeping the log short: reads", CONDITIONS, columns)


def _record(
    rounds: Rounds, test: str, name: str, keep: Callable[[Path, ClusterImage], _Reads], home: Path, image: ClusterImage
) -> None:
    reads = keep(home, image)
    total = reads.log_bytes + reads.keeping_bytes
    rounds.record(
        test,
        name,
        read_per_written=total / reads.log_bytes,
        kept_per_written=reads.keeping_bytes / reads.log_bytes,
        bytes_per_change=total / reads.changes,
        log_bytes_per_change=reads.log_bytes / reads.changes,
        cycle_MB=reads.log_bytes / 1e6,
    )


class _CountingFiles(OsFiles):
    """The disk; counts the bytes that are read from open files."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def open(self, path: str, *, create: bool = False) -> Any:
        return _CountedFile(super().open(path, create=create), self)


class _CountedFile:
    def __init__(self, file: File, files: _CountingFiles) -> None:
        self._file = file
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pread(self, length: int, position: int) -> bytes:
        return self._counted(self._file.pread(length, position))

    def lend(self, length: int, position: int) -> Buffer:
        return self._counted(self._file.lend(length, position))

    def _counted(self, found: B) -> B:
        self._files.bytes_read += len(found)
        return found


class _Change(NamedTuple):
    topic_id: TopicId
    number: int
    state: PartitionState


def _changes(image: ClusterImage) -> Iterator[_Change]:
    """Changes of random partitions, without end, each with two replicas in sync."""
    chance = random.Random(2)
    partitions = list(image.partitions())
    while True:
        yield _Change(*chance.choice(partitions))


def _with_snapshots(home: Path, image: ClusterImage) -> _Reads:
    files = _CountingFiles()
    log = opened_log(home, files)
    before = files.bytes_read
    write_snapshot(log, image)
    read = files.bytes_read - before
    size = log.snapshots[0].size_bytes
    log.close()
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    trigger = SnapshotTrigger(min_log_bytes=round(20 * MIB * size / (TEXT_STATE_MB * 1e6)))
    changes = _changes(image)
    changed: set[tuple[TopicId, int]] = set()
    count = log_bytes = 0
    while not trigger.is_due(
        changed_records=len(changed),
        snapshot_records=partitions,
        snapshot_bytes=size,
        log_bytes=log_bytes,
        has_snapshot=True,
    ):
        batch = list(islice(changes, PER_BATCH))
        changed.update((change.topic_id, change.number) for change in batch)
        log_bytes += len(_batch((None, _delta(change)) for change in batch))
        count += len(batch)
    # The next snapshot is as large as the last snapshot.
    return _Reads(count, log_bytes, read)


def _delta(change: _Change) -> bytes:
    replicas = change.state.replicas
    record = PartitionChangeRecord(
        partition_id=change.number, topic_id=change.topic_id, isr=replicas[1:], leader=replicas[1]
    )
    return encode_record(record)


def _with_compaction(home: Path, image: ClusterImage) -> _Reads:
    config = TopicConfig(cleanup_policy=("compact",), segment_bytes=SEGMENT_BYTES)
    log = Log.open(str(home), files=OsFiles(), config=config, now_ms=0)
    entries = [_Change(*found) for found in image.partitions()]
    for start in range(0, len(entries), PER_BATCH):
        _append(log, entries[start : start + PER_BATCH])
    _clean(log)
    changes = _changes(image)
    count = 0
    before = log.size_bytes
    while not log.compactions.cleanable(0, end_offset=log.log_end_offset).is_worth_it(config):
        _append(log, list(islice(changes, PER_BATCH)))
        count += PER_BATCH
    written = log.size_bytes - before
    read = _clean(log)
    log.close()
    return _Reads(count, written, read)


def _append(log: Log, changes: list[_Change]) -> None:
    entries = (
        (
            change.topic_id + change.number.to_bytes(4, "big"),
            encode_record(partition_record(change.number, change.state)),
        )
        for change in changes
    )
    batch = _batch(entries, log.log_end_offset)
    log.append([AppendBatch(batch, read_header(batch))])


def _batch(entries: Iterable[tuple[bytes | None, bytes]], base_offset: int = 0) -> bytearray:
    builder = BatchBuilder(base_offset=base_offset, leader_epoch=1)
    for key, value in entries:
        builder.append(0, key, value)
    return builder.build()


def _clean(log: Log) -> int:
    """Compact the log to the end; returns the number of bytes that were read."""
    log.flush()
    compaction = log.compactions.begin(0, end_offset=log.log_end_offset, memory_bytes=128 * MIB)
    assert compaction is not None, "there is something to compact"
    while not compaction.is_over:
        if compaction.needs_sync:
            log.flush()
        else:
            compaction.step(MIB)
    log.compactions.finish(compaction)
    assert compaction.is_complete
    return compaction.bytes_read
