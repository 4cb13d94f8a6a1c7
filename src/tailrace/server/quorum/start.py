"""The conditions that a quorum's log and its snapshots must fulfil at the start of a node (KIP-630, "Validation of
Snapshot and Log"), and the repair if a condition is not fulfilled."""

from collections.abc import Mapping

from tailrace.model.errors import CorruptRecords
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.records.batch import BatchHeader, check_crc
from tailrace.raft.ports import LogView
from tailrace.raft.rpc import LogEnd, SnapshotId
from tailrace.raft.snapshots import reaches
from tailrace.storage import Buffer, EpochCache, FileSystem, Log
from tailrace.storage.checkpoints import LEADER_EPOCHS, replace_file
from tailrace.storage.file_system import join
from tailrace.storage.snapshots.store import SnapshotStore


def forget_stale_epochs(files: FileSystem, directory: str, newest: OffsetAndEpoch) -> None:
    """Remove epochs from the epoch checkpoint that belong to a log which the newest snapshot has replaced.

    To be called before the log is opened. The epochs were dropped with the replaced log, but a power cut may have come
    before the epoch checkpoint was written. Later records may have lower epochs than the uncommitted tail of the
    replaced log, and would seem to be damaged.
    """
    path = join(directory, LEADER_EPOCHS)
    if not files.exists(path):
        return
    try:
        entries = EpochCache.from_bytes(files.read_bytes(path)).entries
    except CorruptRecords:
        return  # the log writes the checkpoint again
    kept = tuple(entry for entry in entries if entry.start_offset >= newest.offset or entry.epoch <= newest.epoch)
    if kept != entries:
        replace_file(files, path, EpochCache(kept).to_bytes())


def log_end_of(log: LogView) -> LogEnd:
    """The end of a log and the epoch of its last record; for an empty log, the epoch of the snapshot at its start, or
    0."""
    end = log.end_offset_for_epoch((1 << 31) - 1)
    if end is not None:
        return end
    at_start = (file.id.epoch for file in log.snapshots if file.id.end_offset == log.log_start_offset)
    return LogEnd(next(at_start, 0), log.end_offset)


def takes_the_logs_place(newest: OffsetAndEpoch, log: LogView, recovery_point: int) -> bool:
    """Whether the newest snapshot has to replace the log: the log was cut, or the power failed between the fetch of the
    snapshot and its installation.

    KIP-630 asks whether the snapshot is "newer than the LEO": true if the log does not have the last record of the
    snapshot, even if the log has uncommitted records behind that offset or of a later epoch. A log that is known to be
    committed beyond the snapshot is not replaced: either log or snapshot is damaged.
    """
    snapshot_id = SnapshotId(*newest)
    return recovery_point <= snapshot_id.end_offset and not _agrees(snapshot_id, log)


def _agrees(snapshot_id: SnapshotId, log: LogView) -> bool:
    """Whether the log has the last record of the snapshot, as far as is known."""
    if snapshot_id.end_offset > log.log_start_offset:
        return reaches(log, snapshot_id)
    if snapshot_id.end_offset < log.log_start_offset:
        return True
    # The record itself is below the log start: then no later record may have an earlier epoch.
    return log.end_offset_for_epoch(snapshot_id.epoch - 1) is None


def check_snapshots(log: LogView, directory: str) -> None:
    """Raises CorruptRecords if snapshots and log contradict each other."""
    start, snapshots = log.log_start_offset, log.snapshots
    if start > 0 and not any(file.id.end_offset >= start for file in snapshots):
        raise CorruptRecords(
            f"the log in {directory} starts at offset {start} and no snapshot stands for the records before; restore"
            " the snapshot's file, or empty the directory and let the other nodes bring this one up to date"
        )
    for file in snapshots:
        if not _agrees(file.id, log):
            raise CorruptRecords(
                f"the log in {directory} does not have the record of epoch {file.id.epoch} before offset"
                f" {file.id.end_offset} that a snapshot ends with; either is of another cluster or damaged."
                " Empty the directory and let the other nodes bring this one up to date"
            )


def start_of(store: SnapshotStore, noted: int) -> int:
    """The offset at which the log has to begin: the noted offset, or a lower offset so that the log replaces a damaged
    snapshot.

    A segment keeps records below the log start until the whole segment retires.
    """
    if not store.damaged:
        return noted
    newest = store.newest
    return min(noted, 0 if newest is None else newest.id.offset)


def check_damaged(damaged: Mapping[OffsetAndEpoch, CorruptRecords], log: LogView) -> None:
    """Raises CorruptRecords if a damaged snapshot has records that are nowhere else on this node.

    The log has the records if the log goes on from offset 0, or from a whole snapshot, to the snapshot's last record.
    The batches of the log are checked elsewhere.
    """
    start = log.log_start_offset
    bases = [file.id.end_offset for file in log.snapshots if file.id.end_offset >= start]
    has_base = start == 0 or bool(bases)
    for snapshot_id, fault in sorted(damaged.items()):
        wanted = SnapshotId(*snapshot_id)
        is_older = any(wanted.end_offset <= base for base in bases)
        if wanted.end_offset == 0 or not has_base or not (is_older or reaches(log, wanted)):
            raise fault


def check_stored_batch(log: Log, chunk: Buffer, position: int, header: BatchHeader, end_offset: int) -> None:
    """Raises CorruptRecords unless this batch is whole and follows a batch that ended at `end_offset` (-1: the
    first)."""
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
