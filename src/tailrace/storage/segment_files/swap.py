"""The swap of a compacted segment for its sources: Kafka's names, and an order that survives any power cut.

| On the disk | Meaning | Recovery |
|---|---|---|
| `<base>.log.cleaned` | being written, or written and not yet agreed on | removes it: the old segments are whole |
| `<base>.log.swap` | in force; every byte is durable | removes the replaced segments, renames to `<base>.log` |
| `<base>.log` | done | nothing |

1. The cleaned files are synced before the first rename.
2. `.cleaned` becomes `.swap`, and the directory is synced: from here on the new segment is in force.
3. The segments that it replaces are removed, and the old index files, and the directory is synced: an old segment that
   came back after step 4 would lie across the new segment.
4. `.swap` gives way to the plain name, which takes the first old segment's place, and the directory is synced.

A log that begins within a batch (`Log.begin_within`) goes the same way: the old segment is empty and starts
later than the new segment.

Index files go the same way. Index files are a cache, and recovery rebuilds missing files (the new segment begins
without a key index); except `.txnindex`, since nothing shows whether the file existed: the file becomes `.swap`,
durably, before step 2, and has its name, durably, before the `.log` in step 4. If recovery finds no `.swap` of the
file, the rename is done already, or the old file stays, whose extra entries are of transactions with all their markers.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.storage.file_system import FileSystem, join
from tailrace.storage.segment_files.file_names import (
    INDEX_SUFFIX,
    KEY_INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_in_name,
    segment_name,
)
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_CACHES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_INDEXES: Final = (*_CACHES, TRANSACTION_INDEX_SUFFIX)
_OLD: Final = (*_INDEXES, KEY_INDEX_SUFFIX)
"""The indexes of a replaced segment. The new segment has no key index: the index is made at the first need."""


def swap_in(files: FileSystem, directory: str, base_offset: int, replaced: Sequence[int]) -> None:
    """Replace these segments by the synced `.cleaned` segment that starts at `base_offset` and spans these segments."""
    stem = join(directory, segment_name(base_offset))
    has_aborted = files.exists(stem + TRANSACTION_INDEX_SUFFIX + CLEANED_SUFFIX)
    if has_aborted:
        _rename(files, stem + TRANSACTION_INDEX_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)
        files.sync_dir(directory)
    for suffix in (*_CACHES, LOG_SUFFIX):
        _rename(files, stem + suffix, CLEANED_SUFFIX, SWAP_SUFFIX)
    files.sync_dir(directory)
    swapped = _INDEXES if has_aborted else _CACHES
    _finish(files, directory, base_offset, replaced, going=_OLD, swapped=swapped)


def _rename(files: FileSystem, path: str, old_suffix: str, new_suffix: str) -> None:
    files.rename(path + old_suffix, path + new_suffix)


def _finish(
    files: FileSystem,
    directory: str,
    base_offset: int,
    replaced: Iterable[int],
    *,
    going: Sequence[str],
    swapped: Sequence[str],
) -> None:
    """`going` are the old indexes at this offset that are to go, `swapped` the new indexes that wait."""
    stem = join(directory, segment_name(base_offset))
    paths = [stem + suffix for suffix in going]
    for offset in replaced:
        if offset != base_offset:
            other = join(directory, segment_name(offset))
            paths += [other + suffix for suffix in (LOG_SUFFIX, *_OLD, SNAPSHOT_SUFFIX)]
    for path in paths:
        if files.exists(path):
            files.unlink(path)
    files.sync_dir(directory)
    for suffix in swapped:
        _rename(files, stem + suffix, SWAP_SUFFIX, "")
    if TRANSACTION_INDEX_SUFFIX in swapped:
        files.sync_dir(directory)
    _rename(files, stem + LOG_SUFFIX, SWAP_SUFFIX, "")
    files.sync_dir(directory)


def remove_cleaned(files: FileSystem, directory: str, base_offset: int) -> None:
    """Remove the files of a compaction that was given up."""
    stem = join(directory, segment_name(base_offset))
    for suffix in (LOG_SUFFIX, *_INDEXES):
        path = stem + suffix + CLEANED_SUFFIX
        if files.exists(path):
            files.unlink(path)


def finish_swaps(files: FileSystem, directory: str, *, limits: SegmentLimits) -> bool:
    """Finish the swaps that a crash has interrupted after step 2, and undo swaps that were interrupted earlier. Returns
    whether there was a swap.

    Raises CorruptRecords if a segment to be swapped in is damaged: the replaced segments may be gone.
    """
    names = files.list_dir(directory)
    unfinished = [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
    if not unfinished:
        return False
    swapped = [base for name in unfinished if (base := offset_in_name(name, LOG_SUFFIX + SWAP_SUFFIX)) is not None]
    aborted = {segment_name(base) + TRANSACTION_INDEX_SUFFIX + SWAP_SUFFIX for base in swapped} & set(unfinished)
    for name in unfinished:
        if offset_in_name(name, LOG_SUFFIX + SWAP_SUFFIX) is None and name not in aborted:
            files.unlink(join(directory, name))
    bases = [base for name in names if (base := offset_in_name(name, LOG_SUFFIX)) is not None]
    for base_offset in swapped:
        segment = Segment(directory, base_offset, files=files, limits=limits, suffix=SWAP_SUFFIX)
        end_offset = base_offset
        for _, header in segment.headers():
            end_offset = header.end_offset
        segment.close()
        replaced = [offset for offset in bases if base_offset <= offset < end_offset]
        has_aborted = segment_name(base_offset) + TRANSACTION_INDEX_SUFFIX + SWAP_SUFFIX in aborted
        swapped_indexes = (TRANSACTION_INDEX_SUFFIX,) if has_aborted else ()
        _finish(
            files,
            directory,
            base_offset,
            replaced,
            going=(*_CACHES, KEY_INDEX_SUFFIX, *swapped_indexes),
            swapped=swapped_indexes,
        )
    files.sync_dir(directory)
    return True
