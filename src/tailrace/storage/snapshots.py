"""The producer snapshots of a log as files: `<offset>.snapshot`, one per segment and one from the last clean close.

A snapshot says what was known of the producers when the log ended at its offset. It must never outlive the batches it
is based on: whoever cuts a log removes the snapshots above the cut, durably, before other batches are written there.
"""

from collections.abc import Iterable
from typing import Final

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.storage.checkpoints import replace_file
from tailrace.storage.files import File, FileSystem, append_all, join
from tailrace.storage.producer_state import ProducerEntry, ProducerState, parse_snapshot
from tailrace.storage.segment import Segment, segment_name

SNAPSHOT_SUFFIX: Final = ".snapshot"


def snapshot_path(directory: str, offset: int) -> str:
    """The file that holds the producers as they were when the log ended at this offset."""
    return join(directory, segment_name(offset) + SNAPSHOT_SUFFIX)


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of the producer snapshots among these names, in order."""
    return sorted(int(name[:20]) for name in names if name.endswith(SNAPSHOT_SUFFIX) and name[:20].isdecimal())


def write_snapshot(files: FileSystem, directory: str, offset: int, producers: ProducerState) -> None:
    """Write the producers as they are now, when the log ends at `offset`; durable when the call returns."""
    replace_file(files, snapshot_path(directory, offset), producers.to_snapshot())


def begin_snapshot(files: FileSystem, directory: str, offset: int, producers: ProducerState) -> File:
    """Write the producers as they are now; durable when the file, which is given, and the directory are synced.

    Until then a power cut may leave any part of it: the checksum tells.
    """
    file = files.open(snapshot_path(directory, offset), create=True)
    try:
        append_all(file, producers.to_snapshot())
    except StorageError:
        file.close()
        files.unlink(file.path)
        raise
    return file


def remove_snapshots_above(files: FileSystem, directory: str, offset: int) -> int:
    """Remove the snapshots above this offset; durable after the next sync of the directory. The newest that stays."""
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
) -> tuple[ProducerState, int, int]:
    """The producers at `end_offset`: from the newest good snapshot up to `latest_snapshot`, and the batches after it.

    `offsets` are those of all snapshots. Those that cannot be read, lie above `latest_snapshot` or belong to no segment
    and are not the newest are removed: what lies above may speak of batches that a power cut has taken, and others may
    stand in their place. Also gives the offset of the newest that stays (-1: none) and how many were removed.
    """
    bases = {segment.base_offset for segment in segments}
    newest, discarded = -1, 0
    producers: dict[int, ProducerEntry] | None = None
    start_offset = segments[0].base_offset
    for offset in reversed(offsets):
        path = snapshot_path(directory, offset)
        is_good = offset <= min(latest_snapshot, end_offset) and (newest < 0 or offset in bases)
        if is_good and producers is None:
            try:
                producers = parse_snapshot(files.read_bytes(path))
                start_offset = max(offset, start_offset)
            except CorruptRecords:
                is_good = False
        if is_good:
            newest = max(newest, offset)
        else:
            files.unlink(path)
            discarded += 1
    state = ProducerState(producers)
    if start_offset < end_offset:
        _replay(state, segments, start_offset)
    return state, newest, discarded


def _replay(state: ProducerState, segments: list[Segment], start_offset: int) -> None:
    """Apply every batch from this offset on."""
    first = max(at for at, segment in enumerate(segments) if segment.base_offset <= start_offset)
    position = segments[first].locate(start_offset)
    for segment in segments[first:]:
        for _, header in segment.headers(position):
            state.apply(header)
        position = 0
