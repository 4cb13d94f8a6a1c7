"""The key indexes of one log's segments: in memory, and in their files (KIP-X).

Indexes of the few last used segments are in memory with their entries, other indexes with their last offsets alone (2
KiB). A file is written when its segment is sealed, indexed whole, and flushed; the active segment's file at a clean
close. A file is not synced: a torn file has the wrong checksum. A file is removed with its segment, and before the
segment is cut or replaced. So a present file agrees with the batches, or the last batch shows that another program has
changed the segment.
"""

from contextlib import suppress
from typing import Final

from tailrace.model.errors import StorageError
from tailrace.protocol.records.batch import HEADER_SIZE
from tailrace.storage.file_system import FileSystem, append_all
from tailrace.storage.keys.batch_slots import BatchSlots
from tailrace.storage.keys.key_index import HEAD_SIZE, KeyIndex
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segments import Segments

MAX_LOADED: Final = 4
"""Sealed segments whose entries are in memory."""
MOST_ENTRIES: Final = 4_096
"""The entries that are passed over in one go, in about a millisecond."""
_MOST_INTERVAL_BYTES: Final = 16 << 10
"""The longest interval of an index, since all batches of an entry are searched at once."""


class KeyIndexes:
    """The key indexes of one log. A truncation of the log forgets the object."""

    __slots__ = (
        "_active",
        "_changes",
        "_files",
        "_indexes",
        "_keeps_files",
        "_loaded",
        "_segments",
        "flushed_offset",
    )

    def __init__(self, segments: Segments, *, files: FileSystem, keeps_files: bool) -> None:
        self._segments = segments
        self._files = files
        self._keeps_files = keeps_files
        self._indexes: dict[Segment, KeyIndex | None] = {}
        """The index of each segment; None if there is no file, and nothing is known."""
        self._loaded: list[Segment] = []
        """The sealed segments with entries in memory, in the order of their use."""
        self._active = segments.active
        self._changes = segments.changes
        self.flushed_offset = 0
        """Only segments that end at this offset or before get a file. The owner sets the offset."""

    def next_match(self, slots: int, offset: int, *, end_offset: int) -> int:
        """An offset, at most `end_offset`, below which no batch from `offset` on has any of these slots.

        `slots` are bits of a number. Returns `offset` itself if nothing is known.
        """
        self.forget_removed()
        segment = self.holder_of(offset)
        index = self.find(segment)
        if index is None or not index.start_offset <= offset < index.end_offset:
            return offset
        if not index.has_entries and not (index.is_saved and self.load_entries(segment, index)):
            return offset
        self.use(segment)
        return min(index.next_with(slots, offset, most=MOST_ENTRIES), max(end_offset, offset))

    def wants(self, offset: int, first_offset: int) -> bool:
        """Whether an index goes on with the batches that end behind `offset`, from the batch at `first_offset` on."""
        self.forget_removed()
        segment = self.holder_of(first_offset)
        index = self.find(segment)
        if index is None or not index.end_position:
            return offset <= segment.base_offset
        return index.end_offset == offset

    def note(self, offset: int, slots: BatchSlots) -> None:
        """Take the slots of batches that were read: every batch that ends behind this offset, up to the last batch.
        Does nothing if the index of their segment goes on at another offset, or if the batches are in several segments.
        """
        first, last = slots.headers[0], slots.headers[-1]
        if not self.wants(offset, first.base_offset):
            return
        segment = self.holder_of(first.base_offset)
        if segment is not self.holder_of(last.base_offset):
            return
        index = self.find(segment)
        if index is None:
            index = self.begin(segment, 0, segment.base_offset)
        if first.base_offset < index.end_offset or index.end_position + sum(slots.sizes) > segment.size_bytes:
            return
        if not index.has_entries and not (index.is_saved and self.load_entries(segment, index)):
            return
        index.append(slots)
        self.use(segment)
        self.save_sealed()

    @property
    def left_bytes(self) -> int:
        """The bytes of batches that are in no index in memory. An index file that was not read yet may have some of
        them."""
        self.forget_removed()
        left = 0
        for segment in self._segments.all:
            index = self._indexes.get(segment)
            left += segment.size_bytes - (0 if index is None else index.end_position - index.start_position)
        return left

    def save(self) -> None:
        """Write the files of all segments that are indexed whole. For a clean close: every batch is flushed."""
        for segment in (*self._loaded, self._segments.active):
            self._save(segment)

    def remove_files(self) -> None:
        """Remove the files, which are not kept any more."""
        for segment in self._segments.all:
            self._discard(segment)

    def holder_of(self, offset: int) -> Segment:
        """The segment that holds this offset."""
        return self._segments.all[self._segments.index_of(offset)]

    def knows(self, segment: Segment) -> bool:
        """Whether `find` needs no file."""
        return segment in self._indexes

    def find(self, segment: Segment) -> KeyIndex | None:
        """The index of a segment, perhaps without entries; None if nothing is known."""
        if segment in self._indexes:
            return self._indexes[segment]
        index = self._load_head(segment) if self._keeps_files else None
        self._indexes[segment] = index
        return index

    def begin(self, segment: Segment, position: int, end_offset: int) -> KeyIndex:
        """Begin an index anew at this position, before which all batches begin below `end_offset`."""
        index = self._indexes[segment] = new_index(segment, position, end_offset)
        return index

    def _load_head(self, segment: Segment) -> KeyIndex | None:
        path = segment.key_index_path
        if not self._files.exists(path):
            return None
        try:
            file = self._files.open(path)
            size_bytes, head = file.size_bytes(), file.pread(HEAD_SIZE, 0)
            file.close()
            index = KeyIndex.from_head(head, base_offset=segment.base_offset, interval_bytes=_interval_of(segment))
            if index is not None and index.file_bytes == size_bytes and index.end_position <= segment.size_bytes:
                position, header = index.last_batch
                if segment.file.pread(HEADER_SIZE, position) == header:
                    return index
        except StorageError:
            return None
        self._discard(segment)
        return None

    def load_entries(self, segment: Segment, index: KeyIndex) -> bool:
        """Load the entries into memory. Returns False if they cannot be loaded: then nothing is known of the segment
        any more."""
        if index.is_saved:
            try:
                data = self._files.read_bytes(segment.key_index_path)
            except StorageError:
                data = b""
            if index.take_entries(memoryview(data)[HEAD_SIZE:]):
                return True
            self._discard(segment)
        self._indexes[segment] = None
        return False

    def use(self, segment: Segment) -> None:
        """Keep the entries of this segment in memory; beyond the limit, drop the entries that were used longest ago."""
        loaded = self._loaded
        if segment is self._segments.active or (loaded and loaded[-1] is segment):
            return
        if segment in loaded:
            loaded.remove(segment)
        loaded.append(segment)
        while len(loaded) > MAX_LOADED:
            self._evict(loaded.pop(0))

    def _evict(self, segment: Segment) -> None:
        index = self._indexes.get(segment)
        if index is None:
            return
        if not index.start_position and index.end_position == segment.size_bytes:
            if self._is_flushed(segment):
                self._save(segment)
            index.drop_entries()
        else:
            del self._indexes[segment]

    def forget_removed(self) -> None:
        """Forget segments that the log does not have any more."""
        segments = self._segments
        if self._active is not segments.active:
            previous, self._active = self._active, segments.active
            if self._indexes.get(previous) is not None:
                self.use(previous)  # the segment was sealed
        if self._changes != segments.changes:
            self._changes = segments.changes
            present = set(segments.all)
            self._indexes = {segment: index for segment, index in self._indexes.items() if segment in present}
            self._loaded = [segment for segment in self._loaded if segment in present]

    def save_sealed(self) -> None:
        """Write the file of one sealed segment that is flushed and indexed whole."""
        for segment in self._loaded:
            if self._is_flushed(segment) and self._save(segment):
                return

    def _is_flushed(self, segment: Segment) -> bool:
        index = self._indexes.get(segment)
        return index is not None and index.end_offset <= self.flushed_offset

    def _save(self, segment: Segment) -> bool:
        """Write the file, if the segment is indexed whole and the file is missing or old. Returns whether a write was
        tried."""
        index = self._indexes.get(segment)
        if index is None or index.is_saved or not index.has_entries or not self._keeps_files:
            return False
        if index.start_position or not len(index) or index.end_position != segment.size_bytes:
            return False
        try:
            file = self._files.open(segment.key_index_path, create=True)
            append_all(file, index.to_bytes())
            file.close()
            index.is_saved = True
        except StorageError:  # the file is a cache, and the disk may be full
            self._discard(segment)
        return True

    def _discard(self, segment: Segment) -> None:
        with suppress(StorageError):
            if self._files.exists(segment.key_index_path):
                self._files.unlink(segment.key_index_path)


def _interval_of(segment: Segment) -> int:
    return min(segment.limits.index_interval_bytes, _MOST_INTERVAL_BYTES)


def new_index(segment: Segment, position: int, end_offset: int) -> KeyIndex:
    """An index of no batch yet; see `KeyIndex`."""
    return KeyIndex(segment.base_offset, position=position, end_offset=end_offset, interval_bytes=_interval_of(segment))
