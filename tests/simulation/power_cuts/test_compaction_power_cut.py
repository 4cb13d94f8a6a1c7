"""The power goes at every operation of a story with compactions. Flushed and not replaced records are there.

The story: two idempotent producers write few keys over and over, with tombstones; segments roll; compactions make one
segment of several, also while more is written; checkpoints, a new leader epoch, a switch of cleanup.policy, a clean
stop and a new start. It runs again for each operation, up to the cut.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from budgets import examples
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, read_header
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.storage import AppendBatch, Compaction, Log
from tailrace.storage import checkpoints as files_of
from tailrace.storage.gaps import Gaps
from tailrace.storage.segment_files.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.nodes.power_cuts import PowerCuts
from testkit.records.log_reading import stored_batches

ROOT = "/data"
PARTITION = TopicPartition("orders", 0)
DIRECTORY = f"{ROOT}/{PARTITION}"
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=700,
    index_interval_bytes=150,
    delete_retention_ms=1000,
    retention_ms=-1,
    file_delete_delay_ms=0,
)

NOW_MS = 1_700_000_000_000
PRODUCERS = (7, 8)


class CompactionStory:
    """Tells the story to a log and knows what must be true of the log."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.config = CONFIG
        self.now_ms = NOW_MS
        self.written: dict[int, Record] = {}
        self.headers: list[BatchHeader] = []
        self.flushed = 0
        self.epoch = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.swaps = 0
        self.log: Log

    def tell(self) -> None:
        self.open()
        for number in range(9):
            self.append(number)
        self.flush()
        self.compact()
        self.checkpoint()
        self.epoch = 3
        for number in range(6):
            self.append(number, tombstones=number % 2 == 1)
        self.flush()
        self.now_ms += 600
        self.compact(meanwhile=lambda: self.append(2))
        self.append(4)
        self.now_ms += 600
        for number in range(5):
            self.append(10 + number % 2)
            self.flush()
        self.compact(memory_bytes=200)
        self.checkpoint()
        self.compact()
        self.close()
        self.open()
        for number in range(8):
            self.append(20 + number % 3, is_lasting=number % 4 == 1)
        self.flush()
        self.now_ms += 600
        self.compact()
        self.switch_policy(is_compacted=False)
        self.append(30)
        self.flush()
        self.switch_policy(is_compacted=True)
        for number in range(6):
            self.append(number)
        self.flush()
        self.compact()
        self.append(3)
        self.flush()
        assert self.swaps >= 6, "the story must compact"

    def open(self) -> None:
        disk = self.disk
        clean = files_of.take_clean_shutdown(disk, ROOT) is not None
        self.log = Log.open(
            DIRECTORY,
            files=disk,
            config=self.config,
            now_ms=self.now_ms,
            recovery_point=files_of.read_offsets(disk, ROOT, files_of.RECOVERY_POINTS).get(PARTITION, 0),
            first_dirty_offset=files_of.read_offsets(disk, ROOT, files_of.CLEANER_OFFSETS).get(PARTITION, 0),
            clean=clean,
        )

    def append(self, number: int, *, tombstones: bool = False, is_lasting: bool = False) -> None:
        """Three records. `is_lasting`: with keys that no other record has."""
        start = self.log.log_end_offset
        producer_id = PRODUCERS[number % 3 == 0]
        records = [
            Record(
                start + at,
                self.now_ms + at,
                b"lasting-%d" % (start + at) if is_lasting else b"key-%d" % ((number + at) % 5),
                None if tombstones and at else b"%d" % start,
            )
            for at in range(3)
        ]
        buffer = build_batch(
            records,
            base_offset=start,
            leader_epoch=self.epoch,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=self.sequences[producer_id],
            codec=number % 3,
        )
        header = read_header(buffer)
        self.written.update((record.offset, record) for record in records)
        self.headers.append(header)
        self.log.append([AppendBatch(bytes(buffer), header)])
        self.sequences[producer_id] += len(records)

    def flush(self) -> None:
        ticket = self.log.flushes.begin()
        ticket.sync()
        self.log.flushes.finish(ticket)
        self.flushed = self.log.flushed_offset

    def compact(self, *, memory_bytes: int = 1 << 20, meanwhile: Callable[[], None] | None = None) -> None:
        compaction = self.log.compactions.begin(self.now_ms, end_offset=self.flushed, memory_bytes=memory_bytes)
        assert compaction is not None, "the story must compact"
        while not compaction.is_over:
            compaction.step(200)
            if compaction.needs_sync:
                if meanwhile is not None:
                    meanwhile()
                self.flush()
        self.log.compactions.finish(compaction)
        assert compaction.is_complete
        self.swaps += compaction.swaps
        files_of.write_offsets(
            self.disk, ROOT, files_of.CLEANER_OFFSETS, {PARTITION: self.log.compactions.first_dirty_offset}
        )

    def checkpoint(self) -> None:
        files_of.write_offsets(self.disk, ROOT, files_of.RECOVERY_POINTS, {PARTITION: self.log.flushed_offset})

    def switch_policy(self, *, is_compacted: bool) -> None:
        self.config = replace(CONFIG, cleanup_policy=("compact",) if is_compacted else ("delete",))
        self.log.update_config(self.config)

    def close(self) -> None:
        self.log.close()
        self.flushed = self.log.log_end_offset
        self.checkpoint()
        files_of.write_clean_shutdown(self.disk, ROOT, broker_epoch=-1)

    def verify(self) -> None:
        """Open the log from what the disk kept, under any policy; nothing is lost that was not replaced."""
        self.open()
        log, end_offset = self.log, self.log.log_end_offset
        assert end_offset >= self.flushed, f"flushed to {self.flushed}, the log ends at {end_offset}"
        assert not [name for name in self.disk.list_dir(DIRECTORY) if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
        found = self.read_all()
        assert all(self.written[record.offset] == record for record in found), "a record is another"
        self.verify_keys(found, end_offset)
        for header in self.headers:
            if header.end_offset <= end_offset:
                assert log.epochs.epoch_of(header.base_offset) == header.partition_leader_epoch
        for producer_id in PRODUCERS:
            self.verify_producer(producer_id, end_offset)
        self.verify_it_goes_on()

    def verify_keys(self, found: list[Record], end_offset: int) -> None:
        """The last record of each key is there; for a key that was deleted, nothing before its tombstone is alone."""
        kept = {record.offset for record in found}
        last: dict[bytes | None, Record] = {}
        for offset in range(end_offset):
            last[self.written[offset].key] = self.written[offset]
        for key, record in last.items():
            if record.value is not None:
                assert record.offset in kept, f"the last record of {key!r}, offset {record.offset}, is lost"
            elif record.offset not in kept:
                older = [other for other in found if other.key == key]
                assert not older, f"{key!r} was deleted and is back with {older}"

    def verify_producer(self, producer_id: int, end_offset: int) -> None:
        """The producer's last batch, sent again, is known; the next batch is taken."""
        sent = [h for h in self.headers if h.producer_id == producer_id and h.end_offset <= end_offset]
        if sent:
            duplicate = self.log.producers.check(replace(sent[-1], base_offset=0, partition_leader_epoch=-1))
            assert duplicate is not None
            assert duplicate.base_offset == sent[-1].base_offset
            self.sequences[producer_id] = sent[-1].last_sequence + 1

    def verify_it_goes_on(self) -> None:
        self.epoch = 9
        for number in range(8):
            self.append(number % 2)
        self.flush()
        self.switch_policy(is_compacted=True)
        self.compact()
        before = self.read_all()
        self.close()
        self.switch_policy(is_compacted=False)
        self.open()
        assert self.log.recovery.clean
        assert self.read_all() == before

    def read_all(self) -> list[Record]:
        return [record for _, batch in stored_batches(self.log) for record in read_records(batch, 0)]


CUTS = PowerCuts(CompactionStory)


def shows_loss(*, lying_sync: bool = False, seeds: int = 1) -> bool:
    return any(CUTS.losses(after=True, lying_sync=lying_sync, seeds=seeds))


@pytest.mark.parametrize("seed", range(examples(1)))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_nothing_that_was_flushed_and_not_replaced_is_lost_at_any_operation(after: bool, seed: int) -> None:
    for operation in CUTS.operations():
        CUTS.cut_and_verify(operation, after=after, seed=1000 * seed + operation)


def test_a_second_power_cut_during_recovery_changes_nothing() -> None:
    for operation in CUTS.operations()[::2]:
        story, disk = CUTS.cut(operation, after=False, seed=operation)
        for again in range(6):
            disk.reboot()
            disk.cut_power_at(disk.operations + 1 + again, after=again % 2 == 0)
            try:
                story.open()
            except PowerCut:
                continue
            break
        disk.power_cut()
        disk.reboot()
        story.verify()


def test_the_same_story_shows_loss_when_syncs_do_nothing() -> None:
    assert shows_loss(lying_sync=True)


def test_a_swap_before_the_compacted_bytes_are_synced_shows_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the compaction takes for synced what no flush has covered."""
    monkeypatch.setattr(Compaction, "needs_sync", property(lambda compaction: compaction.mark_synced(Everything())))
    assert shows_loss()


def test_a_swap_without_its_directory_syncs_shows_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: names are changed and removed in the right order, and the disk is free to keep the changes in
    another."""
    tell = SimulatedDisk.sync_dir

    def sync_dir(disk: SimulatedDisk, path: str) -> None:
        if not disk.exists(DIRECTORY) or not any(name.endswith(SWAP_SUFFIX) for name in disk.list_dir(DIRECTORY)):
            tell(disk, path)

    monkeypatch.setattr(SimulatedDisk, "sync_dir", sync_dir)
    assert shows_loss(seeds=3)


def test_a_log_that_forgets_its_gaps_is_taken_for_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: nothing says that the log was compacted once."""
    monkeypatch.setattr(Gaps, "allow", lambda gaps, bound: None)
    assert shows_loss()


def test_dropping_the_last_batch_of_a_producer_breaks_its_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: a batch goes with its last record, whichever producer wrote the batch."""
    monkeypatch.setattr(Compaction, "_is_last_of_producer", lambda compaction, header: False)
    monkeypatch.setattr("tailrace.storage.recovery.loader.snapshot_offsets", lambda names: [])
    assert shows_loss()


class Everything:
    """Contains everything."""

    def __contains__(self, item: object) -> bool:
        return True
