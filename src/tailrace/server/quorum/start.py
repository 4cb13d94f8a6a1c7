"""Conditions between a quorum's log and its snapshots at the start of a node (KIP-630, "Validation of Snapshot and
Log"), and the repair if they do not hold."""

from tailrace.model.errors import CorruptRecords
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.records.batch import BatchHeader, check_crc
from tailrace.raft.ports import LogView
from tailrace.raft.rpc import LogEnd, SnapshotId
from tailrace.raft.snapshots import reaches
from tailrace.storage import Buffer, EpochCache, FileSystem, Log
from tailrace.storage.checkpoints import LEADER_EPOCHS, replace_file
from tailrace.storage.file_system import join


def forget_stale_epochs(files: FileSystem, directory: str, newest: OffsetAndEpoch) -> None:
    """Before the log is opened: drop noted epochs that a snapshot disproves, of a log that it took the place of.

    The log forgets them when it is replaced, but its file may not have followed before the power went; later records,
    whose epochs are lower than that of an uncommitted tail, would then seem to be damaged.
    """
    path = join(directory, LEADER_EPOCHS)
    if not files.exists(path):
        return
    try:
        entries = EpochCache.from_bytes(files.read_bytes(path)).entries
    except CorruptRecords:
        return  # the log makes it anew
    kept = tuple(one for one in entries if one.start_offset >= newest.offset or one.epoch <= newest.epoch)
    if kept != entries:
        replace_file(files, path, EpochCache(kept).to_bytes())


def log_end_of(log: LogView) -> LogEnd:
    """The end of a log and the epoch of the record before: of an empty log that of the snapshot it starts at, or 0."""
    end = log.end_offset_for_epoch((1 << 31) - 1)
    if end is not None:
        return end
    at_start = (one.id.epoch for one in log.snapshots if one.id.end_offset == log.log_start_offset)
    return LogEnd(next(at_start, 0), log.end_offset)


def takes_the_logs_place(newest: OffsetAndEpoch, log: LogView, recovery_point: int) -> bool:
    """Whether the log is to be replaced by the newest snapshot: the log was cut short, or the snapshot was fetched and
    the power went before it was installed.

    KIP-630 asks whether the snapshot is "newer than the LEO". That is so if the log does not have the record that the
    snapshot ends with, also if the log goes on behind that, or in a later epoch, with uncommitted records. If
    it was known to be committed further than the snapshot, one of the two is damaged, and nothing is replaced.
    """
    snapshot_id = SnapshotId(*newest)
    return recovery_point <= snapshot_id.end_offset and not _agrees(snapshot_id, log)


def _agrees(snapshot_id: SnapshotId, log: LogView) -> bool:
    """Whether the log has the record that the snapshot ends with, as far as is known."""
    if snapshot_id.end_offset > log.log_start_offset:
        return reaches(log, snapshot_id)
    if snapshot_id.end_offset < log.log_start_offset:
        return True
    # The record itself is gone: no later one has an earlier epoch.
    return log.end_offset_for_epoch(snapshot_id.epoch - 1) is None


def check_snapshots(log: LogView, directory: str) -> None:
    """Raises CorruptRecords where snapshots and log do not fit."""
    start, snapshots = log.log_start_offset, log.snapshots
    if start > 0 and not any(one.id.end_offset >= start for one in snapshots):
        raise CorruptRecords(
            f"the log in {directory} starts at offset {start} and no snapshot stands for what was before; restore the"
            " snapshot's file, or empty the directory and let the other nodes bring this one up to date"
        )
    for one in snapshots:
        if not _agrees(one.id, log):
            raise CorruptRecords(
                f"the log in {directory} does not have the record of epoch {one.id.epoch} before offset"
                f" {one.id.end_offset} that a snapshot ends with; one of the two is of another cluster or damaged."
                " Empty the directory and let the other nodes bring this one up to date"
            )


def check_stored_batch(log: Log, chunk: Buffer, position: int, header: BatchHeader, end_offset: int) -> None:
    """Raises CorruptRecords unless a batch of the log is right and follows the one that ended here (-1: the first)."""
    try:
        check_crc(chunk, position, header)
        if header.base_offset != end_offset >= 0:
            raise CorruptRecords(f"offset {header.base_offset} follows {end_offset - 1}")
        epoch = log.epochs.epoch_of(max(header.base_offset, log.log_start_offset))
        if header.partition_leader_epoch != epoch:
            raise CorruptRecords(f"leader epoch {header.partition_leader_epoch} stands where {epoch} was written")
    except CorruptRecords as fault:
        raise CorruptRecords(
            f"the log in {log.directory} is damaged at offset {header.base_offset}: {fault.detail}. Empty the directory"
            " and let the other nodes bring this one up to date"
        ) from None
