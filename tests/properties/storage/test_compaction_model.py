"""A compacted log is what the rules leave of a list of records, whatever is done to it and whenever the power goes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, read_header
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.storage import AppendBatch
from tailrace.testing.disk import PowerCut
from testkit.records.compaction import compact
from testkit.records.log_machine import LogMachine
from testkit.records.log_reading import stored_batches

DELETE_RETENTION_MS = 1000
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=500,
    index_interval_bytes=150,
    delete_retention_ms=DELETE_RETENTION_MS,
    retention_ms=-1,
    file_delete_delay_ms=0,
)
NOW_MS = 1_700_000_000_000
KEYS = (b"a", b"b", b"c", b"d" * 31, b"e" * 32, b"f" * 40, None)
PRODUCERS = (-1, 7, 8)
MEMORY = st.sampled_from((1 << 20, 1 << 20, 300))


@dataclass(frozen=True)
class Batch:
    """A batch of the model: the records that were sent, and the records that are left."""

    header: BatchHeader
    records: tuple[Record, ...]
    horizon_ms: int | None = None

    def after_compaction(self, last_offsets: dict[bytes | None, int], now_ms: int) -> "Batch":
        keeps_tombstones = self.horizon_ms is None or now_ms < self.horizon_ms
        kept = tuple(
            record
            for record in self.records
            if record.key is not None
            and last_offsets[record.key] == record.offset
            and (record.value is not None or keeps_tombstones)
        )
        horizon_ms = self.horizon_ms
        if horizon_ms is None and any(record.value is None for record in kept):
            horizon_ms = now_ms + DELETE_RETENTION_MS
        return replace(self, records=kept, horizon_ms=horizon_ms if kept else None)


records = st.tuples(
    st.sampled_from(KEYS), st.sampled_from((None, b"x", b"longer value")), st.sampled_from(((), (("h", b"1"),)))
)


Sending = tuple[list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]], int, int, bool]
sendings = st.tuples(
    st.lists(records, min_size=1, max_size=5),
    st.sampled_from(PRODUCERS),
    st.sampled_from((0, 0, 0, 1, 2, 3, 4)),
    st.booleans(),
)


class CompactionModel(LogMachine):
    """The model: `batches` in order; what is `flushed`; nothing below `committed` is ever truncated."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.batches: list[Batch] = []
        self.perhaps: list[Batch] | None = None
        self.flushed = self.committed = 0
        self.epoch = 0
        self.now_ms = NOW_MS
        self.config = CONFIG
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.begin_log(seed)

    @property
    def end(self) -> int:
        return self.log.log_end_offset

    @rule(made=st.lists(sendings, min_size=1, max_size=8))
    def append(self, made: list[Sending]) -> None:
        for sending in made:
            self.append_one(*sending)

    def append_one(
        self,
        contents: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]],
        producer_id: int,
        codec: int,
        has_append_time: bool,
    ) -> None:
        start = self.end
        made = [
            Record(start + at, self.now_ms - 3 * at, key, value and value + str(start + at).encode(), headers)
            for at, (key, value, headers) in enumerate(contents)
        ]
        buffer = build_batch(
            made,
            codec=codec,
            base_offset=start,
            leader_epoch=self.epoch,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=self.sequences[producer_id] if producer_id >= 0 else -1,
            log_append_time=self.now_ms if has_append_time else None,
        )
        header = read_header(buffer)
        assert self.log.producers.check(header) is None
        self.log.append([AppendBatch(bytes(buffer), header)])
        self.sequences[producer_id] += len(made)
        self.batches.append(Batch(header, tuple(read_records(buffer))))

    @rule(is_committed=st.booleans())
    def flush(self, is_committed: bool) -> None:
        self.log.flush()
        self.flushed = self.end
        if is_committed:
            self.committed = max(self.committed, self.flushed)

    @rule()
    def checkpoint(self) -> None:
        self.recovery_point, self.first_dirty = self.flushed, self.log.compactions.first_dirty_offset

    @rule(milliseconds=st.sampled_from((1, 600, 1000)))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule()
    def elect(self) -> None:
        self.epoch += 1

    @rule(is_compacted=st.booleans())
    def switch_policy(self, is_compacted: bool) -> None:
        self.config = replace(CONFIG, cleanup_policy=("compact",) if is_compacted else ("delete",))
        self.log.update_config(self.config)

    @rule(memory_bytes=MEMORY, is_flushed=st.sampled_from((True, True, False)))
    def compact(self, memory_bytes: int, is_flushed: bool) -> None:
        if is_flushed:
            self.flush(True)
        compaction = compact(self.log, self.now_ms, end_offset=self.committed, memory_bytes=memory_bytes)
        if compaction is None:
            return
        assert compaction.is_complete
        assert compaction.end_offset <= self.committed
        self.flushed = max(self.flushed, self.log.flushed_offset)
        self.batches = self.compacted(compaction.end_offset)

    def compacted(self, end_offset: int) -> list[Batch]:
        last_offsets = {
            record.key: record.offset
            for batch in self.batches
            for record in batch.records
            if record.offset < end_offset
        }
        return [
            batch.after_compaction(last_offsets, self.now_ms) if batch.header.base_offset < end_offset else batch
            for batch in self.batches
        ]

    @rule(at=st.integers(1, 25), after=st.booleans(), memory_bytes=MEMORY)
    def cut_power_in_a_compaction(self, at: int, after: bool, memory_bytes: int) -> None:
        self.flush(True)
        end_offset = self.planned_end(memory_bytes)
        self.disk.cut_power_at(self.disk.operations + at, after=after)
        try:
            compact(self.log, self.now_ms, end_offset=self.committed, memory_bytes=memory_bytes)
        except PowerCut:
            pass
        else:
            self.flushed = max(self.flushed, self.log.flushed_offset)
            self.disk.power_cut()
        self.disk.reboot()
        self.perhaps = self.compacted(end_offset)
        self.open()

    def planned_end(self, memory_bytes: int) -> int:
        first_dirty_offset = self.log.compactions.first_dirty_offset
        compaction = self.log.compactions.begin(self.now_ms, end_offset=self.committed, memory_bytes=memory_bytes)
        if compaction is None:
            return 0
        while not compaction.needs_sync and not compaction.is_over:
            compaction.step(1)
        end_offset = compaction.end_offset
        self.log.compactions.abort()
        # A pass that had nothing to change is complete, and another would begin behind it.
        self.log.compactions.first_dirty_offset = first_dirty_offset
        return end_offset

    def take_what_is_there(self) -> None:
        """After a crash a batch is as before a compaction or as after it; flushed batches are there."""
        perhaps, self.perhaps = self.perhaps or self.batches, None
        assert self.log.log_end_offset >= self.flushed
        self.flushed = self.log.log_end_offset
        found = {header.base_offset: kept for header, kept in self.stored()}
        before, self.batches = self.batches, []
        for old, new in zip(before, perhaps, strict=True):
            if old.header.base_offset >= self.end:
                break
            header, kept = old.header, found.get(old.header.base_offset, ())
            horizon_ms = next(
                (
                    h.base_timestamp
                    for h, _ in self.stored()
                    if h.base_offset == header.base_offset and h.has_delete_horizon
                ),
                None,
            )
            batch = Batch(header, kept, horizon_ms)
            assert batch in (old, new)
            self.batches.append(batch)
        self.take_sequences()

    def take_sequences(self) -> None:
        for producer_id in PRODUCERS[1:]:
            entry = self.log.producers.producers.get(producer_id)
            self.sequences[producer_id] = entry.batches[-1].last_sequence + 1 if entry is not None else 0

    @precondition(lambda self: self.end > self.committed)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.committed, self.end))
        self.recovery_point = min(self.recovery_point, self.committed)
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if batch.header.end_offset <= offset]
        self.flushed = min(self.flushed, self.end)
        self.first_dirty = min(self.first_dirty, self.end)
        self.take_sequences()

    def stored(self) -> Iterator[tuple[BatchHeader, tuple[Record, ...]]]:
        return ((header, tuple(read_records(batch, 0))) for header, batch in stored_batches(self.log))

    @invariant()
    def every_record_that_stays_is_the_one_that_was_sent(self) -> None:
        if not hasattr(self, "log"):
            return
        sent = {batch.header.base_offset: batch for batch in self.batches}
        found = list(self.stored())
        assert [record for _, kept in found for record in kept] == [
            record for batch in self.batches for record in batch.records
        ]
        for header, kept in found:
            original = sent[header.base_offset].header
            assert header.last_offset == original.last_offset
            assert header.partition_leader_epoch == original.partition_leader_epoch
            assert (header.producer_id, header.base_sequence) == (original.producer_id, original.base_sequence)
            assert header.codec == (original.codec if kept else header.codec)
            assert header.records_count == len(kept)

    @invariant()
    def the_last_batch_of_a_producer_is_known_and_its_next_one_is_taken(self) -> None:
        if not hasattr(self, "log"):
            return
        for producer_id in PRODUCERS[1:]:
            sent = [batch.header for batch in self.batches if batch.header.producer_id == producer_id]
            if sent:
                assert self.sequences[producer_id] == sent[-1].last_sequence + 1
                duplicate = self.log.producers.check(sent[-1])
                assert duplicate is not None
                assert duplicate.base_offset == sent[-1].base_offset

    @invariant()
    def epochs_start_where_they_started(self) -> None:
        if not hasattr(self, "log"):
            return
        for batch in self.batches:
            assert self.log.epochs.epoch_of(batch.header.base_offset) == batch.header.partition_leader_epoch

    @precondition(lambda self: any(batch.records for batch in self.batches))
    @rule(data=st.data())
    def look_up_by_time(self, data: st.DataObject) -> None:
        left = [record for batch in self.batches for record in batch.records]
        wanted = data.draw(st.sampled_from(left)).timestamp
        found = self.log.offset_for_timestamp(wanted)
        assert found is not None
        assert found.offset == next(record.offset for record in left if record.timestamp >= wanted)
        latest = self.log.max_timestamp_offset()
        assert latest is not None
        largest = max(record.timestamp for record in left)
        assert (latest.timestamp, latest.offset) == (
            largest,
            next(record.offset for record in left if record.timestamp == largest),
        )


TestCompactionModel = CompactionModel.TestCase
TestCompactionModel.settings = settings(max_examples=150, stateful_step_count=30)
