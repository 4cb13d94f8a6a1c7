"""The producers of a log, in step with its segments: batch by batch, and by snapshots on the disk."""

from collections.abc import Iterable, Sequence

from tailrace.protocol.records.control import read_marker
from tailrace.storage.file_system import File, FileSystem
from tailrace.storage.producers.snapshots import (
    begin_snapshot,
    load_producers,
    remove_snapshots_above,
    snapshot_offsets,
    snapshot_path,
    write_snapshot,
)
from tailrace.storage.producers.state import ProducerState
from tailrace.storage.segment_files.batch_file import AppendBatch
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segments import Segments


class LogProducers:
    """The producers of one log."""

    __slots__ = ("_directory", "_files", "_segments", "_state", "snapshot_offset")

    def __init__(
        self, directory: str, state: ProducerState, *, files: FileSystem, segments: Segments, snapshot_offset: int
    ) -> None:
        self._directory = directory
        self._files = files
        self._segments = segments
        self._state = state
        self.snapshot_offset = snapshot_offset
        """The offset of the newest snapshot, -1 for none."""

    def append(self, segment: Segment, batches: Sequence[AppendBatch]) -> None:
        """Apply batches that were just appended to this segment: from the staged state if no batch has a
        transaction."""
        state = self._state
        if state.has_staged and not state.stages_transactions:
            state.apply_staged()
            return
        state.discard_staged()
        self.apply(segment, batches)

    def apply(self, segment: Segment, batches: Iterable[AppendBatch]) -> None:
        """Apply batches singly, and index the transactions that the batches abort."""
        state = self._state
        for buffer, header in batches:
            if header.producer_id < 0:
                continue
            if not header.is_control:
                state.apply(header)
                continue
            completed = state.apply(header, read_marker(buffer, header))
            if completed is not None and completed.is_aborted:
                self._segments.aborted_of(segment)
                segment.aborted.note(completed)

    def begin_snapshot(self, offset: int) -> File:
        """Call `snapshots.begin_snapshot`; the log ends at this offset."""
        file = begin_snapshot(self._files, self._directory, offset, self._state)
        self.snapshot_offset = offset
        return file

    def write_snapshot(self, offset: int) -> None:
        """Call `snapshots.write_snapshot`; the log ends at this offset."""
        write_snapshot(self._files, self._directory, offset, self._state)
        self.snapshot_offset = offset

    def sync_snapshot(self, offset: int) -> None:
        """Sync the snapshot at this offset, if a snapshot with producers exists."""
        path = snapshot_path(self._directory, offset)
        if self._state and self._files.exists(path):
            self._files.sync_file(path)

    def remove_snapshots_above(self, offset: int) -> None:
        """Call `snapshots.remove_snapshots_above`: other batches will be at these offsets."""
        self.snapshot_offset = remove_snapshots_above(self._files, self._directory, offset)

    def reload(self, end_offset: int) -> None:
        """Load the producers at the log's new end, after a truncation."""
        found, self.snapshot_offset, _ = load_producers(
            self._files,
            self._directory,
            list(self._segments.all),
            snapshot_offsets(self._files.list_dir(self._directory)),
            end_offset=end_offset,
            latest_snapshot=self._segments.active.base_offset,
        )
        self._state.replace(found.producers, end_offset=end_offset)
