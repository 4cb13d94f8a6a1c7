"""Files that a disk has damaged: whole log directories, and the small files beside the logs."""

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final

from crc32c import crc32c

from fuzz import golden
from fuzz.finding import found
from fuzz.targets.target import Target
from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import check_crc, iter_batches
from tailrace.server.quorum.metadata_directory import parse_quorum_state
from tailrace.storage import EpochCache, Log, ReadLimits
from tailrace.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    GAP_BOUND,
    META_PROPERTIES,
    PARTITION_METADATA,
    parse_offsets,
    read_gap_bound,
    read_meta_properties,
    read_partition_metadata,
    take_clean_shutdown,
)
from tailrace.storage.producers.snapshot_format import encode_snapshot, parse_snapshot
from tailrace.storage.recovery.closed_logs import CLOSED_LOGS, ClosedLog, read_closed_logs
from tailrace.storage.segment_files.index import OffsetIndex, TimeIndex
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch

DIRECTORY: Final = "/data/orders-0"
CONFIG: Final = TopicConfig(segment_bytes=1_000, index_interval_bytes=200, retention_ms=-1)
COUNT: Final = 24
_EPOCH_END: Final = 16
"""The checksum covers neither the leader epoch nor the fields before."""
_OPERATION: Final = struct.Struct(">BBHB")


@cache
def _sound_files() -> dict[str, bytes]:
    """A log of three segments with indexes, snapshots and epochs, written by the product."""
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=0)
    for offset in range(COUNT):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset, leader_epoch=offset // 8)])
    log.close()
    return {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list_dir(DIRECTORY)}


@cache
def _sound_batches() -> dict[int, bytes]:
    """The batches by offset, without what the checksum does not cover."""
    batches: dict[int, bytes] = {}
    for name, content in _sound_files().items():
        if name.endswith(".log"):
            for at, header in iter_batches(content):
                batches[header.base_offset] = content[at + _EPOCH_END : at + header.size_bytes]
    return batches


def check_recovery(data: bytes) -> None:
    """Two bytes: the recovery point, and whether the stop was clean; then operations of five bytes on the files."""
    if len(data) < 2:
        return
    recovery_point, is_clean = data[0] % (COUNT + 1), data[1] % 4 == 0
    disk = _damaged_disk(data[2:])
    checked_from = COUNT if is_clean else _checked_from(disk, recovery_point)
    log = _opened(disk, recovery_point, clean=is_clean)
    if log is None:
        return
    if not log.recovery.clean:
        _read_checked(log, max(log.log_start_offset, checked_from))
    _read_trusted(log)
    if log.log_end_offset < recovery_point and not log.recovery.damaged and not is_clean:
        found("nothing that was flushed is missing in silence")
    if not is_clean:
        _check_again(disk, log, recovery_point)


def _checked_from(disk: SimulatedDisk, recovery_point: int) -> int:
    """Recovery trusts the segments before the segment of the recovery point."""
    bases = sorted(int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".log"))
    return max((base for base in bases if base <= recovery_point), default=0)


def _damaged_disk(operations: bytes) -> SimulatedDisk:
    files = dict(_sound_files())
    for at in range(0, len(operations) - _OPERATION.size + 1, _OPERATION.size):
        which, action, position, value = _OPERATION.unpack_from(operations, at)
        names = sorted(files)
        if not names:
            break
        name = names[which % len(names)]
        content = _damaged(files[name], action % 7, position, value)
        if content is None:
            del files[name]
        else:
            files[name] = content
    disk = SimulatedDisk()
    disk.make_dirs(DIRECTORY)
    for name, content in files.items():
        file = disk.open(f"{DIRECTORY}/{name}", create=True)
        file.writev([content])
        file.sync()
        file.close()
    disk.sync_dir(DIRECTORY)
    return disk


def _damaged(content: bytes, action: int, position: int, value: int) -> bytes | None:
    if action == 6:
        return None
    position = position % (len(content) + 1)
    changed = bytearray(content)
    if action == 0 and changed:
        changed[position % len(changed)] ^= 1 << (value & 7)
    elif action == 1 and changed:
        changed[position % len(changed)] = value
    elif action == 2:
        del changed[position:]
    elif action == 3:
        changed[position : position + value] = bytes(value)
    elif action == 4:
        changed += bytes([value]) * (position % 300)
    elif action == 5:
        del changed[position : position + value]
    return bytes(changed)


def _opened(disk: SimulatedDisk, recovery_point: int, *, clean: bool) -> Log | None:
    try:
        return Log.open(
            DIRECTORY,
            files=disk,
            config=CONFIG,
            now_ms=0,
            recovery_point=recovery_point,
            clean=clean,
            allow_damage=True,
        )
    except CorruptRecords:
        return None


def _read_checked(log: Log, start_offset: int) -> None:
    """Everything that recovery has checked can be read, and equals the written bytes."""
    sound = _sound_batches()
    at = start_offset
    while at < log.log_end_offset:
        result = log.read(ReadLimits(at, 1 << 20))
        chunk = b"".join(result.records)
        for position, header in iter_batches(chunk):
            check_crc(chunk, position, header)
            if sound.get(header.base_offset) != chunk[position + _EPOCH_END : position + header.size_bytes]:
                found("a checked log has only batches that were written, at their offsets")
        if result.next_offset <= at:
            found("a read gets on")
        at = result.next_offset


def _read_trusted(log: Log) -> None:
    """Any offset of unchecked bytes may be asked for: the answer is bytes or the error of a damaged log."""
    start, end = log.log_start_offset, log.log_end_offset
    for offset in {*range(start, min(start + 2 * COUNT, end)), *range(max(end - COUNT, start), end)}:
        try:
            log.read(ReadLimits(offset, 1 << 20))
            log.offset_for_timestamp(1_700_000_000_000 + offset)
        except StorageError:
            continue


