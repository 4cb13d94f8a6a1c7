"""The power goes at every operation of a quorum log with snapshots: write, publish, fetch, install, trim, delete.

The files afterwards open without an error, no half snapshot is loaded, and snapshot and log together give
every record that was committed and flushed, none twice and none that was cut off. The same story on a disk whose syncs
do nothing MUST lose something.
"""

from dataclasses import dataclass, field
from itertools import islice

import pytest

from budgets import examples
from tailrace.model.errors import StorageError
from tailrace.model.partitions import METADATA_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.raft.effects import AppendAsLeader, WriteSnapshotPart
from tailrace.raft.events import SnapshotInstalled, SnapshotRejected
from tailrace.raft.rpc import SnapshotId
from tailrace.server.quorum.log import QuorumLog
from tailrace.storage.snapshots.writer import Publication
from tailrace.testing.disk import PowerCut, SimulatedDisk
from testkit.nodes.power_cuts import PowerCuts
from testkit.quorum.quorum_logs import stored_batches

PARTITION = TopicPartition(METADATA_TOPIC, 0)
DIRECTORY = f"/data/{PARTITION}"
CONFIG = TopicConfig(segment_bytes=500, file_delete_delay_ms=0)
NOW_MS = 1_700_000_000_000
SEEDS = range(examples(4))


def committed(offset: int) -> str:
    """The committed state at this offset."""
    return f"committed {offset}"


def values(log: QuorumLog) -> list[str]:
    """The records that make a state machine: a snapshot here holds a record for each offset that the snapshot stands
    for."""
    return [
        (record.value or b"").decode()
        for content in stored_batches(log, end_offset=log.end_offset)
        for position, header in iter_batches(content)
        if not header.is_control
        for record in read_records(content, position)
    ]


def opened(disk: SimulatedDisk) -> QuorumLog:
    return QuorumLog.open(DIRECTORY, PARTITION, files=disk, config=CONFIG, now_ms=NOW_MS)


def foreign_snapshot(snapshot_id: SnapshotId) -> bytes:
    """The snapshots and records of the leader."""
    other = opened(SimulatedDisk.with_directory("/data"))
    writer = other.begin_snapshot(snapshot_id, last_contained_ms=NOW_MS, voters=None)
    writer.append(committed(offset).encode() for offset in range(snapshot_id.end_offset))
    writer.seal()
    publication = Publication(writer.part)
    publication.carry_out()
    other.finish_snapshot(publication)
    return bytes(other.read_snapshot(snapshot_id, 0, 1 << 20))


FETCHED = SnapshotId(40, 6)
FETCHED_LATER = SnapshotId(70, 9)
DATA = {snapshot_id: foreign_snapshot(snapshot_id) for snapshot_id in (FETCHED, FETCHED_LATER)}


