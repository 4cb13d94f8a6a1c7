"""The power goes at every single operation of a log's life, before and after the operation. Flushed records are there.

The story covers appends of two idempotent producers, rolls, group flushes, checkpoints, a new leader epoch, retention,
a truncation, a clean stop and a new start. It runs again for each operation, up to the cut; then the log is opened
from the files that the disk kept and compared with the story's own records.
"""

from dataclasses import dataclass, field, replace

import pytest

from budgets import examples
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import AppendBatch, Duplicate, FlushTicket, Log, ReadLimits
from tailrace.storage import checkpoints as files_of
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.nodes.power_cuts import PowerCuts, noted
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch
from testkit.records.log_reading import stored_batches

ROOT = "/data"
PARTITION = TopicPartition("orders", 0)
DIRECTORY = f"{ROOT}/{PARTITION}"
CONFIG = TopicConfig(
    segment_bytes=900, index_interval_bytes=150, retention_bytes=1200, retention_ms=-1, file_delete_delay_ms=0
)


@dataclass
class LogStory:
    """Tells the story to a log and knows what must be true of the log."""

    disk: SimulatedDisk
    log: Log | None = None
    written: dict[int, AppendBatch] = field(default_factory=dict)
    """Every batch that may be in the log, by base offset."""
    flushed: int = 0
    """The end of what was acknowledged as flushed."""
    log_start: int = 0
    """The log start that the checkpoint has for sure."""
    next_sequence: dict[int, int] = field(default_factory=lambda: {7: 0, 8: 0})
    epoch: int = 0

    def tell(self) -> None:
        self.log = self.open()
        self.append(3)
        self.append(4)
        self.flush()
        for round_number in range(6):
            self.append(2 + round_number % 3, batches=1 + round_number % 2)
            if round_number % 2:
                self.flush()
        self.checkpoint()
        self.epoch = 3
        self.append(5, batches=3)
        self.flush()
        self.append(2)
        self.retain()
        self.checkpoint()
        self.append(6)
        self.flush()
        self.truncate(back=8)
        self.append(4, text="after one truncation ")
        self.flush()
        self.close()
        self.open()
        self.append(3)
        self.append(8, batches=2)
        self.flush()
        self.append(1)
        self.retain()
        self.append(2)
        self.flush()
        self.checkpoint()
        for _ in range(5):
            self.append(7)
        self.flush()
        self.truncate(back=30)
        # As long as before, so that a removed segment that came back would fit on.
        for _ in range(3):
            self.append(7, text="after another ")
            self.flush()
        for _ in range(6):
            self.append(4, text="more ", batches=2)
        self.flush()
        self.log.update_config(replace(CONFIG, retention_bytes=0))
        self.retain(at_least=3)
        self.append(3)
        self.flush()
        self.checkpoint()
        self.close()

    def open(self) -> Log:
        disk = self.disk
        clean = files_of.take_clean_shutdown(disk, ROOT) is not None
        self.log = Log.open(
            DIRECTORY,
            files=disk,
            config=CONFIG,
            now_ms=FIRST_TIMESTAMP_MS,
            recovery_point=files_of.read_offsets(disk, ROOT, files_of.RECOVERY_POINTS).get(PARTITION, 0),
            log_start_offset=files_of.read_offsets(disk, ROOT, files_of.LOG_STARTS).get(PARTITION, 0),
            clean=clean,
        )
        return self.log

    def append(self, count: int, *, batches: int = 1, text: str = "") -> None:
        assert self.log is not None
        made, offset = [], self.log.log_end_offset
        for number in range(batches):
            producer_id = 7 + (offset + number) % 2
            batch = stored_batch(
                offset,
                count,
                leader_epoch=self.epoch,
                text=text,
                producer_id=producer_id,
                base_sequence=self.next_sequence[producer_id],
            )
            self.next_sequence[producer_id] += count
            assert self.log.producers.check(batch.header) is None
            self.log.producers.stage(batch.header)
            made.append(batch)
            self.written[offset] = batch
            offset += count
        self.log.append(made)

    def flush(self) -> None:
        assert self.log is not None
        ticket = self.log.flushes.begin()
        ticket.sync()
        self.log.flushes.finish(ticket)
        self.flushed = self.log.flushed_offset

    def checkpoint(self) -> None:
        assert self.log is not None
        files_of.write_offsets(self.disk, ROOT, files_of.RECOVERY_POINTS, {PARTITION: self.log.flushed_offset})
        files_of.write_offsets(self.disk, ROOT, files_of.LOG_STARTS, {PARTITION: self.log.log_start_offset})
        self.log_start = self.log.log_start_offset

    def retain(self, at_least: int = 1) -> None:
        assert self.log is not None
        retired = self.log.retention.apply(FIRST_TIMESTAMP_MS, self.flushed)
        assert len(retired) >= at_least, "the story must retire segments"
        self.log.retention.apply(FIRST_TIMESTAMP_MS, self.flushed)

    def truncate(self, *, back: int) -> None:
        assert self.log is not None
        offset = max(base for base in self.written if base < self.log.log_end_offset - back)
        self.flushed = min(self.flushed, offset)
        files_of.write_offsets(self.disk, ROOT, files_of.RECOVERY_POINTS, {PARTITION: offset})
        self.log.truncate_to(offset)
        self.written = {base: batch for base, batch in self.written.items() if base < offset}
        for producer_id, entry in self.log.producers.producers.items():
            self.next_sequence[producer_id] = entry.batches[-1].last_sequence + 1

    def close(self) -> None:
        assert self.log is not None
        self.log.close()
        self.flushed = self.log.log_end_offset
        self.checkpoint()
        files_of.write_clean_shutdown(self.disk, ROOT, broker_epoch=1)

    def go_on(self) -> None:
        """After a crash of the process: open the log again, and flush a little more."""
        log = self.open()
        known = log.producers.producers
        self.next_sequence = {
            producer_id: known[producer_id].batches[-1].last_sequence + 1 if producer_id in known else 0
            for producer_id in self.next_sequence
        }
        self.append(3, text="after the crash ")
        self.flush()

    def verify(self) -> None:
        """Open the log from what the disk kept; everything that was promised is there."""
        log = self.open()
        assert log.log_end_offset >= self.flushed, f"flushed to {self.flushed}, the log ends at {log.log_end_offset}"
        assert self.log_start <= log.log_start_offset <= max(self.flushed, self.log_start)
        found = self._read_all(log)
        last: dict[int, AppendBatch] = {}
        for offset, batch in found.items():
            assert bytes(self.written[offset].buffer) == batch, f"the batch at offset {offset} is another"
            header = self.written[offset].header
            assert log.epochs.epoch_of(offset) == header.partition_leader_epoch
            last[header.producer_id] = self.written[offset]
        for appended in last.values():
            self._verify_retry(log, appended)
        self._verify_lookups(log)
        self._verify_it_goes_on(log)

    def _read_all(self, log: Log) -> dict[int, bytes]:
        return {header.base_offset: batch for header, batch in stored_batches(log, is_whole=True)}

    def _verify_retry(self, log: Log, batch: AppendBatch) -> None:
        """A producer that has no answer sends its batch again: the log knows the batch. The next batch is accepted."""
        header = batch.header
        answer = log.producers.check(replace(header, base_offset=0, partition_leader_epoch=-1))
        assert answer == Duplicate(header.base_offset, header.last_offset, header.max_timestamp)
        following = stored_batch(
            log.log_end_offset, producer_id=header.producer_id, base_sequence=header.last_sequence + 1
        )
        assert log.producers.check(following.header) is None

    def _verify_lookups(self, log: Log) -> None:
        for offset in range(log.log_start_offset, log.log_end_offset):
            result = log.read(ReadLimits(offset, 1))
            assert result.first_offset <= offset < result.next_offset
            found = log.offset_for_timestamp(FIRST_TIMESTAMP_MS + offset)
            assert found is not None
            assert found.offset == offset

    def _verify_it_goes_on(self, log: Log) -> None:
        end_offset = log.log_end_offset
        log.append([stored_batch(end_offset, 2, leader_epoch=9)])
        log.flush()
        log.close()
        again = Log.open(DIRECTORY, files=self.disk, config=CONFIG, now_ms=FIRST_TIMESTAMP_MS, clean=True)
        assert again.log_end_offset == end_offset + 2
        assert again.epochs.latest_epoch == 9
        assert again.read(ReadLimits(end_offset, 1000)).next_offset == end_offset + 2


