"""Leader epochs of offsets: leader epoch -> start offset (KIP-101, KIP-279).

Invariants: epochs and start offsets both rise strictly from entry to entry; no entry starts at or after the log's end
except the last entry, which the leader of that epoch made when it was elected.

The cache is in memory. The log writes `to_bytes` into `leader-epoch-checkpoint` while `is_dirty`, at the
latest before the offsets of a new epoch count as flushed; missing entries above the recovery point are found in the
batches by recovery.
"""

from bisect import bisect_right
from operator import attrgetter
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import OffsetAndEpoch

UNDEFINED: Final = OffsetAndEpoch(-1, LeaderEpoch(-1))
"""The answer for an unknown epoch."""

LAST_OFFSET: Final = 2**63 - 1

_START_OFFSET = attrgetter("start_offset")
_MOST_DIGITS: Final = 19
"""Digits of a 64-bit number."""


class EpochEntry(NamedTuple):
    """The first offset that was, or will be, written in this epoch."""

    epoch: int
    start_offset: int


class EpochCache:
    """The epochs of one log, oldest first."""

    __slots__ = ("_entries", "_written", "latest_epoch")

    def __init__(self, entries: tuple[EpochEntry, ...] = ()) -> None:
        self._entries = entries
        self.latest_epoch = entries[-1].epoch if entries else -1
        """The epoch of the last entry, -1 for none."""
        self._written: tuple[EpochEntry, ...] | None = entries
        """The entries in the checkpoint file as last written; None: not known."""

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return self._entries

    @property
    def is_dirty(self) -> bool:
        """Whether the entries differ from the checkpoint file as it was last written.

        An epoch in which nothing was written comes and goes again: thousands of logs that change their leader and back
        need no sync.
        """
        return self._entries is not self._written and self._entries != self._written

    @is_dirty.setter
    def is_dirty(self, value: bool) -> None:
        self._written = None if value else self._entries

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let `epoch` begin at `start_offset`; a leader does so when elected, a log when it meets a new epoch.

        Nothing happens for the latest epoch at a later offset. Entries that contradict the new entry are dropped.
        """
        if self._entries:
            last = self._entries[-1]
            if epoch == last.epoch and start_offset >= last.start_offset:
                return
        kept = tuple(entry for entry in self._entries if entry.epoch < epoch and entry.start_offset < start_offset)
        self.replace((*kept, EpochEntry(epoch, start_offset)))

    def end_offset_for(self, epoch: int, *, log_end_offset: int) -> OffsetAndEpoch:
        """The largest epoch <= `epoch` in this log and its end offset (exclusive), as OffsetForLeaderEpoch answers.

        UNDEFINED for an epoch after the latest epoch; the requested epoch and the log's first epoch start for an epoch
        before the first epoch.
        """
        entries = self._entries
        if not entries or epoch < 0 or epoch > entries[-1].epoch:
            return UNDEFINED
        if epoch == entries[-1].epoch:
            return OffsetAndEpoch(log_end_offset, LeaderEpoch(epoch))
        if epoch < entries[0].epoch:
            return OffsetAndEpoch(entries[0].start_offset, LeaderEpoch(epoch))
        at = max(i for i, entry in enumerate(entries) if entry.epoch <= epoch)
        return OffsetAndEpoch(entries[at + 1].start_offset, LeaderEpoch(entries[at].epoch))

    def epoch_of(self, offset: int) -> int:
        """The epoch in which this offset was written, -1 if it lies before all entries."""
        return max((entry.epoch for entry in self._entries if entry.start_offset <= offset), default=-1)

    def range_of(self, offset: int) -> tuple[int, int]:
        """The epoch of this offset, -1 if it lies before all entries, and the start offset of the next epoch."""
        entries = self._entries
        if entries and offset >= entries[-1].start_offset:
            return entries[-1].epoch, LAST_OFFSET
        at = bisect_right(entries, offset, key=_START_OFFSET)
        return entries[at - 1].epoch if at else -1, entries[at].start_offset if entries else LAST_OFFSET

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that start at or after the new end of the log."""
        if self._entries and self._entries[-1].start_offset >= end_offset:
            self.replace(tuple(entry for entry in self._entries if entry.start_offset < end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end at or before the new start of the log; the epoch of the new start now begins at the
        new start."""
        entries = self._entries
        if not entries or entries[0].start_offset >= start_offset:
            return
        first = max(i for i, entry in enumerate(entries) if entry.start_offset <= start_offset)
        self.replace((EpochEntry(entries[first].epoch, start_offset), *entries[first + 1 :]))

    def replace(self, entries: tuple[EpochEntry, ...]) -> None:
        """Take these entries instead, for example the entries from before a failed append."""
        if entries != self._entries:
            self._entries = entries
            self.latest_epoch = entries[-1].epoch if entries else -1

    def to_bytes(self) -> bytes:
        """Kafka's `leader-epoch-checkpoint`: version 0, the count, then a line per entry."""
        lines = ["0", str(len(self._entries)), *(f"{epoch} {start}" for epoch, start in self._entries)]
        return ("\n".join(lines) + "\n").encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> "EpochCache":
        """The cache that `to_bytes` wrote. Raises CorruptRecords that says which line is wrong."""
        lines = data.decode("ascii", "replace").splitlines()
        if len(lines) < 2 or lines[0] != "0" or not _is_number(lines[1]) or len(lines) != 2 + int(lines[1]):
            raise CorruptRecords("not a leader epoch checkpoint: version 0, a count and that many lines were expected")
        entries: list[EpochEntry] = []
        for number, line in enumerate(lines[2:], start=3):
            words = line.split()
            if len(words) != 2 or not all(map(_is_number, words)):
                raise CorruptRecords(f"line {number} of a leader epoch checkpoint is {line!r}, not an epoch and offset")
            entry = EpochEntry(int(words[0]), int(words[1]))
            if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset <= entries[-1].start_offset):
                raise CorruptRecords(f"line {number} of a leader epoch checkpoint does not rise above the one before")
            entries.append(entry)
        return cls(tuple(entries))


def _is_number(word: str) -> bool:
    """Whether the word is an offset's digits; `int` refuses a damaged file's thousands of digits in its own way."""
    return word.isdecimal() and len(word) <= _MOST_DIGITS
