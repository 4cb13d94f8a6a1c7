"""The leader epochs of a log that is recovered: from their checkpoint file, and from the batches."""

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.model.checksum import crc32c
from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.batch import BatchHeader
from tailrace.storage.checkpoints import LEADER_EPOCHS
from tailrace.storage.epoch_cache import UNDEFINED, EpochCache, EpochEntry
from tailrace.storage.segment_files.segment import Segment


class FoundEpoch(NamedTuple):
    """The first remaining batch of an epoch: compaction may have removed earlier batches."""

    epoch: int
    base_offset: int
    previous_end: int
    """The end of the last batch of an earlier epoch: the epoch starts there or later."""


class RecoveredEpochs:
    """The epochs of a log: the entries of its checkpoint file, unless the batches contradict them."""

    def __init__(self, latest: int | None) -> None:
        """`latest` is the partition's epoch in the metadata, None: not known."""
        self._latest = latest
        self.content: bytes | None = None
        """The bytes of the file; None without a file."""
        self._known: EpochCache | None = None
        self._is_noted = True
        self.found: list[FoundEpoch] = []
        """The epochs of the batches that were checked."""

    def compare(self, noted_crc: int | None) -> None:
        """Compare the file with the checksum in the note of the flushed end; None if the note has no checksum.

        If the file differs, either the file is wrong (its format has no checksum) or a batch.
        """
        if self.content is None or noted_crc is None:
            return
        self._is_noted = crc32c(self.content) == noted_crc
        if self._is_noted:
            try:
                self._known = EpochCache.from_bytes(self.content)
            except CorruptRecords:
                self._known = None

    def check(self, header: BatchHeader, *, durable_end: int) -> None:
        """Raise CorruptRecords for a batch with a wrong leader epoch, which no checksum covers."""
        epoch = header.partition_leader_epoch
        if self._latest is not None and epoch > self._latest:
            raise CorruptRecords(f"leader epoch {epoch} has not begun; the partition's is {self._latest}")
        if self._known is None or header.base_offset >= durable_end:
            return  # an epoch is durable with its first batch, not before
        expected = self._known.epoch_of(header.base_offset)
        if expected not in (epoch, UNDEFINED.epoch):
            raise CorruptRecords(f"leader epoch {epoch} where {LEADER_EPOCHS} says {expected}")

    def settle(
        self,
        segments: Sequence[Segment],
        checked_from: int,
        *,
        known_end: int,
        log_start_offset: int,
        log_end_offset: int,
        may_lack_first: bool,
    ) -> EpochCache:
        """The epochs of the log: from the batches of the segment with index `checked_from` and of later segments, and
        from the file for earlier segments.

        A file that no note vouches for must have the epochs of all batches below `known_end`. `may_lack_first`: the
        first epochs may be missing in the file.
        """
        cache, is_right = EpochCache(), True
        if self.content is not None:
            try:
                cache = EpochCache.from_bytes(self.content)
            except CorruptRecords:
                is_right = False
        if not self._is_noted and not _has_epochs_of(cache, segments, log_start_offset, known_end):
            cache, is_right = EpochCache(), False
        found = list(cache.entries)
        if checked_from < len(segments):
            found = self._with_found(cache.entries, segments[checked_from].base_offset)
        first_known = found[0].start_offset if found else log_end_offset
        if not is_right or (first_known > log_start_offset and may_lack_first):
            found = [*_epochs_of_batches(segments), *found]
        entries: list[EpochEntry] = []
        for entry in found:
            if not entries or (entry.epoch > entries[-1].epoch and entry.start_offset > entries[-1].start_offset):
                entries.append(entry)
        cache.replace(tuple(entries))
        cache.truncate_from_end(log_end_offset)
        cache.truncate_from_start(log_start_offset)
        return cache

    def _with_found(self, stored: Sequence[EpochEntry], checked_offset: int) -> list[EpochEntry]:
        """The entries of the file below this offset, and from there on the entries found in the batches."""
        entries = [entry for entry in stored if entry.start_offset < checked_offset]
        for first in self.found:
            # Where batches are missing, the checkpoint has the start of an epoch, and the batches do not.
            between = (entry for entry in stored if first.previous_end <= entry.start_offset <= first.base_offset)
            # An entry of an older epoch that begins at the batch itself is of batches that were cut off, and the
            # checkpoint was not written since.
            entries += [
                entry
                for entry in between
                if entry.epoch == first.epoch or (entry.epoch < first.epoch and entry.start_offset < first.base_offset)
            ]
            entries.append(EpochEntry(first.epoch, first.base_offset))
        return entries


def _has_epochs_of(cache: EpochCache, segments: Sequence[Segment], log_start_offset: int, end_offset: int) -> bool:
    """Whether the entries are the epochs of all readable batches below `end_offset`."""
    headers = (header for segment in segments for _, header in segment.headers())
    return all(
        cache.epoch_of(header.base_offset) == header.partition_leader_epoch
        for header in headers
        if log_start_offset <= header.base_offset < end_offset
    )


def _epochs_of_batches(segments: Sequence[Segment]) -> list[EpochEntry]:
    entries: list[EpochEntry] = []
    for segment in segments:
        for _, header in segment.headers():
            if not entries or header.partition_leader_epoch > entries[-1].epoch:
                entries.append(EpochEntry(header.partition_leader_epoch, header.base_offset))
    return entries
