"""The leader epochs of a log that is recovered: from their checkpoint file, and from the batches."""

from collections.abc import Iterable
from typing import NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.storage.epoch_cache import EpochCache, EpochEntry
from tailrace.storage.segment_files.segment import Segment


class FoundEpoch(NamedTuple):
    """The first batch of an epoch. Compaction may have removed some before it."""

    epoch: int
    base_offset: int
    previous_end: int
    """The end of the last batch of an earlier epoch: the epoch starts there or later."""


class StoredEpochs:
    """The entries of the checkpoint file, as far as the batches do not contradict them. Used once."""

    def __init__(
        self,
        content: bytes | None,
        segments: list[Segment],
        *,
        is_noted: bool,
        known_end: int,
        log_start_offset: int,
    ) -> None:
        """`content` is that of the file, None without one. `is_noted`: a note vouches for it. Otherwise the file is
        damaged or newer than the note, and must have the epochs of all batches below `known_end`.
        """
        self._segments = segments
        self._log_start_offset = log_start_offset
        cache, self._is_right = EpochCache(), True
        if content is not None:
            try:
                cache = EpochCache.from_bytes(content)
            except CorruptRecords:
                self._is_right = False
        if not is_noted and not self._has_epochs_of_batches(cache, known_end):
            cache, self._is_right = EpochCache(), False
        self._cache = cache  # it knows the entries of the file, and so whether the file is to be written
        self._entries = list(cache.entries)

    def _has_epochs_of_batches(self, cache: EpochCache, end_offset: int) -> bool:
        headers = (header for segment in self._segments for _, header in segment.headers())
        return all(
            cache.epoch_of(header.base_offset) == header.partition_leader_epoch
            for header in headers
            if self._log_start_offset <= header.base_offset < end_offset
        )

    def replace_from(self, checked_offset: int, found: Iterable[FoundEpoch]) -> None:
        """Take the epochs that were found in the batches from this offset on, in place of those of the file."""
        stored = self._entries
        entries = [entry for entry in stored if entry.start_offset < checked_offset]
        for first in found:
            # Where batches are missing, the checkpoint has the start of an epoch, and the batches do not.
            between = (entry for entry in stored if first.previous_end <= entry.start_offset <= first.base_offset)
            # An older epoch that begins at the batch itself was cut off, and the checkpoint not written since.
            entries += [
                entry
                for entry in between
                if entry.epoch == first.epoch or (entry.epoch < first.epoch and entry.start_offset < first.base_offset)
            ]
            entries.append(EpochEntry(first.epoch, first.base_offset))
        self._entries = entries

    def recovered(self, end_offset: int, *, may_lack_first: bool) -> EpochCache:
        """The epochs of the log that ends here; with those of all batches if the first ones may be missing."""
        found, log_start_offset = self._entries, self._log_start_offset
        first_known = found[0].start_offset if found else end_offset
        if not self._is_right or (first_known > log_start_offset and may_lack_first):
            found = [*self._epochs_of_batches(), *found]
        entries: list[EpochEntry] = []
        for entry in found:
            if not entries or (entry.epoch > entries[-1].epoch and entry.start_offset > entries[-1].start_offset):
                entries.append(entry)
        cache = self._cache
        cache.replace(tuple(entries))
        cache.truncate_from_end(end_offset)
        cache.truncate_from_start(log_start_offset)
        return cache

    def _epochs_of_batches(self) -> list[EpochEntry]:
        entries: list[EpochEntry] = []
        for segment in self._segments:
            for _, header in segment.headers():
                if not entries or header.partition_leader_epoch > entries[-1].epoch:
                    entries.append(EpochEntry(header.partition_leader_epoch, header.base_offset))
        return entries
