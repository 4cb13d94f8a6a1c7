"""A log has the transactions that its batches have, whatever is done to it and whenever the power goes (KIP-98).

The model has nothing but the batches, oldest first, and reads them all again for every answer.
"""

from typing import NamedTuple

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.control import ControlType, read_marker
from tailrace.storage import AbortedTxn, AppendBatch, Log
from testkit.records.batches import stored_batch, stored_marker
from testkit.records.log_machine import DIRECTORY, LogMachine

CONFIG = TopicConfig(
    segment_bytes=600, index_interval_bytes=150, retention_bytes=2000, retention_ms=-1, file_delete_delay_ms=0
)
PRODUCERS = st.integers(1, 4)


class Replayed(NamedTuple):
    """The transactions in the batches."""

    open: dict[int, int]
    """The start of the open transaction of each producer."""
    ended: list[tuple[int, int]]
    """The start of each other transaction, and its marker."""
    aborted: list[AbortedTxn]
    coordinator_epochs: dict[int, int]


def replay(batches: list[AppendBatch]) -> Replayed:
    begun: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    aborted: list[AbortedTxn] = []
    epochs: dict[int, int] = {}
    for buffer, header in batches:
        producer_id = header.producer_id
        marker = read_marker(buffer, header)
        if marker is not None:
            epochs[producer_id] = marker.coordinator_epoch
            first = begun.pop(producer_id, None)
            if first is not None:
                stable = min(begun.values(), default=header.end_offset)
                ended.append((first, header.last_offset))
                if marker.type is ControlType.ABORT:
                    aborted.append(AbortedTxn(producer_id, first, header.last_offset, stable))
        elif header.is_transactional:
            begun.setdefault(producer_id, header.base_offset)
    return Replayed(begun, ended, aborted, epochs)


class TransactionModel(LogMachine):
    config = CONFIG

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.batches: list[AppendBatch] = []
        self.read, self.read_count, self.found = self.batches, 0, replay([])
        self.sequences: dict[int, int] = {}
        self.coordinator_epoch = self.high_watermark = 0
        self.begin_log(seed)

    def take_what_is_there(self) -> None:
        end = self.log.log_end_offset
        self.batches = [batch for batch in self.batches if batch.header.end_offset <= end]
        self.high_watermark = end

    def append(self, made: list[AppendBatch]) -> None:
        self.log.append(made)
        self.batches += made

    def next_batch(self, offset: int, producer_id: int, count: int) -> AppendBatch:
        in_transaction = producer_id != 4
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + count
        return stored_batch(
            offset, count, producer_id=producer_id, base_sequence=sequence, is_transactional=in_transaction
        )

    def next_marker(self, offset: int, producer_id: int, *, is_commit: bool) -> AppendBatch:
        return stored_marker(
            offset, producer_id=producer_id, is_commit=is_commit, coordinator_epoch=self.coordinator_epoch
        )

    @rule(writes=st.lists(st.tuples(PRODUCERS, st.integers(1, 3), st.sampled_from("wwwca")), min_size=1, max_size=6))
    def write(self, writes: list[tuple[int, int, str]]) -> None:
        made: list[AppendBatch] = []
        offset = self.log.log_end_offset
        for producer_id, count, what in writes:
            if what == "w":
                made.append(self.next_batch(offset, producer_id, count))
            else:
                made.append(self.next_marker(offset, producer_id, is_commit=what == "c"))
            offset = made[-1].header.end_offset
        self.append(made)

    @rule()
    def staged_write(self) -> None:
        """As a leader does it: the state must be the same as a follower's."""
        offset = self.log.log_end_offset
        made = [self.next_batch(offset, 1, 1), self.next_marker(offset + 1, 1, is_commit=False)]
        made.append(self.next_batch(offset + 2, 1, 2))
        for buffer, header in made:
            self.log.producers.stage(header, read_marker(buffer, header))
        self.append(made)

    @rule()
    def elect_coordinator(self) -> None:
        self.coordinator_epoch += 1

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(data=st.data())
    def replicate(self, data: st.DataObject) -> None:
        ends = [batch.header.end_offset for batch in self.batches if batch.header.end_offset > self.high_watermark]
        self.high_watermark = data.draw(st.sampled_from([self.high_watermark, *ends]))
        self.log.producers.transactions.forget_replicated(self.high_watermark)

    @rule()
    def checkpoint(self) -> None:
        self.recovery_point, self.durable_start = self.log.flushed_offset, self.log.log_start_offset

    @precondition(lambda self: self.log.log_end_offset > self.high_watermark >= self.log.log_start_offset)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.high_watermark, self.log.log_end_offset))
        self.recovery_point = min(self.recovery_point, self.high_watermark)
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if batch.header.end_offset <= offset]

    @rule()
    def retain(self) -> None:
        self.log.retention.apply(0, self.high_watermark)

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        closed = self.log.closed
        assert closed is not None
        self.recovery_point, self.durable_start = self.log.log_end_offset, self.log.log_start_offset
        self.log = Log.reopen(DIRECTORY, closed, files=self.disk, config=CONFIG)
        self.take_what_is_there()

    @invariant()
    def open_transactions_are_those_of_the_model(self) -> None:
        if hasattr(self, "log"):
            said = self.said
            entries = self.log.producers.producers
            found = {
                producer_id: entry.current_txn_first_offset
                for producer_id, entry in entries.items()
                if entry.current_txn_first_offset >= 0
            }
            assert found == said.open
            assert {producer_id: entries[producer_id].coordinator_epoch for producer_id in said.coordinator_epochs} == (
                said.coordinator_epochs
            )

    @invariant()
    def the_first_unstable_offset_is_that_of_the_model(self) -> None:
        if hasattr(self, "log"):
            said = self.said
            firsts = [*said.open.values(), *(first for first, end in said.ended if end >= self.high_watermark)]
            transactions = self.log.producers.transactions
            assert transactions.first_unstable_offset(self.high_watermark) == min(firsts, default=None)
            assert transactions.first_open_offset == min(said.open.values(), default=None)

    @invariant()
    def aborted_transactions_are_those_of_the_model(self) -> None:
        """For a reader of everything, and for one of each batch by itself."""
        if not hasattr(self, "log"):
            return
        start, end = self.log.log_start_offset, self.log.log_end_offset
        assert self.log.aborted_transactions(start, end) == self.wanted(start, end)
        for batch in self.batches:
            start, end = batch.header.base_offset, batch.header.end_offset
            if start >= self.log.log_start_offset:
                assert self.log.aborted_transactions(start, end) == self.wanted(start, end)

    @property
    def said(self) -> Replayed:
        """Read again whenever the batches differ."""
        if self.read is not self.batches or self.read_count != len(self.batches):
            self.read, self.read_count, self.found = self.batches, len(self.batches), replay(self.batches)
        return self.found

    def wanted(self, offset: int, end_offset: int) -> list[AbortedTxn]:
        return [
            aborted
            for aborted in self.said.aborted
            if aborted.last_offset >= offset and aborted.first_offset < end_offset
        ]


TestTransactionModel = TransactionModel.TestCase
TestTransactionModel.settings = settings(
    max_examples=150, stateful_step_count=30, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
)
