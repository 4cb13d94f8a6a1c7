"""The producer snapshots of a log as files: `<offset>.snapshot`, a file per segment, and a file of the last clean
close.

A snapshot has the state of the producers when the log ended at its offset. A snapshot must never outlive the batches it
is based on: a truncation removes the snapshots above the cut, durably, before other batches are written there.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.protocol.records.batch import BatchHeader
from tailrace.protocol.records.control import EndTransactionMarker, read_marker
from tailrace.storage.checkpoints import replace_file
from tailrace.storage.file_system import File, FileSystem, append_all, join
from tailrace.storage.producers.entries import ProducerEntry
from tailrace.storage.producers.snapshot_format import encode_snapshot, parse_snapshot
from tailrace.storage.producers.state import ProducerState
from tailrace.storage.segment_files.file_names import SNAPSHOT_SUFFIX, offset_in_name, segment_name
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.transaction_index import CompletedTransaction, TransactionIndex


def snapshot_path(directory: str, offset: int) -> str:
    """The file with the state of the producers at this log end."""
    return join(directory, segment_name(offset) + SNAPSHOT_SUFFIX)


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of the producer snapshots among these names, in order."""
    offsets = (offset_in_name(name, SNAPSHOT_SUFFIX) for name in names)
    return sorted(offset for offset in offsets if offset is not None)


def write_snapshot(files: FileSystem, directory: str, offset: int, producers: ProducerState) -> None:
    """Write the producers' present state, when the log ends at `offset`; durable when the call returns."""
    replace_file(files, snapshot_path(directory, offset), encode_snapshot(producers.producers))


def begin_snapshot(files: FileSystem, directory: str, offset: int, producers: ProducerState) -> File:
    """Write the producers' present state; durable when the returned file and the directory are synced.

    Until then a power cut may leave any part of the file: the checksum tells.
    """
    file = files.open(snapshot_path(directory, offset), create=True)
    try:
        append_all(file, encode_snapshot(producers.producers))
    except StorageError:
        file.close()
        files.unlink(file.path)
        raise
    return file


def remove_snapshots_above(files: FileSystem, directory: str, offset: int) -> int:
    """Remove the snapshots above this offset; durable after the next sync of the directory. Returns the offset of the
    newest snapshot that stays."""
    newest = -1
    for snapshot_offset in snapshot_offsets(files.list_dir(directory)):
        if snapshot_offset > offset:
            files.unlink(snapshot_path(directory, snapshot_offset))
        else:
            newest = snapshot_offset
    return newest


def load_producers(
    files: FileSystem,
    directory: str,
    segments: list[Segment],
    offsets: list[int],
    *,
    end_offset: int,
    latest_snapshot: int,
    index_anew: Collection[Segment] = (),
) -> tuple[ProducerState, int, int]:
    """The producers at `end_offset`: from the newest good snapshot up to `latest_snapshot`, and the batches after it.

    `offsets` names all snapshots. Snapshots are removed if they cannot be read, lie above `latest_snapshot`, or belong
    to no segment and are not the newest. A snapshot above `latest_snapshot` may be of batches that a power cut has
    taken, and other batches may be in their place. Also returns the offset of the newest kept snapshot (-1: none) and
    the count of removals.

    `index_anew`: segments from `latest_snapshot` on, durable by now, whose aborted transactions are to be found anew.
    These segments get their snapshots again too: retention may remove earlier segments.
    """
    for segment in index_anew:
        segment.take_aborted(TransactionIndex())
    bases = {segment.base_offset for segment in segments}
    kept: set[int] = set()
    discarded = 0
    producers: dict[int, ProducerEntry] | None = None
    start_offset = segments[0].base_offset
    for offset in reversed(offsets):
        path = snapshot_path(directory, offset)
        is_good = offset <= min(latest_snapshot, end_offset) and (not kept or offset in bases)
        if is_good and producers is None:
            try:
                producers = parse_snapshot(files.read_bytes(path))
                start_offset = max(offset, start_offset)
            except CorruptRecords:
                is_good = False
        if is_good:
            kept.add(offset)
        else:
            files.unlink(path)
            discarded += 1
    state = ProducerState(producers)

    def note(segment: Segment, completed: CompletedTransaction) -> None:
        if completed.is_aborted and segment in index_anew:
            segment.aborted.note(completed)

    def enter(segment: Segment) -> None:
        if state and segment in index_anew and segment.base_offset not in kept:
            file = begin_snapshot(files, directory, segment.base_offset, state)
            file.sync()
            file.close()
            written.add(segment.base_offset)

    written: set[int] = set()
    if start_offset < end_offset:
        _replay(state, segments, start_offset, enter, note)
    if written:
        files.sync_dir(directory)
    return state, max(kept | written, default=-1), discarded


def rebuild_aborted(files: FileSystem, directory: str, segments: Sequence[Segment], segment: Segment) -> None:
    """Find the aborted transactions of one segment anew, from its batches and the state where the segment starts.

    If the rebuild fails, the segment knows no aborted transaction, and the next reader tries again.
    """
    aborted = TransactionIndex()
    producers: dict[int, ProducerEntry] = {}
    start_offset = segments[0].base_offset
    for offset in reversed(snapshot_offsets(files.list_dir(directory))):
        if start_offset <= offset <= segment.base_offset:
            try:
                producers = parse_snapshot(files.read_bytes(snapshot_path(directory, offset)))
                start_offset = offset
                break
            except CorruptRecords:
                continue

    def note(of: Segment, completed: CompletedTransaction) -> None:
        if completed.is_aborted and of is segment:
            aborted.note(completed)

    until = next(at for at, other in enumerate(segments) if other is segment) + 1
    if segment.size_bytes or start_offset < segment.base_offset:
        _replay(ProducerState(producers), segments[:until], start_offset, lambda _: None, note)
    segment.take_aborted(aborted)


def _replay(
    state: ProducerState,
    segments: Sequence[Segment],
    start_offset: int,
    enter: Callable[[Segment], None],
    note: Callable[[Segment, CompletedTransaction], None],
) -> None:
    """Apply every batch from this offset on. `enter` is called with each segment that is replayed from its start."""
    first = max(at for at, segment in enumerate(segments) if segment.base_offset <= start_offset)
    position = segments[first].locate(start_offset)
    for segment in segments[first:]:
        if not position:
            enter(segment)
        for at, header in segment.headers(position):
            if not header.is_control:
                state.apply(header)
            elif (completed := state.apply(header, _marker(segment, at, header))) is not None:
                note(segment, completed)
        position = 0


def _marker(segment: Segment, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    return read_marker(segment.file.pread(header.size_bytes, position), header)