CUTS = PowerCuts(LogStory)


@pytest.mark.parametrize("seed", range(examples(2)))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_everything_flushed_survives_a_power_cut_at_every_operation(after: bool, seed: int) -> None:
    for operation in CUTS.operations():
        CUTS.cut_and_verify(operation, after=after, seed=1000 * seed + operation)


def test_a_second_power_cut_during_recovery_changes_nothing() -> None:
    for operation in CUTS.operations():
        story, disk = CUTS.cut(operation, after=False, seed=operation)
        for again in range(4):
            disk.reboot()
            disk.cut_power_at(disk.operations + 1 + again)
            try:
                story.open()
            except PowerCut:
                continue
        disk.reboot()
        story.verify()


def test_records_that_recovery_found_after_a_crash_of_the_process_survive_a_power_cut() -> None:
    for operation in CUTS.operations():
        story, disk = CUTS.kill(operation, seed=operation)
        found = story.open().flushed_offset
        disk.power_cut()
        disk.reboot()
        assert found >= story.flushed
        assert story.open().log_end_offset >= found


def test_records_flushed_after_a_crash_of_the_process_survive_a_power_cut() -> None:
    """The process that was killed may have made names which no sync has covered; the next process builds on these
    names."""
    for operation in CUTS.operations():
        for seed in range(examples(2)):
            story, disk = CUTS.kill(operation, seed=10 * operation + seed)
            story.go_on()
            disk.power_cut()
            disk.reboot()
            with noted(disk, operation, f"killed, seed={seed}"):
                story.verify()


