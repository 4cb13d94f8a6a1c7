"""Splits by key of batches that are too large for one turn of the event loop (KIP-X; decision 0054). Pure.

A large batch is unpacked and split in steps: each fetch that needs the batch takes some steps, until the time of the
fetch is over, and is answered without records; then the reader fetches again. Few splits are under way at once, since
each keeps its batch in plain form. A split that no fetch continues makes room for other splits.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Final

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import SLOT_HASHES, KeyRange, slot_of
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader, set_end_offset
from tailrace.protocol.records.compression import MAX_DECOMPRESSED, decompress_in_steps
from tailrace.protocol.records.kernels import SteppedSplit
from tailrace.protocol.records.split import Split
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.server.fetch.key_splits import Ranges
from tailrace.server.ports import Clock
from tailrace.storage.keys.batch_slots import IS_COMPILED

MOST_RUNNING: Final = 2
"""The most splits under way at once: each has up to 128 MiB of plain records, and as many bytes of parts."""
IDLE_MS: Final = 5_000
"""The time after which a split that no fetch continues is given up."""
STEP_BYTES: Final = 1 << 20
"""Plain bytes of a step."""
STEP_RECORDS: Final = 10_000 if IS_COMPILED else 500


class LargeSplit:
    """A batch that is being split."""

    __slots__ = ("header", "key", "readers", "steps", "stored", "used_ms")

    def __init__(self, key: Hashable, stored: Buffer, header: BatchHeader, readers: Sequence[Ranges]) -> None:
        self.key = key
        self.stored = stored
        self.header = header
        self.readers = [ranges for ranges in readers if all(map(_is_aligned, ranges))]
        """The readers whose ranges have whole slots."""
        self.steps = _steps(stored, header, self.readers)
        """The steps, whose result is the split for these readers; each part ends with its last record."""
        self.used_ms = 0
        """The time of the last fetch that needs the split."""

    def has(self, key: Hashable, offset: int) -> bool:
        """Whether this is the batch with the offset, of the partition with the key."""
        return self.key == key and self.header.base_offset <= offset < self.header.end_offset


class LargeSplits:
    """The splits of a broker that are under way.

    The key of a partition changes when its log is cut or made anew (`key_reads.key_of`).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: list[LargeSplit] = []
        self._waiting: dict[Partition, None] = {}
        """The partitions with a batch that waits for room."""

    def __len__(self) -> int:
        return len(self._running)

    def find(self, key: Hashable, offset: int) -> LargeSplit | None:
        """The split of the batch with this offset."""
        return next((large for large in self._running if large.has(key, offset)), None)

    @property
    def has_room(self) -> bool:
        """Whether another split may begin."""
        return len(self._running) < MOST_RUNNING

    def begin(self, key: Hashable, stored: Buffer, header: BatchHeader, readers: Sequence[Ranges]) -> LargeSplit:
        """Begin the split of this batch for these readers."""
        if not self._running:
            self._look_later()
        begun = LargeSplit(key, stored, header, readers)
        self._running.append(begun)
        return begun

    def go_on(self, large: LargeSplit, is_over: Callable[[], bool]) -> Split | None:
        """Take a step, and more steps until the time is over. Returns the split after the last step, else None.

        Raises CorruptRecords if the batch is not as its header says, or unfolds to too much.
        """
        large.used_ms = self._clock.monotonic_ms()
        try:
            while True:
                next(large.steps)
                if is_over():
                    return None
        except StopIteration as end:
            self._leave([large])
            split: Split = end.value
            return split
        except CorruptRecords:
            self._leave([large])
            raise

    def wait(self, partition: Partition) -> None:
        """Notify the partition's watchers when there is room, for a pending read of the partition."""
        self._waiting[partition] = None

    def _leave(self, gone: list[LargeSplit]) -> None:
        self._running = [large for large in self._running if large not in gone]
        waiting, self._waiting = self._waiting, {}
        for partition in waiting:
            partition.notify(Change.AVAILABLE)

    def _look_later(self) -> None:
        self._clock.call_at(self._clock.monotonic_ms() + IDLE_MS, self._drop_idle)

    def _drop_idle(self) -> None:
        """Give up the splits that no fetch continues, and free their memory."""
        oldest_ms = self._clock.monotonic_ms() - IDLE_MS
        idle = [large for large in self._running if large.used_ms <= oldest_ms]
        if idle:
            self._leave(idle)
        if self._running:
            self._look_later()


def _is_aligned(key_range: KeyRange) -> bool:
    """Whether the range has whole slots."""
    return key_range.first % SLOT_HASHES == 0 and (key_range.last + 1) % SLOT_HASHES == 0


def _steps(stored: Buffer, header: BatchHeader, readers: Sequence[Ranges]) -> Generator[object, None, Split]:
    """The split of the batch, with a pause after each step."""
    plain: Buffer | None = None
    if header.codec and not header.is_control:
        section = memoryview(stored)[HEADER_SIZE:]
        plain = yield from decompress_in_steps(header.codec, section, max_bytes=MAX_DECOMPRESSED, step_bytes=STEP_BYTES)
    records = SteppedSplit(stored, plain, readers)
    size_bytes = len(stored if plain is None else plain)
    count = min(STEP_RECORDS, max(1, header.records_count * STEP_BYTES // size_bytes)) if size_bytes else 1
    while not records.step(count):
        yield None
    split = records.result()
    if not header.is_control:
        for place, (part, ranges) in enumerate(zip(split.parts, readers, strict=True)):
            if part:
                split.ends[place] = 1 + max(_last_offset(split, key_range) for key_range in ranges)
                set_end_offset(memoryview(part), split.ends[place])
    return split


def _last_offset(split: Split, key_range: KeyRange) -> int:
    return max(split.last_offsets[slot_of(key_range.first) : slot_of(key_range.last) + 1])
