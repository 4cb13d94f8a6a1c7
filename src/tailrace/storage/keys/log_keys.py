"""The keys of one log's records, for readers by key: the ends of their ranges, and the batches without their slots."""

from collections.abc import Callable

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import KeyRange
from tailrace.storage.file_system import FileSystem
from tailrace.storage.keys.batch_slots import BatchSlots
from tailrace.storage.keys.key_ends import KeyEnds, Question, StepWork
from tailrace.storage.readable_log import ReadableLog


class LogKeys:
    """The key ends and key indexes of one log, which are made at their first use."""

    __slots__ = ("_files", "_log", "_made")

    def __init__(self, log: ReadableLog, *, files: FileSystem) -> None:
        self._log = log
        self._files = files
        self._made: KeyEnds | None = None

    @property
    def ends(self) -> KeyEnds:
        if self._made is None:
            self._made = KeyEnds(self._log.segments, files=self._files, keeps_files=self._keeps_files)
        return self._made

    @property
    def _keeps_files(self) -> bool:
        return self._log.config.key_ranges_index == "auto"

    def end(self, first_hash: int, last_hash: int, end_offset: int) -> int | None:
        """1 + the last offset below `end_offset` of a record whose key's hash is from `first_hash` to `last_hash`.

        A control batch, and a batch that cannot be read, counts as a record of all hashes. The log start if there is no
        such record. None if the end is not known yet: `index_on` does the work. Raises StorageError if the log is
        offline.
        """
        log = self._log
        log.check_online()
        question = Question(KeyRange(first_hash, last_hash), min(end_offset, log.log_end_offset))
        return self.ends.end_of(question, log_start_offset=log.log_start_offset)

    def index_on(self, monotonic_ms: Callable[[], int]) -> bool:
        """Work for the ends that `end` did not know: 4 MiB of plain records, or 10 ms, and at most one batch more.

        Returns whether there is more to do. Raises StorageError; damage puts the log offline.
        """
        log = self._log
        log.check_online()
        if self._made is None:
            return False
        try:
            return self._made.step(
                StepWork(monotonic_ms), log_start_offset=log.log_start_offset, flushed_offset=log.flushed_offset
            )
        except CorruptRecords as fault:
            raise log.condemned(fault) from fault

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

    def forget(self) -> None:
        """Drop the indexes and ends, before the log is cut."""
        self._made = None

    def save(self) -> None:
        """Write the indexes that are not on the disk, at a clean close."""
        if self._made is not None:
            self._made.indexes.save()