def _check_again(disk: SimulatedDisk, log: Log, recovery_point: int) -> None:
    again = _opened(disk, recovery_point, clean=False)
    if again is None or (again.log_start_offset, again.log_end_offset) != (log.log_start_offset, log.log_end_offset):
        found("recovering twice gives the same log")
    if again.recovery.damaged != log.recovery.damaged or again.recovery.bytes_cut:
        found("what was cut once is gone, and damage stays damage")
    if again.producers.producers != log.producers.producers and not log.recovery.damaged:
        found("recovering twice gives the same producers")


def _recovery_seeds() -> Iterator[bytes]:
    for recovery_point in (0, 10, COUNT):
        yield bytes([recovery_point, 1])
        yield bytes([recovery_point, 0])
        for which in range(len(_sound_files())):
            for action in range(7):
                yield bytes([recovery_point, which % 4]) + _OPERATION.pack(which, action, 150 * which, 17)


def _offset_index(data: bytes) -> None:
    index = OffsetIndex.from_bytes(data, log_size_bytes=1 << 20)
    if index is not None:
        index.floor(5)
        index.boundary_below(relative_end=5, position=500)


def _time_index(data: bytes) -> None:
    index = TimeIndex.from_bytes(data)
    if index is not None:
        index.below(5)


def _snapshot(data: bytes) -> None:
    producers = parse_snapshot(data)
    if parse_snapshot(encode_snapshot(producers)) != producers:
        found("a snapshot that was read is written back with the same meaning")


def _epochs(data: bytes) -> None:
    cache = EpochCache.from_bytes(data)
    if EpochCache.from_bytes(cache.to_bytes()).entries != cache.entries:
        found("epochs that were read are written back with the same meaning")


def _reading(name: str, read: Callable[[SimulatedDisk, str], object]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        disk = SimulatedDisk()
        disk.make_dirs("/data")
        file = disk.open(f"/data/{name}", create=True)
        file.writev([data])
        file.close()
        read(disk, "/data")

    return check


_QUORUM_STATE: Final = (
    b'{"clusterId":"","leaderId":1,"leaderEpoch":5,"votedId":-1,"appliedOffset":0,'
    b'"currentVoters":[{"voterId":1}],"data_version":0}'
)
_META_PROPERTIES: Final = (
    b"#\ncluster.id=Kd3mJ0qTQ1qZzb4v5x6y7w\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\nnode.id=1\nversion=1\n"
)

_CLOSED_LOGS: Final = b"orders AAECAwQFBgcICQoLDA0ODw\n0 0 17 0 -1 17 1 0:1312 0:0\n1 0 0 0 -1 -1 0 0:0 -\n"


def _closed_logs(disk: SimulatedDisk, directory: str) -> None:
    for topic in read_closed_logs(disk, directory, broker_epoch=-1).values():
        for line in topic.lines.values():
            with suppress(ValueError):
                ClosedLog.from_line(line)


def _sealed_closed_logs(body: bytes) -> None:
    """With a checksum that is right, which no mutation would find."""
    head = b"0\n-1 %d %08x\n" % (len(body.splitlines()), crc32c(body))
    _reading(CLOSED_LOGS, _closed_logs)(head + body)


_READERS: tuple[tuple[Callable[[bytes], object], Callable[[], Iterator[bytes]]], ...] = (
    (_offset_index, lambda: golden.files_named(".index")),
    (_time_index, lambda: golden.files_named(".timeindex")),
    (_snapshot, lambda: golden.files_named(".snapshot")),
    (_epochs, lambda: golden.files_named("leader-epoch-checkpoint")),
    (lambda data: parse_offsets(data, path="/x"), lambda: iter([b"0\n2\norders 0 5\norders 1 7\n"])),
    (lambda data: parse_quorum_state(data, path="/x"), lambda: iter([_QUORUM_STATE])),
    (_reading(META_PROPERTIES, read_meta_properties), lambda: iter([_META_PROPERTIES])),
    (_reading(PARTITION_METADATA, read_partition_metadata), lambda: iter([b"version: 0\ntopic_id: " + b"A" * 22])),
    (_reading(CLEAN_SHUTDOWN, take_clean_shutdown), lambda: iter([b'{"version":0,"brokerEpoch":5}'])),
    (_reading(GAP_BOUND, read_gap_bound), lambda: iter([b"0\n5\n"])),
    (_reading(CLOSED_LOGS, _closed_logs), lambda: iter([b"0\n-1 0 00000000\n"])),
    (_sealed_closed_logs, lambda: iter([_CLOSED_LOGS])),
)


def check_files(data: bytes) -> None:
    """The first byte says which file the data is, the rest is the content of that file."""
    if not data:
        return
    read: Callable[[bytes], Any] = _READERS[data[0] % len(_READERS)][0]
    try:
        read(data[1:])
    except CorruptRecords:
        return


def _file_seeds() -> Iterator[bytes]:
    for number, (_, seeds) in enumerate(_READERS):
        for seed in seeds():
            yield bytes([number]) + seed


TARGETS = (
    Target(
        "recovery",
        "a log of batches that were written; a loss below the recovery point is reported; twice is the same",
        check_recovery,
        _recovery_seeds,
        max_bytes=2 + 12 * _OPERATION.size,
    ),
    Target(
        "files",
        "a value, or CorruptRecords; an index that cannot be right is not used",
        check_files,
        _file_seeds,
    ),
)
