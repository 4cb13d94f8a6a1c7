"""A log is a list of batches with a start, whatever is done to it and whenever the power goes."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tailrace.model.errors import StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import AppendBatch, ReadLimits
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch
from testkit.records.log_machine import LogMachine
from testkit.records.log_reading import stored_batches

CONFIG = TopicConfig(
    segment_bytes=800, index_interval_bytes=150, retention_bytes=2500, retention_ms=-1, file_delete_delay_ms=0
)
PRODUCER = 5


class LogModel(LogMachine):
    """The model: `batches` in order, from the first that may still be on the disk; `start`; `flushed`."""

    config = CONFIG

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.batches: list[AppendBatch] = []
        self.start = self.flushed = self.sequence = self.epoch = 0
        self.begin_log(seed)

    @property
    def end(self) -> int:
        return max(self.batches[-1].header.end_offset, self.start) if self.batches else self.start

    def make(self, counts: list[int], text: str) -> list[AppendBatch]:
        made, offset, sequence = [], self.log.log_end_offset, self.sequence
        for count in counts:
            made.append(
                stored_batch(
                    offset,
                    count,
                    leader_epoch=self.epoch,
                    text=text,
                    producer_id=PRODUCER,
                    base_sequence=sequence,
                    value_bytes=5 + 30 * count,
                )
            )
            offset, sequence = offset + count, sequence + count
        return made

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=8), text=st.sampled_from("ab"), staged=st.booleans())
    def append(self, counts: list[int], text: str, staged: bool) -> None:
        made = self.make(counts, text)
        for batch in made:
            assert self.log.producers.check(batch.header) is None
            if staged:
                self.log.producers.stage(batch.header)
            else:
                break
        self.log.append(made)
        self.batches += made
        self.sequence += sum(counts)

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=8), at=st.integers(1, 12), short=st.booleans())
    def fail_to_append(self, counts: list[int], at: int, short: bool) -> None:
        operation = self.disk.operations + at
        if short:
            self.disk.write_short_at(operation, 3)
        else:
            self.disk.fail_at(operation)
        made = self.make(counts, "c")
        try:
            self.log.append(made)
        except StorageError:
            self.disk.forget_faults()
            if self.log.is_offline:
                self.open()
        else:
            self.disk.forget_faults()
            self.batches += made
            self.sequence += sum(counts)

    def take_what_is_there(self) -> None:
        """After a crash the log may end anywhere from the flushed offset on, at a batch of ours."""
        end = self.log.log_end_offset
        assert self.flushed <= end <= self.end
        self.start = self.log.log_start_offset
        self.forget_from(end)
        self.flushed = end

    def forget_from(self, offset: int) -> None:
        """Batches that end above this offset are gone; so is what the producer remembers of them."""
        self.batches = [batch for batch in self.batches if batch.header.end_offset <= offset]
        entry = self.log.producers.producers.get(PRODUCER)
        self.sequence = entry.batches[-1].last_sequence + 1 if entry is not None else 0
        if self.batches and self.log.size_bytes:
            assert self.sequence == self.batches[-1].header.last_sequence + 1

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end

    @rule()
    def checkpoint(self) -> None:
        self.recovery_point, self.durable_start = self.flushed, self.start

    @rule()
    def elect(self) -> None:
        self.epoch += 1
        self.log.epochs.assign(self.epoch, self.log.log_end_offset)

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.recovery_point = min(self.recovery_point, self.base_of_batch_with(offset))
        self.log.truncate_to(offset)
        self.forget_from(offset)
        self.flushed = min(self.flushed, self.end)

    def base_of_batch_with(self, offset: int) -> int:
        return max(
            (batch.header.base_offset for batch in self.batches if batch.header.base_offset <= offset), default=0
        )

    @rule(data=st.data())
    def advance_log_start(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.flushed if self.flushed >= self.start else self.start))
        self.log.advance_log_start(offset)
        self.start = offset

    @rule()
    def retain(self) -> None:
        retired = self.log.retention.apply(0, self.flushed)
        assert self.log.log_start_offset >= self.start
        assert self.log.log_start_offset <= max(self.flushed, self.start)
        assert retired or self.log.log_start_offset == self.start
        self.start = self.log.log_start_offset

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert self.flushed <= log.flushed_offset <= self.end
        assert log.producers.check(self.make([1], "")[0].header) is None

    @invariant()
    def batches_are_those_of_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        found = [batch for _, batch in stored_batches(self.log, max_bytes=600, is_whole=True)]
        assert found == [batch.buffer for batch in self.readable]

    @property
    def readable(self) -> list[AppendBatch]:
        return [batch for batch in self.batches if batch.header.end_offset > self.start]

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        header = data.draw(st.sampled_from(self.readable)).header
        offset = data.draw(st.integers(max(header.base_offset, self.start), header.last_offset))
        result = self.log.read(ReadLimits(offset, 1))
        assert result.first_offset == header.base_offset
        wanted = FIRST_TIMESTAMP_MS + offset
        assert self.log.offset_for_timestamp(wanted) == (wanted, offset, header.partition_leader_epoch)
        # The log start may come back lower after a crash, the epochs below it do not.
        if offset >= self.log.epochs.entries[0].start_offset:
            assert self.log.epochs.epoch_of(offset) == header.partition_leader_epoch


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(
    max_examples=120, stateful_step_count=25, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
)
