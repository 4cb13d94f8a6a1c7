"""A log in memory as `raft.ports.LogView`, above a disk that keeps only what was flushed."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode
from tailrace.raft.effects import ReadLog, ReadSnapshot, Voters
from tailrace.raft.ports import QuorumState, SnapshotFile
from tailrace.raft.rpc import FetchRecordsReply, FetchSnapshotReply, LogEnd, SnapshotId
from tailrace.raft.voters import VotersAt, VoterSet


class EpochRecord(NamedTuple):
    """A record: the epoch of the leader that wrote the record, and its value."""

    epoch: int
    value: object


class StoredSnapshot(NamedTuple):
    """A whole snapshot as it lies on the disk."""

    file: SnapshotFile
    data: bytes
    voters: VoterSet | None


class LogImage:
    """The records of a log between its start and its end."""

    def __init__(self, start: int = 0, start_epoch: int = 0, entries: Iterable[EpochRecord] = ()) -> None:
        self.start = start
        self.start_epoch = start_epoch
        self.entries = list(entries)
        self._epochs: list[tuple[int, int]] = []
        for offset, entry in enumerate(self.entries, start):
            self._note_epoch(offset, entry.epoch)

    def _note_epoch(self, offset: int, epoch: int) -> None:
        if not self._epochs or self._epochs[-1][0] != epoch:
            assert not self._epochs or epoch > self._epochs[-1][0], "epochs never fall"
            self._epochs.append((epoch, offset))

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else self.start_epoch

    def at(self, offset: int) -> EpochRecord | None:
        """The record at this offset, None outside of the log."""
        return self.entries[offset - self.start] if self.start <= offset < self.end else None

    def append(self, entries: Iterable[EpochRecord]) -> None:
        for entry in entries:
            self._note_epoch(self.end, entry.epoch)
            self.entries.append(entry)

    def truncate(self, end: int) -> None:
        assert self.start <= end <= self.end, f"cut at {end}, not in {self.start} to {self.end}"
        del self.entries[end - self.start :]
        while self._epochs and self._epochs[-1][1] >= end:
            self._epochs.pop()

    def raise_start(self, start: int) -> None:
        assert self.start <= start <= self.end, f"start at {start}, not in {self.start} to {self.end}"
        if start == self.start:
            return
        self.start_epoch = self.entries[start - self.start - 1].epoch
        del self.entries[: start - self.start]
        self.start = start
        kept = [(epoch, max(offset, start)) for epoch, offset in self._epochs]
        ends = [offset for _, offset in kept[1:]] + [self.end]
        self._epochs = [pair for pair, end in zip(kept, ends, strict=True) if end > start]

    def end_for_epoch(self, epoch: int) -> LogEnd | None:
        index = bisect_right(self._epochs, epoch, key=lambda pair: pair[0])
        if index == 0:
            return None
        end = self._epochs[index][1] if index < len(self._epochs) else self.end
        return LogEnd(self._epochs[index - 1][0], end)

    def copy(self) -> "LogImage":
        return LogImage(self.start, self.start_epoch, self.entries)


class AppendOp(NamedTuple):
    entries: tuple[EpochRecord, ...]
    is_one_batch: bool = True
    """Whether the records are one batch. If not, a crash may leave only the first of them on the disk."""


class TruncateOp(NamedTuple):
    end: int


class RaiseStartOp(NamedTuple):
    start: int


Operation = AppendOp | TruncateOp | RaiseStartOp


def _apply(image: LogImage, operation: Operation) -> None:
    match operation:
        case AppendOp(entries=entries):
            image.append(entries)
        case TruncateOp(end):
            image.truncate(end)
        case RaiseStartOp(start):
            image.raise_start(start)


class RaftDisk:
    """The state that survives a crash: flushed records, the persisted quorum state, whole snapshots."""

    def __init__(self) -> None:
        self.quorum_state = QuorumState()
        self.log = LogImage()
        self.snapshots: dict[SnapshotId, StoredSnapshot] = {}

    def newest_snapshot(self) -> StoredSnapshot | None:
        return self.snapshots[max(self.snapshots)] if self.snapshots else None

    def holds(self, offset: int, epoch: int) -> bool:
        """Whether the record of this offset and epoch, or a snapshot that covers the record, would be there after a
        crash."""
        entry = self.log.at(offset)
        return (entry is not None and entry.epoch == epoch) or any(kept.end_offset > offset for kept in self.snapshots)


class MemoryLog:
    """The log of a running node: the disk's image, and the operations that are not flushed yet."""

    def __init__(self, disk: RaftDisk) -> None:
        self._disk = disk
        self._pending: list[Operation] = []
        self._pending_from = 0
        newest = disk.newest_snapshot()
        if newest is not None and newest.file.id.position > LogEnd(disk.log.last_epoch, disk.log.end):
            # KIP-630: "the replica must set the LogStartOffset and LEO" to the snapshot's end.
            disk.log = LogImage(newest.file.id.end_offset, newest.file.id.epoch)
        self.image = disk.log.copy()

    # raft.ports.LogView

    @property
    def log_start_offset(self) -> int:
        return self.image.start

    @property
    def end_offset(self) -> int:
        return self.image.end

    @property
    def last_epoch(self) -> int:
        return self.image.last_epoch

    def end_offset_for_epoch(self, epoch: int) -> LogEnd | None:
        return self.image.end_for_epoch(epoch)

    @property
    def snapshots(self) -> Sequence[SnapshotFile]:
        stored = self._disk.snapshots
        return [stored[snapshot_id].file for snapshot_id in sorted(stored)] if stored else ()

    # Operations of a host

    def voters_in_log(self) -> list[VotersAt]:
        """The voters that the newest snapshot and the records behind it state."""
        newest = self._disk.newest_snapshot()
        found = []
        if newest is not None and newest.voters is not None:
            found.append(VotersAt(newest.file.id.end_offset - 1, newest.voters))
        covered = -1 if newest is None else newest.file.id.end_offset - 1
        for offset, entry in enumerate(self.image.entries, self.image.start):
            if isinstance(entry.value, Voters) and offset > covered:
                found.append(VotersAt(offset, entry.value.voters))
        return found

    def read(self, offset: int, count: int) -> tuple[EpochRecord, ...]:
        begin = offset - self.image.start
        assert begin >= 0, f"{offset} is below the log start {self.image.start}"
        return tuple(self.image.entries[begin : begin + count])

    def do(self, operation: Operation) -> None:
        """Change the log in memory; the disk follows with the next flush."""
        _apply(self.image, operation)
        self._pending.append(operation)

    def mark(self) -> int:
        """A point in the sequence of operations, for `flush_to`."""
        return self._pending_from + len(self._pending)

    def flush_to(self, mark: int) -> None:
        """Put all operations up to this point on the disk."""
        while self._pending and self._pending_from < mark:
            _apply(self._disk.log, self._pending.pop(0))
            self._pending_from += 1

    @property
    def unflushed(self) -> int:
        return len(self._pending)

    def tear(self, kept: int) -> bool:
        """A crash in the middle of the oldest write that is not flushed: so many of its batches are on the disk."""
        torn = self._pending[0] if self._pending else None
        if not isinstance(torn, AppendOp) or torn.is_one_batch or not 0 < kept < len(torn.entries):
            return False
        self._disk.log.append(torn.entries[:kept])
        return True

    @property
    def tearable(self) -> int:
        """The number of batches in the oldest write that is not flushed; 0 if that write cannot tear."""
        first = self._pending[0] if self._pending else None
        return len(first.entries) if isinstance(first, AppendOp) and not first.is_one_batch else 0

    def install(self, snapshot: StoredSnapshot) -> None:
        """Replace the log by this snapshot, durably."""
        snapshot_id = snapshot.file.id
        self._disk.snapshots[snapshot_id] = snapshot
        self._disk.log = LogImage(snapshot_id.end_offset, snapshot_id.epoch)
        self._pending_from += len(self._pending)
        self._pending.clear()
        self.image = self._disk.log.copy()


ENTRY_BYTES: Final = 100
"""The size of a record for limits of size."""


def filled_with_records(response: FetchRecordsReply, read: ReadLog, log: MemoryLog) -> FetchRecordsReply:
    """The answer to a fetch with the records that it was promised."""
    if read.offset < log.log_start_offset:
        # As the product's host says: the answer waited for the disk, and the log start has passed it meanwhile.
        return replace(response, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    return replace(response, records=log.read(read.offset, max(1, read.max_bytes // ENTRY_BYTES)))


def filled_with_bytes(
    response: FetchSnapshotReply, read: ReadSnapshot, disk: RaftDisk, *, is_damaged: bool
) -> FetchSnapshotReply:
    """The answer to a fetch of a snapshot with its bytes; `is_damaged` changes the first byte."""
    data = disk.snapshots[read.snapshot_id].data[read.position : read.position + read.size_bytes]
    if is_damaged:
        data = bytes([data[0] ^ 1]) + data[1:]
    return replace(response, data=data)
