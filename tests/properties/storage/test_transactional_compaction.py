"""Compaction does not change what a reader of committed data makes of a log, whenever the power goes (KIP-58, KIP-98).

Such a reader keeps the last value of each key. The model has every record that was ever written, and how each
transaction ended.
"""

from dataclasses import dataclass

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tailrace.client.reading.fetching import visible_batches
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import AbortedTransaction
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.storage import AppendBatch, ReadLimits
from tailrace.testing.disk import PowerCut
from testkit.records.batches import stored_marker
from testkit.records.compaction import compact
from testkit.records.log_machine import LogMachine

CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=450,
    index_interval_bytes=150,
    delete_retention_ms=1000,
    retention_ms=-1,
    file_delete_delay_ms=0,
)
NOW_MS = 1_700_000_000_000
PLAIN = 0
"""A producer id that writes without transactions."""


@dataclass
class Written:
    """A record, and whether it counts: None while its transaction is open."""

    producer_id: int
    key: bytes
    value: bytes | None
    counts: bool | None


class TransactionalCompaction(LogMachine):
    config = CONFIG

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.written: dict[int, Written] = {}
        self.sequences: dict[int, int] = {}
        self.now_ms = NOW_MS
        self.begin_log(seed)

    @rule(
        producer_id=st.integers(PLAIN, 3),
        records=st.lists(st.tuples(st.sampled_from((b"a", b"b", b"c", b"d")), st.booleans()), min_size=1, max_size=3),
        codec=st.sampled_from((0, 0, 1)),
    )
    def write(self, producer_id: int, records: list[tuple[bytes, bool]], codec: int) -> None:
        made = [Record(0, self.now_ms, key, b"." if has_value else None) for key, has_value in records]
        self.write_one(producer_id, made, codec=codec)

    def write_one(self, producer_id: int, records: list[Record], *, codec: int) -> None:
        """Write a batch; the values tell the offsets."""
        start = self.log.log_end_offset
        made = [
            record._replace(offset=start + at, value=record.value and record.value + b"%d" % (start + at))
            for at, record in enumerate(records)
        ]
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(made)
        in_transaction = producer_id != PLAIN
        buffer = build_batch(
            made,
            codec=codec,
            base_offset=start,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=in_transaction,
        )
        self.log.append([AppendBatch(bytes(buffer), read_header(buffer))])
        for record in made:
            assert record.key is not None
            counts = None if in_transaction else True
            self.written[record.offset] = Written(producer_id, record.key, record.value, counts)

    @rule(producer_id=st.integers(1, 3), is_commit=st.booleans())
    def end(self, producer_id: int, is_commit: bool) -> None:
        self.log.append(
            [
                stored_marker(
                    self.log.log_end_offset, producer_id=producer_id, is_commit=is_commit, timestamp=self.now_ms
                )
            ]
        )
        for record in self.written.values():
            if record.counts is None and record.producer_id == producer_id:
                record.counts = is_commit

    def stable_offset(self) -> int:
        first = self.log.producers.transactions.first_open_offset
        return self.log.log_end_offset if first is None else first

    def fill_segments(self) -> None:
        """So that there is something to compact: never the active segment."""
        for _ in range(2):
            self.write_one(PLAIN, [Record(0, self.now_ms, b"e", b"." * 330)], codec=0)
        self.log.flush()

    @rule(memory_bytes=st.sampled_from((1 << 20, 1 << 20, 300)), milliseconds=st.sampled_from((0, 600, 1100)))
    def compact(self, memory_bytes: int, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.fill_segments()
        compact(self.log, self.now_ms, end_offset=self.stable_offset(), memory_bytes=memory_bytes)

    @rule(at=st.integers(1, 25), after=st.booleans())
    def cut_power_in_a_compaction(self, at: int, after: bool) -> None:
        self.fill_segments()
        self.disk.cut_power_at(self.disk.operations + at, after=after)
        try:
            compact(self.log, self.now_ms, end_offset=self.stable_offset())
        except PowerCut:
            pass
        else:
            self.disk.power_cut()
        self.disk.reboot()
        self.open()

    @rule()
    def checkpoint(self) -> None:
        self.log.flush()
        self.recovery_point, self.first_dirty = self.log.flushed_offset, self.log.compactions.first_dirty_offset

    @rule()
    def power_cut(self) -> None:
        self.log.flush()
        super().power_cut()

    def read_committed(self) -> dict[bytes, bytes]:
        """The records of a reader that fetches a little at a time."""
        found: dict[bytes, bytes] = {}
        offset, end = self.log.log_start_offset, self.stable_offset()
        while offset < end:
            result = self.log.read(ReadLimits(offset, 300), end)
            if not result.size_bytes:
                break
            aborted = self.log.aborted_transactions(offset, result.next_offset)
            listed = [
                AbortedTransaction(producer_id=transaction.producer_id, first_offset=transaction.first_offset)
                for transaction in aborted
            ]
            stretches, offset, *_ = visible_batches(b"".join(result.records), offset, listed)
            for stretch in stretches:
                position = 0
                while position < len(stretch):
                    for record in read_records(stretch, position):
                        assert record.key is not None
                        if record.value is None:
                            found.pop(record.key, None)
                        else:
                            found[record.key] = record.value
                    position += read_header(stretch, position).size_bytes
        return found

    @invariant()
    def a_transaction_is_open_until_its_marker_and_never_again(self) -> None:
        """A batch that is left without its marker would hold readers back for good, once the log is read again."""
        if hasattr(self, "log"):
            begun = (offset for offset, record in self.written.items() if record.counts is None)
            assert self.log.producers.first_open_offset == min(begun, default=None)

    @invariant()
    def a_reader_of_committed_data_has_the_last_value_of_each_key(self) -> None:
        if not hasattr(self, "log"):
            return
        wanted: dict[bytes, bytes] = {}
        end = self.stable_offset()
        for offset, record in self.written.items():
            if offset < end and record.counts:
                if record.value is None:
                    wanted.pop(record.key, None)
                else:
                    wanted[record.key] = record.value
        assert self.read_committed() == wanted


TestTransactionalCompaction = TransactionalCompaction.TestCase
TestTransactionalCompaction.settings = settings(
    max_examples=150, stateful_step_count=30, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
)
