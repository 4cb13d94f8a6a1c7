"""Stale files of a log's directory: the files of deletions and replacements that a crash has interrupted.

A swap that was under way is finished before, by `storage.segment_files.swap`.
"""

from collections.abc import Iterable

from tailrace.model.errors import CorruptRecords
from tailrace.storage.checkpoints import TEMPORARY_SUFFIX
from tailrace.storage.file_system import FileSystem, join
from tailrace.storage.segment_files.file_names import (
    INDEX_SUFFIX,
    KEY_INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_in_name,
    segment_name,
)
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits
from tailrace.storage.segments import DELETED_SUFFIX

_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, KEY_INDEX_SUFFIX)


def remove_stale_files(files: FileSystem, directory: str, *, limits: SegmentLimits) -> set[str]:
    """Remove, durably, the files that are not part of the log any more; returns the names of the other files."""
    names = files.list_dir(directory)
    retired = _newest_retired(files, directory, names, limits)
    gone = {name for name in names if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX))}
    kept = {segment_name(base) for base in _bases(names, LOG_SUFFIX) if base > retired}
    for name in names:
        # Retention takes the oldest segments. If a segment is gone, a power cut may have brought back older segments.
        is_log = offset_in_name(name, LOG_SUFFIX) is not None
        if (is_log or name.endswith(_INDEX_SUFFIXES)) and name[:20] not in kept:
            gone.add(name)
    _unlink(files, directory, (name for name in gone if not name.endswith(DELETED_SUFFIX)))
    # The proof that older segments are gone must go last.
    _unlink(files, directory, (name for name in gone if name.endswith(DELETED_SUFFIX)))
    return set(names) - gone


def _newest_retired(files: FileSystem, directory: str, names: list[str], limits: SegmentLimits) -> int:
    """The base offset of the newest segment that retention had removed when the log was last used; -1 without such a
    segment.

    Retention takes the oldest segments and leaves the active segment. Kafka renames to `.deleted` also segments that
    a truncation has cut off or a compaction has replaced: these files tell nothing of the segments before.
    """
    deleted = _bases(names, LOG_SUFFIX + DELETED_SUFFIX)
    here = _bases(names, LOG_SUFFIX)
    if not deleted or not here:
        return -1
    newest = deleted[-1]
    if newest > here[-1] or not set(deleted).isdisjoint(here):
        return -1
    older = [base for base in here if base < newest]
    if older and _reaches(Segment(directory, older[-1], files=files, limits=limits), newest):
        return -1
    return newest


def _bases(names: Iterable[str], suffix: str) -> list[int]:
    return sorted(base for name in names if (base := offset_in_name(name, suffix)) is not None)


def _reaches(segment: Segment, offset: int) -> bool:
    """Whether this segment holds the offset, or a later offset."""
    try:
        return any(header.end_offset > offset for _, header in segment.headers())
    except CorruptRecords:
        return False
    finally:
        segment.close()


def _unlink(files: FileSystem, directory: str, names: Iterable[str]) -> None:
    names = sorted(names)
    for name in names:
        files.unlink(join(directory, name))
    if names:
        files.sync_dir(directory)
