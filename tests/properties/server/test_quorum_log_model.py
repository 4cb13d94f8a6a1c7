"""The quorum's log on files is to the Raft machine what the simulation's log in memory is, after anything."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simulation.raft.log import EpochRecord, LogImage
from tailrace.model.partitions import METADATA_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.raft.effects import AppendAsLeader, AppendFetched, WriteSnapshotPart
from tailrace.raft.events import LogAppended, SnapshotInstalled
from tailrace.raft.rpc import SnapshotId
from tailrace.server.quorum.log import QuorumLog
from tailrace.storage.snapshots.writer import Publication
from tailrace.testing.disk import SimulatedDisk

PARTITION = TopicPartition(METADATA_TOPIC, 0)
NOW_MS = 1_700_000_000_000


def opened(disk: SimulatedDisk) -> QuorumLog:
    config = TopicConfig(segment_bytes=400, file_delete_delay_ms=0)
    return QuorumLog.open(f"/data/{PARTITION}", PARTITION, files=disk, config=config, now_ms=NOW_MS)


def write_snapshot(log: QuorumLog, snapshot_id: SnapshotId) -> None:
    writer = log.begin_snapshot(snapshot_id, last_contained_ms=NOW_MS, voters=None)
    writer.append([b"state"])
    writer.seal()
    publication = Publication(writer.part)
    publication.carry_out()
    log.finish_snapshot(publication)


class QuorumLogAgainstMemory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.log = opened(self.disk)
        self.model = LogImage()
        self.snapshots: set[SnapshotId] = set()
        self.ends = [0]
        """The ends of batches, at which the log may be cut and snapshots may end."""
        self.committed = 0
        self.epoch = 0

    @rule(count=st.integers(1, 4), rise=st.integers(0, 2), as_leader=st.booleans())
    def append(self, count: int, rise: int, as_leader: bool) -> None:
        self.epoch = max(self.epoch + rise, self.model.last_epoch)
        values = [f"{self.epoch}/{self.model.end + at}".encode() for at in range(count)]
        leader = self.log if as_leader else opened_at(self.model.end, self.epoch)
        leader.append_as_leader(AppendAsLeader(self.model.end, self.epoch, tuple(values)), now_ms=NOW_MS)
        if not as_leader:
            records = b"".join(map(bytes, leader.read(self.model.end, max_bytes=1 << 20)))
            outcome = self.log.append_fetched(AppendFetched(self.model.end, self.epoch, records))
            assert outcome == LogAppended(self.model.end + count, self.epoch)
        self.model.append(EpochRecord(self.epoch, value) for value in values)
        self.ends.append(self.model.end)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from([boundary for boundary in self.ends if boundary >= self.committed]))
        self.log.truncate(end)
        self.model.truncate(end)
        self.ends = [boundary for boundary in self.ends if boundary <= end]

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.committed = data.draw(st.sampled_from([end for end in self.ends if end >= self.committed]))
        self.log.commit(self.committed)

    @precondition(lambda self: self.possible())
    @rule(data=st.data())
    def write_snapshot(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from(self.possible()))
        entry = self.model.at(end - 1)
        assert entry is not None
        snapshot_id = SnapshotId(end, entry.epoch)
        write_snapshot(self.log, snapshot_id)
        self.snapshots.add(snapshot_id)

    def possible(self) -> list[int]:
        taken = {snapshot.end_offset for snapshot in self.snapshots}
        return [end for end in self.ends if self.model.start < end <= self.committed and end not in taken]

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def raise_log_start(self, data: st.DataObject) -> None:
        start = max(data.draw(st.sampled_from(sorted(self.snapshots))).end_offset, self.model.start)
        self.log.raise_log_start(start)
        self.model.raise_start(start)
        gone = {snapshot for snapshot in self.snapshots if snapshot.end_offset < start}
        self.log.delete_snapshots(sorted(gone))
        self.snapshots -= gone
        self.ends = [end for end in self.ends if end >= start]
        self.log.retire_segments(NOW_MS)

    @rule(gap=st.integers(1, 50), rise=st.integers(0, 2))
    def install(self, gap: int, rise: int) -> None:
        snapshot_id = SnapshotId(self.model.end + gap, self.model.last_epoch + rise)
        leader = opened(SimulatedDisk())
        write_snapshot(leader, snapshot_id)
        self.log.write_part(WriteSnapshotPart(snapshot_id, 0, bytes(leader.read_snapshot(snapshot_id, 0, 1 << 20))))
        publication = self.log.begin_install(snapshot_id)
        publication.carry_out()
        assert self.log.finish_install(publication) == SnapshotInstalled(snapshot_id, None)
        self.model = LogImage(*snapshot_id)
        self.snapshots.add(snapshot_id)
        self.log.delete_snapshots(sorted(self.snapshots - {snapshot_id}))
        self.snapshots = {snapshot_id}
        self.ends = [snapshot_id.end_offset]
        self.committed = snapshot_id.end_offset

    @rule()
    def flush(self) -> None:
        ticket = self.log.begin_flush()
        ticket.sync()
        self.log.finish_flush(ticket)

    @rule(is_clean=st.booleans())
    def start_again(self, is_clean: bool) -> None:
        self.flush()
        removal = self.log.take_removal()
        if removal is not None:
            removal()
        if is_clean:
            self.log.close()
        self.log = opened(self.disk)
        self.log.commit(self.committed)

    @invariant()
    def the_machine_sees_the_same(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.end_offset, log.last_epoch) == (model.start, model.end, model.last_epoch)
        assert [snapshot.id for snapshot in log.snapshots] == sorted(self.snapshots)
        for epoch in range(-1, self.epoch + 3):
            assert log.end_offset_for_epoch(epoch) == model.end_for_epoch(epoch), epoch

    @invariant()
    def the_records_are_the_same(self) -> None:
        offset, found = self.model.start, []
        while offset < self.model.end:
            for content in self.log.read(offset, max_bytes=300):
                for position, header in iter_batches(content):
                    found += [
                        EpochRecord(header.partition_leader_epoch, record.value)
                        for record in read_records(content, position)
                    ]
                    offset = header.end_offset
        assert found == self.model.entries


def opened_at(offset: int, epoch: int) -> QuorumLog:
    """An empty log of a leader that starts here."""
    disk = SimulatedDisk()
    log = opened(disk)
    if not offset:
        return log
    write_snapshot(log, SnapshotId(offset, epoch))
    return opened(disk)


TestQuorumLogAgainstMemory = QuorumLogAgainstMemory.TestCase
TestQuorumLogAgainstMemory.settings = settings(max_examples=60, stateful_step_count=30)
