"""A compaction of a log, in small steps on the thread that owns the log (docs/decisions/0011).

Between two steps the log is appended to, read and flushed as ever. A truncation, or retention that takes a segment,
ends the compaction: `is_over` without `is_complete`. The segments that the compaction has swapped in before stay, since
the log is right after every swap.

The written bytes are synced by the log's flushes, a few MiB at a time, so that no producer waits long for the disk.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from tailrace.model.errors import KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, read_header
from tailrace.protocol.records.control import read_marker
from tailrace.protocol.records.spans import Steps
from tailrace.storage.compaction.batch_filter import BatchFilter, KeyCollector, TransactionEnds
from tailrace.storage.compaction.plan import Cleanable, group_segments
from tailrace.storage.file_system import File, FileSystem
from tailrace.storage.producers.state import ProducerState
from tailrace.storage.segment_files.batch_file import AppendBatch
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits
from tailrace.storage.segment_files.swap import CLEANED_SUFFIX, remove_cleaned
from tailrace.storage.segments import Segments

T = TypeVar("T")

_WRITE_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 4 << 20


class Compaction:
    """Made by `Compactions.begin`. `step` until `is_over`; when `needs_sync`, flush the log first."""

    def __init__(
        self,
        directory: str,
        plan: Cleanable,
        *,
        files: FileSystem,
        segments: Segments,
        limits: SegmentLimits,
        config: TopicConfig,
        producers: ProducerState,
        durable_end: int,
        before_swap: Callable[[int], None],
        on_broken: Callable[[str], None],
        now_ms: int,
        memory_bytes: int,
        ends: TransactionEnds,
    ) -> None:
        """`durable_end`: no record below this offset can be lost or truncated.

        `ends` has the known ends of transactions in the dirty part; the compaction adds the unknown ends.

        `before_swap` gets the offset below which there are gaps from then on; `on_broken` the reason why a swap failed
        half way, so that only recovery can tell which files are there.
        """
        self._directory = directory
        self._plan = plan
        self._files = files
        self._segments = segments
        self._limits = limits
        self._config = config
        self._producers = producers
        self._durable_end = durable_end
        self._before_swap = before_swap
        self._on_broken = on_broken
        self._now_ms = now_ms
        if ends.end_offset < plan.end_offset:
            ends.go_on()
        self._collected = KeyCollector(plan.first_dirty_offset, memory_bytes=memory_bytes, ends=ends)
        self._cleaned: Segment | None = None
        self._work = self._run()
        self.unsynced_files: tuple[File, ...] = ()
        """The files and names that the log's next flush has to sync for this compaction."""
        self.is_over = False
        self.is_complete = False
        """Whether everything below `end_offset` is clean."""
        self.bytes_read = 0
        self.bytes_written = 0
        self.swaps = 0

    @property
    def end_offset(self) -> int:
        """The end of the part that a complete compaction has cleaned; lower than planned if memory did not suffice."""
        return self._collected.end_offset

    @property
    def planned(self) -> tuple[int, int]:
        """The first and the end offset of the part that was to be made clean."""
        return self._plan.first_dirty_offset, self._plan.end_offset

    @property
    def known_ends(self) -> TransactionEnds | None:
        """The transactions that the next compaction has to know, if this compaction has left a part of its plan."""
        ends, planned = self._collected.ends, self._plan.end_offset
        is_cut_short = self.is_complete and self.end_offset < planned
        return ends if is_cut_short and ends.end_offset >= planned else None

    @property
    def needs_sync(self) -> bool:
        """Whether nothing more can be done before a flush of the log that begins now."""
        return bool(self.unsynced_files)

    def mark_synced(self, files: Collection[File]) -> None:
        """Note that these files are durable. For the log, at the end of a flush."""
        if self.unsynced_files and all(file in files for file in self.unsynced_files):
            if self._cleaned is not None:
                self._cleaned.mark_synced(files)
            self.unsynced_files = ()

    def step(self, max_bytes: int) -> int:
        """Read about this many bytes further; returns the number of bytes read. Makes one swap at most, and ends after
        one step within a batch of many records.

        Raises StorageError or CorruptRecords, and the compaction is over; the log is as good as before.
        """
        done = 0
        try:
            while done < max_bytes and not self.is_over and not self.needs_sync:
                read_bytes = next(self._work)
                done += read_bytes
                if not read_bytes:
                    break
        except StopIteration:
            self.is_over = self.is_complete = True
        except KafkaError:
            self.abort()
            raise
        return done

    def abort(self) -> None:
        """Give up. Segments that were not swapped in are removed, here or by recovery."""
        if self.is_over:
            return
        self.is_over = True
        self.unsynced_files = ()
        self._drop_cleaned()

    def _drop_cleaned(self) -> None:
        cleaned, self._cleaned = self._cleaned, None
        if cleaned is None:
            return
        try:
            cleaned.close()
            remove_cleaned(self._files, self._directory, cleaned.base_offset)
        except StorageError:
            pass  # a recovery removes the files: a log does not use these names

    def _run(self) -> Iterator[int]:
        yield from self._collect_keys()
        end_offset = self._collected.end_offset
        if end_offset <= self._plan.first_dirty_offset:
            return  # every record would stay as the last compaction has left it
        sources = [
            segment for segment in self._segments.all[: self._plan.segment_count] if segment.base_offset < end_offset
        ]
        filter_ = BatchFilter(
            self._collected,
            is_last_of_producer=self._is_last_of_producer,
            now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
        )
        following = self._segments.all[len(sources)].base_offset
        last_source = max((segment.base_offset for segment in sources if segment.size_bytes), default=-1)
        counts = group_segments(
            sources, end_offset=following, config=self._config, max_index_entries=self._limits.time_index_entries
        )
        for count in counts:
            group, sources = sources[:count], sources[count:]
            yield from self._rewrite(group, filter_, last_source)

    def _collect_keys(self) -> Iterator[int]:
        """Collect the last offset of every key of the dirty part."""
        collected, plan = self._collected, self._plan
        segments = self._segments.all[: plan.segment_count]
        for at, segment in enumerate(segments):
            end_offset = segments[at + 1].base_offset if at + 1 < len(segments) else plan.end_offset
            if end_offset <= plan.first_dirty_offset:
                continue
            for position, buffer, header in segment.batches():
                if header.last_offset >= plan.first_dirty_offset:
                    if header.is_transactional and collected.ends.end_offset < plan.end_offset:
                        yield from self._learn_ends(segments[at:], position)
                    if collected.is_full:
                        return
                    yield from _within(collected.add(buffer, header))
                yield self._note_read(header)
            collected.skip_to(end_offset)

    def _learn_ends(self, segments: Sequence[Segment], position: int) -> Iterator[int]:
        """Learn the ends of transactions from headers and markers, from this position in the first of these segments
        on.

        The part that an earlier compaction has read is skipped: no end before this position is new.
        """
        ends = self._collected.ends
        known = bisect_right(segments, ends.end_offset, key=attrgetter("base_offset")) - 1
        if known > 0:
            segments, position = segments[known:], 0
        for segment in segments:
            for at, header in segment.headers(position):
                if header.is_transactional and header.records_count and header.base_offset >= ends.end_offset:
                    content = segment.file.pread(header.size_bytes, at) if header.is_control else b""
                    marker = read_marker(content, header)
                    ends.add(header, None if marker is None else marker.type)
                yield self._note_read(header)
            position = 0
        ends.end_at(self._plan.end_offset)

    def _note_read(self, header: BatchHeader) -> int:
        self.bytes_read += header.size_bytes
        return header.size_bytes

    def _rewrite(self, group: Sequence[Segment], filter_: BatchFilter, last_source: int) -> Iterator[int]:
        """Make one segment of the segments of `group`, and swap the new segment in unless nothing changed.

        The last batch of the segment at `last_source` is the last batch of the whole rewritten part. This batch stays,
        without records if need be: if no batch follows the rewritten part, a reader would otherwise wait for ever at
        offsets that no batch has.
        """
        size_bytes = sum(segment.size_bytes for segment in group)
        if self._files.free_bytes(self._directory) < size_bytes:
            raise StorageError(
                f"{self._directory}: no space for another {size_bytes} bytes while segments are compacted"
            )
        cleaned = self._cleaned = Segment(
            self._directory,
            group[0].base_offset,
            files=self._files,
            limits=self._limits,
            create=True,
            suffix=CLEANED_SUFFIX,
        )
        cleaned.start_indexes()
        is_changed = len(group) > 1
        waiting: list[AppendBatch] = []
        waiting_bytes = unsynced_bytes = 0
        for segment in group:
            for position, buffer, header in segment.batches():
                is_last = segment.base_offset == last_source and position + header.size_bytes == segment.size_bytes
                stored = yield from _within(filter_.rewrite(buffer, header, keep_header=is_last))
                is_changed = is_changed or stored is not buffer
                if stored is not None:
                    waiting.append(AppendBatch(stored, header if stored is buffer else read_header(stored)))
                    waiting_bytes += len(stored)
                if waiting_bytes >= _WRITE_BYTES:
                    self._write(waiting)
                    unsynced_bytes, waiting_bytes = unsynced_bytes + waiting_bytes, 0
                if unsynced_bytes >= _SYNC_BYTES:
                    self.unsynced_files, unsynced_bytes = (cleaned.file,), 0
                yield self._note_read(header)
        self._write(waiting)
        for segment in group:
            for aborted in self._segments.aborted_of(segment):
                if filter_.is_needed(aborted.last_offset):
                    cleaned.aborted.append(aborted)
        filter_.needed_markers.clear()
        if is_changed:
            yield from self._swap(cleaned, len(group))
        self._drop_cleaned()

    def _write(self, batches: list[AppendBatch]) -> None:
        assert self._cleaned is not None
        if batches:
            size_bytes = self._cleaned.size_bytes
            self._cleaned.append(batches)
            self.bytes_written += self._cleaned.size_bytes - size_bytes
            batches.clear()

    def _swap(self, cleaned: Segment, count: int) -> Iterator[int]:
        cleaned.write_indexes()
        self.unsynced_files = cleaned.unsynced_files
        while self.unsynced_files:
            yield 0
        segments = self._segments
        following = segments.all[segments.index_of(cleaned.base_offset) + count]
        self._before_swap(following.base_offset)
        cleaned.close()
        self._cleaned = None
        try:
            segments.swap(cleaned.base_offset, count)
        except StorageError as fault:
            self._on_broken(f"a compacted segment could not be put in place: {fault.detail}")
            raise
        self.swaps += 1

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether this batch has the last durable sequence number of its producer."""
        entry = self._producers.producers.get(header.producer_id)
        if entry is None:
            return False  # the log has forgotten a silent producer
        if not entry.batches:
            return header.is_control and header.producer_epoch == entry.producer_epoch
        durable = [batch.last_offset for batch in entry.batches if batch.last_offset < self._durable_end]
        # A later batch that a power cut or a new leader may remove does not count: without that batch, this batch is
        # the last again.
        return not durable or header.last_offset == durable[-1]


def _within(steps: Steps[T]) -> Generator[int, None, T]:
    """The steps within a batch, which read no bytes of the log."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield 0