def test_the_same_story_shows_loss_when_syncs_do_nothing() -> None:
    assert len(list(CUTS.losses(lying_sync=True))) > len(CUTS.operations()) // 2


def test_the_same_story_shows_loss_when_a_flush_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlushTicket, "sync", lambda ticket: None)
    assert len(list(CUTS.losses())) > 20


def test_a_clean_stop_is_trusted_and_a_crash_is_not() -> None:
    disk = SimulatedDisk.with_directory(ROOT, 5)
    story = LogStory(disk)
    story.tell()
    assert story.open().recovery.clean
    assert not story.open().recovery.clean


@pytest.mark.parametrize("is_noted", [False, True], ids=["log start lost", "log start noted"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_log_that_begins_within_a_batch_is_there_after_a_power_cut_at_every_operation(
    after: bool, is_noted: bool
) -> None:
    """The recovery point of the log is its start, which is above where the new segment begins."""
    made = [stored_batch(100, 10), stored_batch(110, 5), stored_batch(115, 20, value_bytes=60)]

    def begun(disk: SimulatedDisk) -> Log:
        start = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=0)
        start.truncate_fully_and_start_at(105)
        start.flush()
        return start

    def tell(log: Log) -> None:
        log.begin_within(made[0])
        log.append(made[1:2])
        log.flush()
        log.append(made[2:])

    disk = SimulatedDisk.with_directory(ROOT, 0)
    log = begun(disk)
    first = disk.operations + 1
    tell(log)
    operations = range(first, disk.operations + 1)
    assert len(operations) > 15
    ends = set()
    for operation in operations:
        for seed in range(8):
            disk = SimulatedDisk.with_directory(ROOT, 100 * operation + seed)
            log = begun(disk)
            disk.cut_power_at(operation, after=after)
            with pytest.raises(PowerCut):
                tell(log)
            disk.reboot()
            again = Log.open(
                DIRECTORY,
                files=disk,
                config=CONFIG,
                now_ms=0,
                recovery_point=log.flushed_offset,
                log_start_offset=105 if is_noted else 0,
            )
            end_offset = again.log_end_offset
            assert end_offset in (105, 110, 115, 135)
            assert again.log_start_offset == (105 if is_noted or end_offset == 105 else 100)
            offset = again.log_start_offset
            for batch in made:
                if batch.header.end_offset <= end_offset:
                    assert bytes(again.read(ReadLimits(offset, 1)).records[0]) == batch.buffer
                    offset = batch.header.end_offset
            if end_offset == 105:
                again.begin_within(made[0])
                assert again.log_end_offset == 110
            ends.add(end_offset)
    assert {105, 110, 115} <= ends


@pytest.mark.parametrize("noted_start", [0, 50], ids=["log start lost", "log start noted"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_log_that_is_dropped_whole_can_be_opened_after_a_power_cut_at_every_operation(
    after: bool, noted_start: int
) -> None:
    """The recovery point of the log was taken back: whatever is left of the old segments is no damage."""

    def begun(disk: SimulatedDisk) -> Log:
        log = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=0)
        for offset in range(60):
            log.append([stored_batch(offset)])
        log.flush()
        log.advance_log_start(50)
        return log

    disk = SimulatedDisk.with_directory(ROOT, 0)
    log = begun(disk)
    first = disk.operations + 1
    log.truncate_fully_and_start_at(200)
    ends = set()
    for operation in range(first, disk.operations + 1):
        for seed in range(4):
            disk = SimulatedDisk.with_directory(ROOT, 100 * operation + seed)
            log = begun(disk)
            disk.cut_power_at(operation, after=after)
            with pytest.raises(PowerCut):
                log.truncate_fully_and_start_at(200)
            disk.reboot()
            again = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=0, log_start_offset=noted_start)
            offset = again.log_start_offset
            while offset < again.log_end_offset:
                offset = again.read(ReadLimits(offset, 1)).next_offset
            ends.add(again.log_end_offset)
    assert {noted_start, 60} <= ends


@pytest.mark.parametrize("is_flushed", [False, True], ids=["never flushed", "flushed before the gap"])
@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "several segments"])
@pytest.mark.parametrize("is_compacted", [False, True], ids=["delete", "compact"])
def test_a_tail_lost_in_a_power_cut_does_not_pass_for_a_gap_of_a_followers_log(
    is_compacted: bool, rolls: bool, is_flushed: bool
) -> None:
    """The leader of the log, whose own log was compacted once, has sent a batch that does not continue the follower's
    log."""
    config = replace(CONFIG, cleanup_policy=("compact",) if is_compacted else ("delete",))

    def tell(disk: SimulatedDisk) -> None:
        log = Log.open(DIRECTORY, files=disk, config=config, now_ms=0, is_durable=False)
        for offset in range(30 if rolls else 5):
            log.append([stored_batch(offset)], may_have_gaps=True)
        if is_flushed:
            log.flush()
        log.append([stored_batch(offset) for offset in range(40, 70)], may_have_gaps=True)
        log.append([stored_batch(70)])

    disk = SimulatedDisk.with_directory(ROOT, 0)
    tell(disk)
    ends = set()
    first_end = 30 if rolls else 5
    for operation in range(2, disk.operations + 1):
        for seed in range(8):
            disk = SimulatedDisk.with_directory(ROOT, 100 * operation + seed)
            disk.cut_power_at(operation + 1)
            try:
                tell(disk)
                disk.power_cut()
            except PowerCut:
                pass
            disk.reboot()
            log = Log.open(DIRECTORY, files=disk, config=config, now_ms=0, is_durable=False)
            offset = log.log_start_offset  # the oldest segments may have gone
            for base_offset in (*range(first_end), *range(40, 71)):
                if not offset <= base_offset < log.log_end_offset:
                    continue
                result = log.read(ReadLimits(offset, 1))
                assert result.first_offset == base_offset, f"cut at {disk.history[operation - 1]}, seed {seed}"
                offset = result.next_offset
            assert offset == log.log_end_offset
            ends.add(log.log_end_offset)
    assert first_end in ends
    assert max(ends) >= 70
