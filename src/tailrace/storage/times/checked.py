"""The offset from which on the headers of a log's batches are known to agree with their records (decision 0069).

A leader compares each produced batch with its records before it stores it (`replication.admission`), and vouches for it
to its followers. Batches of an older release, of a directory that another program has filled, and of a leader that
does not vouch were not compared. The offset is kept in the note of the flushed end, which each log has from its first
flush on; without it, all that was there when the log was opened counts as not compared.
"""

from typing import Final

from tailrace.model.errors import StorageError
from tailrace.storage.epoch_cache import LAST_OFFSET
from tailrace.storage.flushed_note import FlushedNote
from tailrace.storage.segment_limits import SegmentLimits

UNCHECKED: Final = LAST_OFFSET
"""In place of the offset: no batch is known to have been checked."""


class CheckedHeaders:
    """The offset of one log, which its segments see in their limits."""

    __slots__ = ("_end_at_open", "_limits", "_note")

    def __init__(self, note: FlushedNote, limits: SegmentLimits, *, end_at_open: int) -> None:
        self._note = note
        self._limits = limits
        self._end_at_open = end_at_open

    def settle(self) -> None:
        """Read the note, once, at the first use: a node that starts reads none of 100,000 notes.

        One that cannot be read says nothing.
        """
        if not self._limits.has_read_note:
            try:
                noted = self._note.read_checked_from()
            except StorageError:
                noted = None
            self._set(self._end_at_open if noted is None else min(noted, self._end_at_open))
            self._limits.has_read_note = True

    def append(self, first_offset: int, vouched_from: int) -> None:
        """Batches from the first offset on are about to be appended; their sender vouches for those from the other on.

        Raises StorageError.
        """
        checked_from = self._limits.checked_from
        if vouched_from > first_offset:
            if checked_from != UNCHECKED:
                self._note.doubt()
                self._limits.checked_from = UNCHECKED
        elif checked_from > first_offset:
            self._set(first_offset)

    def _set(self, offset: int) -> None:
        self._limits.checked_from = self._note.checked_from = offset
