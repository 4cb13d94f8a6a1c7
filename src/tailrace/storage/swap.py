"""A compacted segment takes the place of those it was made of: Kafka's names, and an order that survives any cut.

| On the disk | What it means | What recovery does |
|---|---|---|
| `<base>.log.cleaned` | being written, or written and not yet agreed on | removes it: the old segments are whole |
| `<base>.log.swap` | the truth; every byte of it is durable | removes what it replaces, gives it its name |
| `<base>.log` | done | nothing |

1. The cleaned files are synced before the first rename.
2. `.cleaned` becomes `.swap`, and the directory is synced: from here on the new segment counts.
3. The segments that it replaces are removed, and the old index files, and the directory is synced: an old segment that
   came back after step 4 would lie across the new one.
4. `.swap` gives way to the plain name, which takes the first old segment's place, and the directory is synced.

Index files go the same way. They are a cache: recovery makes anew those that did not arrive.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.storage.files import FileSystem, join
from tailrace.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment, segment_name
from tailrace.storage.segment_limits import SegmentLimits
from tailrace.storage.snapshots import SNAPSHOT_SUFFIX

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_INDEXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)


def swap_in(files: FileSystem, directory: str, base_offset: int, replaced: Sequence[int]) -> None:
    """Replace these segments, the first of which starts at `base_offset` too, by the synced `.cleaned` one."""
    stem = join(directory, segment_name(base_offset))
    for suffix in (*_INDEXES, LOG_SUFFIX):
        files.rename(stem + suffix + CLEANED_SUFFIX, stem + suffix + SWAP_SUFFIX)
    files.sync_dir(directory)
    _finish(files, directory, base_offset, replaced, _INDEXES)


def _finish(
    files: FileSystem, directory: str, base_offset: int, replaced: Iterable[int], swapped_indexes: Sequence[str]
) -> None:
    stem = join(directory, segment_name(base_offset))
    going = [stem + suffix for suffix in _INDEXES]
    for offset in replaced:
        if offset != base_offset:
            other = join(directory, segment_name(offset))
            going += [other + suffix for suffix in (LOG_SUFFIX, *_INDEXES, SNAPSHOT_SUFFIX)]
    for path in going:
        if files.exists(path):
            files.unlink(path)
    files.sync_dir(directory)
    for suffix in (*swapped_indexes, LOG_SUFFIX):
        files.rename(stem + suffix + SWAP_SUFFIX, stem + suffix)
    files.sync_dir(directory)


def remove_cleaned(files: FileSystem, directory: str, base_offset: int) -> None:
    """Remove what a compaction that was given up has written."""
    stem = join(directory, segment_name(base_offset))
    for suffix in (LOG_SUFFIX, *_INDEXES):
        path = stem + suffix + CLEANED_SUFFIX
        if files.exists(path):
            files.unlink(path)


def finish_swaps(files: FileSystem, directory: str, *, limits: SegmentLimits) -> bool:
    """Carry out the swaps that a crash has cut short, and forget the others; whether there was anything to do.

    Raises CorruptRecords if a segment to be swapped in is damaged: the ones it replaces may be gone.
    """
    names = files.list_dir(directory)
    unfinished = [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
    if not unfinished:
        return False
    swapped = [int(name[:20]) for name in unfinished if name[20:] == LOG_SUFFIX + SWAP_SUFFIX and name[:20].isdecimal()]
    for name in unfinished:
        if name[20:] != LOG_SUFFIX + SWAP_SUFFIX:
            files.unlink(join(directory, name))
    bases = [int(name[:20]) for name in names if name[20:] == LOG_SUFFIX and name[:20].isdecimal()]
    for base_offset in swapped:
        segment = Segment(directory, base_offset, files=files, limits=limits, suffix=SWAP_SUFFIX)
        end_offset = base_offset
        for _, header in segment.headers():
            end_offset = header.end_offset
        segment.close()
        replaced = [offset for offset in bases if base_offset <= offset < end_offset]
        _finish(files, directory, base_offset, replaced, ())
    files.sync_dir(directory)
    return True
