"""The keys of one log's records, for readers by key: the starts and ends of their ranges, and the batches without their
slots."""

from collections.abc import Callable, Sequence

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.key_ranges import SLOT_HASHES, WHOLE, KeyRange, slot_of
from tailrace.storage.file_system import Buffer, FileSystem
from tailrace.storage.keys.batch_slots import BatchSlots
from tailrace.storage.keys.deleted_keys import DeletedKeys
from tailrace.storage.keys.deleted_offsets import DeletedOffsets
from tailrace.storage.keys.key_ends import KeyEnds, Question, StepWork
from tailrace.storage.readable_log import ReadableLog


class LogKeys:
    """The key ends, the key indexes and the note of deleted keys of one log, which are made at their first use."""

    __slots__ = ("_awaited", "_deleted", "_files", "_log", "_made")

    def __init__(self, log: ReadableLog, *, files: FileSystem) -> None:
        self._log = log
        self._files = files
        self._made: KeyEnds | None = None
        self._deleted: DeletedKeys | None = None
        self._awaited = 0

    @property
    def ends(self) -> KeyEnds:
        if self._made is None:
            self._made = KeyEnds(self._log.segments, files=self._files, keeps_files=self._keeps_files)
        return self._made

    @property
    def deleted(self) -> DeletedKeys:
        """The note of the deleted keys. Without key indexes (key.ranges.index=none) there is no note either."""
        if self._deleted is None:
            self._deleted = DeletedKeys(self._log, files=self._files)
        return self._deleted

    @property
    def noted(self) -> DeletedKeys | None:
        """The note of the deleted keys if it is in memory: nearly all logs have none."""
        return None if self._deleted is None or self._deleted.known is None else self._deleted

    @property
    def _keeps_files(self) -> bool:
        return self._log.config.key_ranges_index == "auto"

    def end(self, first_hash: int, last_hash: int, end_offset: int) -> int | None:
        """1 + the last offset below `end_offset` of a record whose key's hash is from `first_hash` to `last_hash`.

        A control batch, and a batch that cannot be read, counts as a record of all hashes. If there is no such record
        in the log, the offset behind the last deleted record. None if the end is not known yet: `index_on` does the
        work.
        Raises StorageError if the log is offline.
        """
        log = self._log
        log.check_online()
        end_offset = min(end_offset, log.log_end_offset)
        question = Question(KeyRange(first_hash, last_hash), end_offset)
        found = self.ends.end_of(question, log_start_offset=log.log_start_offset)
        if found != log.log_start_offset or not self._keeps_files:
            self.note_reader()
            return found
        start, known = self.start(first_hash, last_hash), self.deleted.known
        return None if start is None or known is None else min(max(start, known.unsplit + 1), end_offset, found)

    def start(self, first_hash: int, last_hash: int) -> int | None:
        """The offset from which on no record whose key's hash is from `first_hash` to `last_hash` was deleted.

        At most the log start. None if the start is not known yet: `index_on` does the work. If deletions were not
        noted, at least the end of these deletions. Raises StorageError if the log is offline.
        """
        log = self._log
        log.check_online()
        if not self._keeps_files:
            return log.log_start_offset
        known = self._known_deletions()
        if known is None:
            return None
        return min(known.start_in(slot_of(first_hash), slot_of(last_hash)), log.log_start_offset)

    def ends_behind(self, start: int) -> bool:
        """Whether the end of a range without records is behind its start: a batch that counts for all hashes was
        deleted there."""
        noted = self.noted
        return noted is not None and noted.known is not None and noted.known.unsplit >= start

    def has_lost(self, ranges: Sequence[KeyRange], offset: int) -> bool | None:
        """Whether a record of these ranges is known to have been deleted at this offset or behind it.

        None if that is not known yet: `index_on` does the work. Raises StorageError if the log is offline.
        """
        self._log.check_online()
        if tuple(ranges) == (WHOLE,):
            return offset < self._log.log_start_offset
        if not self._keeps_files:
            return False
        known = self._known_deletions()
        if known is None:
            return None
        for first, last in ranges:
            first_slot, last_slot = -(-first // SLOT_HASHES), (last + 1) // SLOT_HASHES - 1  # the whole slots
            if first_slot <= last_slot and known.last_in(first_slot, last_slot) >= offset:
                return True
        return False

    def _known_deletions(self) -> DeletedOffsets | None:
        """The note, if it reaches up to the log start."""
        log_start_offset = self._log.log_start_offset
        known = self.deleted.begin()
        if known.known_to < log_start_offset:
            self.deleted.examine(self.ends.indexes, log_start_offset, None)
            known = self.deleted.begin()
        return known if known.known_to >= log_start_offset else None

    def note_reader(self) -> None:
        """Note that the log is read by key: from now on it is noted which records are deleted."""
        if self._keeps_files:
            self.deleted.begin()

    def index_on(self, monotonic_ms: Callable[[], int]) -> bool:
        """Work for ends and starts that were not known: 4 MiB of plain records, or 10 ms, and at most one batch more.

        Returns whether there is more to do. Raises StorageError; damage puts the log offline.
        """
        log = self._log
        log.check_online()
        if self._made is None:
            return False
        noted, log_start_offset = self.noted, log.log_start_offset
        try:
            if noted is not None and noted.known is not None and noted.known.known_to < log_start_offset:
                noted.examine(self._made.indexes, log_start_offset, StepWork(monotonic_ms))
                return True
            return self._made.step(
                StepWork(monotonic_ms), log_start_offset=log_start_offset, flushed_offset=log.flushed_offset
            )
        except CorruptRecords as fault:
            raise log.condemned(fault) from fault

    @property
    def left_bytes(self) -> int:
        """The bytes of batches whose keys were not looked at yet, at most; 0 while nothing asks for keys."""
        return 0 if self._made is None or self._log.failure else self._made.indexes.left_bytes

    def next_match(self, slots: int, offset: int, end_offset: int) -> int:
        """An offset up to which, from `offset` on, no batch has a record of these slots, bits of a number.

        At most `end_offset`; `offset` itself if nothing is known. Reads no batch.
        """
        if self._log.failure or not self._log.log_start_offset <= offset < end_offset:
            return offset
        return self.ends.indexes.next_match(slots, offset, end_offset=end_offset)

    def wants(self, offset: int, first_offset: int) -> bool:
        """Whether `note` would take the slots of the batches that end behind `offset`, from `first_offset` on."""
        return not self._log.failure and self._keeps_files and self.ends.indexes.wants(offset, first_offset)

    def note(self, offset: int, slots: BatchSlots) -> None:
        """Take the slots of batches that were read: every batch that ends behind `offset`, up to the last batch."""
        if not self._log.failure and self._keeps_files:
            indexes = self.ends.indexes
            indexes.flushed_offset = self._log.flushed_offset
            indexes.note(offset, slots)

    # The deletion of records

    def removable_to(self, end_offset: int, now_ms: int) -> int:
        """The offset up to which records may be deleted now, at most `end_offset`: they are examined first.

        If that is not enough, `awaits_removal` is true, and `examine_on` does the work.
        """
        self._awaited = 0
        if not self._keeps_files or self.deleted.load() is None:
            return end_offset
        self.deleted.forget_if_old(now_ms)
        if self.deleted.known is None:
            return end_offset
        reached = self.deleted.examine(self.ends.indexes, end_offset, None)
        if reached < end_offset:
            self._awaited = end_offset
        return min(reached, end_offset)

    @property
    def awaits_removal(self) -> bool:
        """Whether records are not deleted before they are examined."""
        return self._awaited > 0

    def examine_on(self, monotonic_ms: Callable[[], int]) -> bool:
        """Examine records that are to be deleted, as much as `index_on` does; returns whether there is more to do."""
        if not self._awaited or self.noted is None or self._log.failure:
            return False
        try:
            return self.deleted.examine(self.ends.indexes, self._awaited, StepWork(monotonic_ms)) < self._awaited
        except (CorruptRecords, StorageError):
            self.deleted.give_up(self._awaited)  # records that cannot be read are deleted nevertheless
            return False

    def note_removal(self, first_offset: int, now_ms: int) -> None:
        """Note that the log begins at this offset from now on, before its older segments are retired."""
        self._awaited = 0
        if self.noted is not None:
            self.noted.note_removal(first_offset, now_ms)

    def take_note(self, of_leader: Buffer) -> None:
        """Take the leader's note of deleted keys. For a follower, before it deletes the same records."""
        if self._keeps_files and not self._log.failure:
            self.deleted.take(of_leader)

    def remove_files(self) -> None:
        """Remove the files, which are not kept any more, and forget what they have."""
        self.ends.indexes.remove_files()
        self.deleted.remove()
        self._made = self._deleted = None

    def forget(self) -> None:
        """Drop the indexes and ends, before the log is cut."""
        self._made = None
        if self._deleted is not None:
            self._deleted.cut()

    def begin_anew(self, offset: int) -> None:
        """Note that the log is empty, and begins at this offset."""
        self.forget()
        if self._keeps_files:
            self.deleted.restart(offset)

    def save(self) -> None:
        """Write the indexes, and the note, that are not on the disk, at a clean close."""
        if self._made is not None:
            self._made.indexes.save()
        if self._deleted is not None:
            self._deleted.save()
