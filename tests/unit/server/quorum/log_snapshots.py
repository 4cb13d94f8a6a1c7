"""A quorum's log on a simulated disk, and snapshots that it writes, fetches and installs."""

from collections.abc import Iterable

from tailrace.model.partitions import METADATA_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.raft.effects import AppendAsLeader, AppendFetched, WriteSnapshotPart
from tailrace.raft.events import AppendRejected, LogAppended, SnapshotInstalled, SnapshotRejected
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VoterSet
from tailrace.server.quorum.log import QuorumLog
from tailrace.storage.file_system import append_all
from tailrace.storage.snapshots.writer import Publication
from tailrace.testing.disk import SimulatedDisk
from testkit.quorum.quorum_logs import stored_batches

PARTITION = TopicPartition(METADATA_TOPIC, 0)


DIRECTORY = f"/data/{PARTITION}"


NOW_MS = 1_700_000_000_000


CONFIG = TopicConfig(segment_bytes=600)


VOTERS = VoterSet.of(
    Voter(ReplicaKey(number, bytes([number]) * 16), (VoterListener("CONTROLLER", "localhost", 9000 + number),))
    for number in (1, 2, 3)
)


def opened(disk: SimulatedDisk) -> QuorumLog:
    return QuorumLog.open(DIRECTORY, PARTITION, files=disk, config=CONFIG, now_ms=NOW_MS)


def append(log: QuorumLog, count: int, *, epoch: int = 1, text: str = "r") -> None:
    values = tuple(f"{text}{log.end_offset + number}".encode() for number in range(count))
    log.append_as_leader(AppendAsLeader(log.end_offset, epoch, values), now_ms=NOW_MS)


def append_committed(log: QuorumLog, *counts: int) -> None:
    """Append batches of so many records, and commit all records."""
    for count in counts:
        append(log, count)
    log.commit(log.end_offset)


def flush(log: QuorumLog) -> None:
    ticket = log.begin_flush()
    ticket.sync()
    log.finish_flush(ticket)


def snapshot(log: QuorumLog, end_offset: int, epoch: int, *, voters: VoterSet | None = None, size: int = 3) -> None:
    writer = log.begin_snapshot(SnapshotId(end_offset, epoch), last_contained_ms=NOW_MS, voters=voters)
    writer.append(f"s{number}".encode() for number in range(size))
    writer.seal()
    publication = Publication(writer.part)
    publication.carry_out()
    log.finish_snapshot(publication)


def start_at_snapshot(log: QuorumLog, end_offset: int, epoch: int) -> None:
    """Write a snapshot, and let the log start there."""
    snapshot(log, end_offset, epoch)
    log.raise_log_start(end_offset)


def checkpoint_path(end_offset: int, epoch: int = 1) -> str:
    return f"{DIRECTORY}/{end_offset:020d}-{epoch:010d}.checkpoint"


def write_foreign_snapshot(disk: SimulatedDisk, end_offset: int, epoch: int) -> str:
    """Put a snapshot of another node beside the log, and return its path."""
    file = disk.open(path := checkpoint_path(end_offset, epoch), create=True)
    append_all(file, foreign_snapshot(end_offset, epoch))
    file.close()
    return path


def foreign_snapshot(end_offset: int, epoch: int, *, voters: VoterSet | None = None) -> bytes:
    """The bytes of a snapshot as another node serves it."""
    other = opened(SimulatedDisk())
    snapshot(other, end_offset, epoch, voters=voters)
    return bytes(other.read_snapshot(SnapshotId(end_offset, epoch), 0, 1 << 20))


def fetch_part(log: QuorumLog, snapshot_id: SnapshotId, data: bytes) -> None:
    for position in range(0, len(data), 100):
        log.write_part(WriteSnapshotPart(snapshot_id, position, data[position : position + 100]))


def install(log: QuorumLog, snapshot_id: SnapshotId, data: bytes) -> SnapshotInstalled | SnapshotRejected:
    fetch_part(log, snapshot_id, data)
    publication = log.begin_install(snapshot_id)
    publication.carry_out()
    return log.finish_install(publication)


def values_of(chunks: Iterable[bytes | bytearray | memoryview]) -> list[str]:
    return [
        (record.value or b"").decode()
        for chunk in chunks
        for position, header in iter_batches(chunk)
        if not header.is_control
        for record in read_records(chunk, position)
    ]


def replayed(log: QuorumLog, end_offset: int) -> list[str]:
    return values_of(stored_batches(log, end_offset=end_offset))


def view(log: QuorumLog) -> tuple[int, int, int, list[SnapshotId]]:
    return log.log_start_offset, log.end_offset, log.last_epoch, [kept.id for kept in log.snapshots]


def batch(base_offset: int, *values: str, epoch: int = 1) -> bytes:
    records = [Record(0, NOW_MS, None, value.encode()) for value in values]
    return bytes(build_batch(records, base_offset=base_offset, leader_epoch=epoch))


def fetched(log: QuorumLog, records: bytes, *, epoch: int = 5) -> LogAppended | AppendRejected:
    return log.append_fetched(AppendFetched(log.end_offset, epoch, records))
