"""The deleted records of one log by slot: noted from the first read by key on, and kept in a file (KIP-X; decision
0099).

A reader by key whose offset is below the log start has lost something only if a record of its slots was deleted at that
offset or behind it. The file is a note of the last deleted offset of each slot. A log without a reader by key has no
such file, and is never looked at here. The note ends `KEPT_MS` after the last reader, when the offsets of groups have
expired too.

The order of steps for a deletion: the records that are to go are examined, most of them by the heads of key indexes;
the file is replaced, durably; the segments are retired. For a crash in between the file has what was noted before, too.
Without space for the file, or without time for the examination, the knowledge is lost, and a reader that comes back
goes on at the log start.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.key_ranges import SLOTS, of_slots
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import BatchHeader, read_header
from tailrace.protocol.records.kernels import split_by_key
from tailrace.protocol.records.record_times import record_times
from tailrace.storage.checkpoints import TEMPORARY_SUFFIX, replace_file
from tailrace.storage.file_system import FileSystem, append_all, join
from tailrace.storage.keys.batch_slots import GROUP_BATCHES, GROUP_BYTES, PlainBatch, readable_batch
from tailrace.storage.keys.deleted_offsets import NONE_DELETED, DeletedOffsets, from_file, to_file
from tailrace.storage.keys.key_ends import StepWork
from tailrace.storage.keys.key_index import HEAD_SIZE, KeyIndex
from tailrace.storage.keys.key_indexes import KeyIndexes
from tailrace.storage.readable_log import ReadableLog
from tailrace.storage.segment_files.segment import Segment

DELETED_KEYS: Final = "deleted-keys-checkpoint"
"""In a partition's directory, beside Kafka's files."""
KEPT_MS: Final = 7 * 24 * 3_600 * 1_000
"""As long as the offsets of a group without members are kept (offsets.retention.minutes)."""


class _Examined(NamedTuple):
    """The last offsets of the records from `known_to` up to an offset."""

    end_offset: int
    last_offsets: Sequence[int]
    unsplit: int


class DeletedKeys:
    """The note of one log."""

    __slots__ = (
        "_changes",
        "_directory",
        "_examined",
        "_files",
        "_given_up_to",
        "_is_loaded",
        "_log",
        "_of_files",
        "_saved_version",
        "_was_read",
        "known",
        "version",
    )

    def __init__(self, log: ReadableLog, *, files: FileSystem) -> None:
        self._log = log
        self._files = files
        self._directory = log.directory
        self._is_loaded = False
        self._was_read = False
        """Whether the log was read by key since its last deletion."""
        self._examined: _Examined | None = None
        self._changes = 0
        """The changes of the segments as of the examination."""
        self.known: DeletedOffsets | None = None
        """None: nothing is noted, or the file is not loaded yet."""
        self.version = self._saved_version = 0
        """Changes with `known`."""
        self._of_files: DeletedOffsets | None = None
        """The part of `known` that holds if the next deletion does not happen, because of a crash."""
        self._given_up_to = 0
        """Up to this offset records are deleted without an examination: they cannot be read."""

    def load(self) -> DeletedOffsets | None:
        """The note; None if there is no note. Reads the file at the first call."""
        if not self._is_loaded:
            self._is_loaded = True
            path = join(self._directory, DELETED_KEYS)
            with suppress(StorageError):
                if self._files.exists(path):
                    first_offset, log_start_offset = self._bounds
                    content = self._files.read_bytes(path)
                    self._of_files = self._set(
                        from_file(content, first_offset=first_offset, log_start_offset=log_start_offset)
                    )
                    self._saved_version = self.version
        return self.known

    def begin(self) -> DeletedOffsets:
        """The note, which is begun if there is none: the log is read by key."""
        self._was_read = True
        known = self.known or self.load()
        if known is None:
            first_offset, _ = self._bounds
            known = self._of_files = self._set(DeletedOffsets(first_offset, first_offset))
            self._write(is_durable=False)  # there is nothing yet that a power cut could take
        return known

    @property
    def _bounds(self) -> tuple[int, int]:
        """The first offset in the files, and the log start."""
        return self._log.segments.all[0].base_offset, self._log.log_start_offset

    def _set(self, known: DeletedOffsets) -> DeletedOffsets:
        if known != self.known:
            self.known = known
            self.version += 1
        return known

    def _write(self, *, is_durable: bool = True) -> None:
        """Replace the file. If that fails, the old file is out of date, which the next opening notices."""
        known, path = self.known, join(self._directory, DELETED_KEYS)
        self._saved_version = self.version
        with suppress(StorageError):
            if known is None or self._of_files is None:
                self._files.unlink(path)
                return
            content = to_file(known, self._of_files)
            if is_durable:
                replace_file(self._files, path, content)
            else:
                file = self._files.open(path + TEMPORARY_SUFFIX, create=True)
                try:
                    append_all(file, content)
                finally:
                    file.close()
                self._files.rename(path + TEMPORARY_SUFFIX, path)

    # The examination of records that are to go, or are below the log start already

    def examine(self, indexes: KeyIndexes, end_offset: int, work: StepWork | None) -> int:
        """Examine records up to this offset, and return the offset up to which they are examined.

        Without work only the heads of key indexes count, a few files at most. Raises StorageError, and CorruptRecords
        for damage.
        """
        known = self.known
        assert known is not None, "nothing is noted"
        found = self._examined
        if found is None or found.end_offset > end_offset or self._changes != self._log.segments.changes:
            self._changes = self._log.segments.changes  # a compaction has removed records, which are not deleted later
            found = _Examined(known.known_to, NONE_DELETED, -1)
        lookups = 0
        while found.end_offset < end_offset:
            segment = indexes.holder_of(found.end_offset)
            until = self._end_of(segment, end_offset)
            if not indexes.knows(segment):
                lookups += 1
                if work is None and lookups > _MOST_LOOKUPS:
                    break
            more = _by_index(indexes.find(segment), segment, found.end_offset, until)
            if more is None and work is not None:
                if segment is not self._log.segments.active:
                    self._log.segments.keep_loaded(segment)
                more = _by_records(segment, found.end_offset, until, work)
            if more is None:
                break
            found = _Examined(
                more.end_offset,
                tuple(map(max, found.last_offsets, more.last_offsets)),
                max(found.unsplit, more.unsplit),
            )
            if work is not None:
                work.spend(HEAD_SIZE)
                if work.is_spent:
                    break
        self._examined = found
        self._take_deleted()
        return max(found.end_offset, known.known_to, self._given_up_to)

    def give_up(self, offset: int) -> None:
        """Let the records up to this offset be deleted without an examination."""
        self._given_up_to = offset

    def _end_of(self, segment: Segment, most: int) -> int:
        following = self._log.segments.from_offset(segment.base_offset)[1:2]
        return min(most, following[0].base_offset) if following else most

    def _take_deleted(self) -> None:
        """Take what was examined into the note, if it lies below the log start."""
        known, found = self.known, self._examined
        if known is not None and found is not None and known.known_to < found.end_offset <= self._log.log_start_offset:
            self._set(known.with_more(found.end_offset, found.last_offsets, found.unsplit))
            self._examined = None

    def note_removal(self, first_offset: int, now_ms: int) -> None:
        """Note, durably, that the log begins at this offset from now on. Nothing is known of records that were not
        examined."""
        known, found = self.known, self._examined
        if known is None:
            return
        if found is not None and known.known_to < found.end_offset <= first_offset:
            known = known.with_more(found.end_offset, found.last_offsets, found.unsplit)
            self._examined = None
        if known.known_to < first_offset:
            known = known._replace(known_from=first_offset, known_to=first_offset)
        self._set(known._replace(read_ms=now_ms if self._was_read or not known.read_ms else known.read_ms))
        self._was_read = False
        self._write()
        self._of_files = self.known

    def forget_if_old(self, now_ms: int) -> None:
        """Remove the note if the log was not read by key for a long time."""
        known = self.known
        if known is not None and known.read_ms and not self._was_read and now_ms - known.read_ms > KEPT_MS:
            self.remove()

    def remove(self) -> None:
        """Remove the note."""
        if self.load() is not None:
            self.known = self._of_files = None
            self.version += 1
            self.cut()
            self._write()

    # Other changes of the log

    def cut(self) -> None:
        """The log is cut: records that were examined may be others from now on."""
        self._examined, self._given_up_to = None, 0

    def restart(self, offset: int) -> None:
        """The log begins anew at this offset."""
        self.cut()
        if self.load() is not None:
            self._of_files = self._set(DeletedOffsets(offset, offset))
            self._write()

    def take(self, of_leader: Buffer) -> None:
        """Take the note of the leader, which has deleted the same records."""
        theirs = DeletedOffsets.from_bytes(of_leader)
        if theirs is None:
            return
        first_offset, _ = self._bounds
        ours = self.load()
        if ours is None:
            ours = self._of_files = DeletedOffsets(first_offset, first_offset)
        known = ours.merged(theirs)
        if known != self.known:
            self._set(known)
            if known.known_to <= first_offset:
                self._of_files = known
            self._write()

    def save(self) -> None:
        """Write the file, at a clean close."""
        if self.version != self._saved_version:
            self._write()


_MOST_LOOKUPS: Final = 16
"""The heads of key indexes that are read without a step."""


def _by_index(index: KeyIndex | None, segment: Segment, offset: int, until: int) -> _Examined | None:
    """The last offsets of a whole segment, of which all is to be examined; None if the index does not tell them.

    In an index, a batch that counts for all slots has set the last offset of each: then several slots have the lowest
    of the last offsets, and their own records lie before.
    """
    if not segment.size_bytes:
        return _Examined(until, NONE_DELETED, -1)
    if index is None or index.start_position or index.end_position != segment.size_bytes:
        return None
    if offset > segment.base_offset or until < index.end_offset:
        return None
    last_offsets = index.last_offsets
    lowest = min(last_offsets)
    if lowest >= 0 and last_offsets.count(lowest) > 1:
        return None
    return _Examined(until, last_offsets, -1)


def _by_records(segment: Segment, offset: int, until: int, work: StepWork) -> _Examined:
    """The last offsets in the batches of a segment from an offset on, as far as the work allows."""
    last_offsets: Sequence[int] = NONE_DELETED
    unsplit, reached = -1, offset
    for group in _groups(segment, offset, until):
        for header, batch in group:
            last = min(header.last_offset, until - 1)
            if batch is None:
                unsplit = max(unsplit, last)
            elif header.end_offset > until:
                last_offsets = tuple(map(max, last_offsets, _last_below(batch, until)))
        whole = [batch for header, batch in group if batch is not None and header.end_offset <= until]
        for found, count in _last_offsets(whole):
            if found is None:
                unsplit = max(unsplit, count)
            else:
                last_offsets = tuple(map(max, last_offsets, found))
        reached = min(group[-1][0].end_offset, until)
        work.spend(sum(header.size_bytes if batch is None else batch.size_bytes for header, batch in group))
        if work.is_spent:
            return _Examined(reached, last_offsets, unsplit)
    return _Examined(until, last_offsets, unsplit)


_Group = Sequence[tuple[BatchHeader, PlainBatch | None]]
"""Batches that are examined in one go; None for a batch that counts for all slots."""


def _groups(segment: Segment, offset: int, until: int) -> Iterator[_Group]:
    group: list[tuple[BatchHeader, PlainBatch | None]] = []
    size_bytes = 0
    for _, stored, header in segment.batches(segment.locate(offset)):
        if header.base_offset >= until:
            break
        batch = None if header.is_control else readable_batch(stored, header)
        group.append((header, batch))
        size_bytes += header.size_bytes if batch is None else batch.size_bytes
        if size_bytes >= GROUP_BYTES or len(group) == GROUP_BATCHES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _last_offsets(batches: Sequence[PlainBatch]) -> Iterator[tuple[Sequence[int] | None, int]]:
    """The last offset of each slot; None, and the last offset of the batch, for a batch whose header is wrong."""
    if not batches:
        return
    try:
        yield split_by_key([(batch.stored, batch.plain) for batch in batches], ()).last_offsets, 0
    except CorruptRecords:
        if len(batches) == 1:
            yield None, batches[0].header.last_offset
            return
        for batch in batches:
            yield from _last_offsets((batch,))


def _last_below(batch: PlainBatch, until: int) -> Sequence[int]:
    """The last offset of each slot below this offset, in the batch that has the offset."""
    found = [-1] * SLOTS
    with suppress(CorruptRecords):
        parts = split_by_key([(batch.stored, batch.plain)], [[of_slots(slot, slot)] for slot in range(SLOTS)]).parts
        for slot, part in enumerate(parts):
            if part:
                offsets = record_times(part, read_header(part), from_offset=0).offsets
                count = bisect_left(offsets, until)
                found[slot] = offsets[count - 1] if count else -1
    return found