@dataclass
class SnapshotStory:
    """Tells the story and knows what must be true."""

    disk: SimulatedDisk
    durable: int = 0
    """The end of what was acknowledged as committed and flushed."""
    tails: set[tuple[int, str]] = field(default_factory=set)
    """Records that were appended and never committed, by offset."""

    def tell(self) -> None:
        log = opened(self.disk)
        for _ in range(3):
            self.append(log, 4, epoch=1)
        self.flush(log)
        self.snapshot(log, 8, 1)
        self.append(log, 4, epoch=2)
        self.snapshot(log, 12, 1)
        self.trim(log, 12)
        self.flush(log)
        self.append_tail(log, 3, epoch=5)
        log.truncate(16)
        self.append_tail(log, 2, epoch=7)  # a stale tail, of a later epoch than the snapshot that comes now
        self.flush(log)
        self.install(log, FETCHED)
        self.append(log, 5, epoch=6)
        self.flush(log)
        log.delete_snapshots([SnapshotId(12, 1)])
        self.remove(log)
        self.snapshot(log, 45, 6)
        self.trim(log, 45)
        self.append(log, 2, epoch=8)
        self.flush(log)
        log.close()
        log = opened(self.disk)
        self.snapshot(log, 47, 8)
        self.damaged_install(log)
        self.install(log, FETCHED_LATER)
        self.trim(log, 70)
        self.flush(log)
        self.append(log, 3, epoch=9)
        self.flush(log)
        log.close()

    def append(self, log: QuorumLog, count: int, *, epoch: int) -> None:
        end = log.end_offset + count
        batch = tuple(committed(offset).encode() for offset in range(log.end_offset, end))
        log.append_as_leader(AppendAsLeader(log.end_offset, epoch, batch), now_ms=NOW_MS)
        log.commit(end)

    def append_tail(self, log: QuorumLog, count: int, *, epoch: int) -> None:
        offsets = range(log.end_offset, log.end_offset + count)
        self.tails |= {(offset, f"tail {offset} of {epoch}") for offset in offsets}
        batch = tuple(f"tail {offset} of {epoch}".encode() for offset in offsets)
        log.append_as_leader(AppendAsLeader(log.end_offset, epoch, batch), now_ms=NOW_MS)

    def flush(self, log: QuorumLog) -> None:
        ticket = log.begin_flush()
        end = min(log.end_offset, log.high_watermark)
        ticket.sync()
        log.finish_flush(ticket)
        self.durable = end

    def snapshot(self, log: QuorumLog, end_offset: int, epoch: int) -> None:
        writer = log.begin_snapshot(SnapshotId(end_offset, epoch), last_contained_ms=NOW_MS, voters=None)
        for first in range(0, end_offset, 5):
            writer.append(committed(offset).encode() for offset in range(first, min(first + 5, end_offset)))
        writer.seal()
        publication = Publication(writer.part)
        publication.carry_out()
        log.finish_snapshot(publication)
        self.durable = max(self.durable, end_offset)

    def trim(self, log: QuorumLog, log_start_offset: int) -> None:
        log.raise_log_start(log_start_offset)
        log.delete_snapshots([stored.id for stored in log.snapshots if stored.id.end_offset < log_start_offset])
        self.remove(log)
        log.retire_segments(NOW_MS)

    def remove(self, log: QuorumLog) -> None:
        removal = log.take_removal()
        if removal is not None:
            removal()

    def install(self, log: QuorumLog, snapshot_id: SnapshotId, data: bytes | None = None) -> None:
        data = DATA[snapshot_id] if data is None else data
        for position in range(0, len(data), 300):
            log.write_part(WriteSnapshotPart(snapshot_id, position, data[position : position + 300]))
        publication = log.begin_install(snapshot_id)
        publication.carry_out()
        outcome = log.finish_install(publication)
        if isinstance(outcome, SnapshotInstalled):
            self.durable = snapshot_id.end_offset

    def damaged_install(self, log: QuorumLog) -> None:
        damaged = bytearray(DATA[FETCHED_LATER])
        damaged[len(damaged) // 2] ^= 8
        for position in (0, 500):
            end = 500 if position == 0 else len(damaged)
            log.write_part(WriteSnapshotPart(FETCHED_LATER, position, bytes(damaged[position:end])))
        publication = log.begin_install(FETCHED_LATER)
        publication.carry_out()
        assert isinstance(log.finish_install(publication), SnapshotRejected)

    def verify(self) -> None:
        """The files on the disk open, and hold the history up to some offset, at or above the durable offset."""
        log = opened(self.disk)
        found = values(log)
        assert log.end_offset >= self.durable, f"{log.end_offset} instead of {self.durable}"
        assert len(found) == log.end_offset
        for offset, value in enumerate(found):
            is_tail = offset >= self.durable and (offset, value) in self.tails
            assert value == committed(offset) or is_tail, f"{value!r} at {offset}"
        assert not any("part" in name for name in self.disk.list_dir(DIRECTORY))
        self._go_on(log)

    def _go_on(self, log: QuorumLog) -> None:
        """The log can be used: it takes records and snapshots, and opens again with both."""
        if any(
            offset >= self.durable and value in dict(self.tails).values() for offset, value in enumerate(values(log))
        ):
            log.truncate(max(self.durable, log.high_watermark))
        self.append(log, 2, epoch=11)
        self.flush(log)
        self.snapshot(log, log.end_offset, 11)
        self.trim(log, log.end_offset)
        log.close()
        again = opened(self.disk)
        assert values(again) == [committed(offset) for offset in range(self.durable)]


CUTS = PowerCuts(SnapshotStory)
OPERATIONS = CUTS.operations(least=150)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_power_cut_loses_what_is_committed_or_loads_half_a_snapshot(seed: int, after: bool) -> None:
    for number in OPERATIONS:
        CUTS.cut_and_verify(number, after=after, seed=seed * 10_000 + number)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_start_may_be_cut_short_itself(after: bool) -> None:
    seconds = 0
    for number in OPERATIONS:
        for second in range(1, 40, 3):
            story, disk = CUTS.cut(number, after=after, seed=number)
            disk.cut_power_at(disk.operations + second, after=after)
            try:
                opened(disk)
            except PowerCut:
                seconds += 1
                disk.reboot()
                story.verify()
            else:
                break
    assert seconds > len(OPERATIONS)


def test_an_operation_that_fails_loses_nothing_whenever_the_power_goes_after_it() -> None:
    """A node stops at a failed disk. Its files must be in order, also if the failed sync has dropped pages."""
    failed = 0
    for number in OPERATIONS:
        disk = SimulatedDisk.with_directory("/data", number)
        story = SnapshotStory(disk)
        disk.fail_at(number)
        try:
            story.tell()
        except StorageError:
            failed += 1
        if number % 2:
            disk.power_cut()
            disk.reboot()
        disk.forget_faults()
        story.verify()
    assert failed > 150


def test_a_disk_whose_syncs_do_nothing_loses_something() -> None:
    """Else the tests above prove nothing."""
    assert len(list(islice(CUTS.losses(after=True, lying_sync=True), 60))) == 60
