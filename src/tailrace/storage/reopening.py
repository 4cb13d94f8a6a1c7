"""From the note of a closed log to the state of the log, without looking through its files.

Two things are checked: that the active segment is as long as it was, and the checksum of the producers' snapshot. A
mismatch raises CorruptRecords, and the caller opens the log from its files (`storage.recovery`), which gives the same
log and takes longer.
"""

from typing import Final

from crc32c import crc32c

from tailrace.model.errors import CorruptRecords
from tailrace.storage.closed_logs import ClosedLog
from tailrace.storage.epoch_cache import EpochCache
from tailrace.storage.file_system import File, FileSystem
from tailrace.storage.producers.snapshots import snapshot_path
from tailrace.storage.producers.state import ProducerState, parse_snapshot
from tailrace.storage.recovery_report import LoadedLog, RecoveryReport
from tailrace.storage.segment import Segment
from tailrace.storage.segment_limits import SegmentLimits

_CLEAN: Final = RecoveryReport(clean=True)
"""Shared by all logs that were not looked through."""


def reload(
    directory: str,
    closed: ClosedLog,
    *,
    files: FileSystem,
    limits: SegmentLimits,
    is_new: bool = False,
    unsynced_files: tuple[File, ...] = (),
) -> LoadedLog:
    """The log that was closed like this. Raises CorruptRecords or StorageError if its files are others."""
    segments = [
        Segment(directory, base_offset, files=files, limits=limits, size_bytes=size_bytes)
        for base_offset, size_bytes in closed.segments
    ]
    active = segments[-1]
    found_bytes = files.size_of(active.log_path)
    if found_bytes != active.size_bytes:
        raise CorruptRecords(f"{active.log_path} has {found_bytes} bytes; {active.size_bytes} were noted at its close")
    producers = ProducerState()
    if closed.has_producers:
        producers = ProducerState(parse_snapshot(files.read_bytes(snapshot_path(directory, closed.snapshot_offset))))
    # The clean close has left their file like this, and the notes of flushes to come vouch for it without reading it.
    epochs = EpochCache(closed.epochs)
    return LoadedLog(
        segments=segments,
        limits=limits,
        log_start_offset=closed.log_start_offset,
        log_end_offset=closed.log_end_offset,
        epochs=epochs,
        producers=producers,
        snapshot_offset=closed.snapshot_offset,
        gap_bound=closed.gap_bound,
        is_new=is_new,
        report=_CLEAN,
        unsynced_files=unsynced_files,
        epochs_crc=crc32c(epochs.to_bytes()) if closed.epochs else None,
    )
