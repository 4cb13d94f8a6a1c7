"""A quorum's log on a disk: the view of the Raft machine, its effects, and the repairs at a start."""

from collections.abc import Iterable, Sequence

import pytest

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.partitions import METADATA_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.raft.effects import AppendAsLeader, AppendFetched, KRaftVersion, LeaderChange, Voters, WriteSnapshotPart
from tailrace.raft.events import AppendRejected, LogAppended, SnapshotInstalled, SnapshotRejected
from tailrace.raft.rpc import LogEnd, SnapshotId
from tailrace.raft.snapshots import snapshot_fault
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VotersAt, VoterSet
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import RECOVERY_POINT_INTERVAL
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


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> QuorumLog:
    return opened(disk)


def append(log: QuorumLog, count: int, *, epoch: int = 1, text: str = "r") -> None:
    values = tuple(f"{text}{log.end_offset + number}".encode() for number in range(count))
    log.append_as_leader(AppendAsLeader(log.end_offset, epoch, values), now_ms=NOW_MS)


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


def test_an_empty_log_has_neither_records_nor_epochs(log: QuorumLog) -> None:
    assert view(log) == (0, 0, 0, [])
    assert log.end_offset_for_epoch(7) is None


def test_records_of_a_leader_are_read_by_epoch_and_offset(disk: SimulatedDisk, log: QuorumLog) -> None:
    leader_change = LeaderChange(1, VOTERS.keys, VOTERS.keys[:2])
    log.append_as_leader(AppendAsLeader(0, 2, control=(leader_change, KRaftVersion(1), Voters(VOTERS))), now_ms=NOW_MS)
    append(log, 2, epoch=2)
    append(log, 3, epoch=4)
    assert view(log) == (0, 8, 4, [])
    flush(log)
    ends = [log.end_offset_for_epoch(epoch) for epoch in range(6)]
    assert ends == [None, None, LogEnd(2, 5), LogEnd(2, 5), LogEnd(4, 8), LogEnd(4, 8)]
    assert values_of(log.read(0, max_bytes=1000)) == ["r3", "r4", "r5", "r6", "r7"]
    assert log.read(8, max_bytes=1000) == []
    assert opened(disk).voters_in_log == [VotersAt(2, VOTERS)]


def test_a_follower_appends_the_records_of_a_leader(log: QuorumLog) -> None:
    log.append_as_leader(AppendAsLeader(0, 2, control=(KRaftVersion(1), Voters(VOTERS))), now_ms=NOW_MS)
    append(log, 3, epoch=3)
    records = b"".join(map(bytes, log.read(0, max_bytes=1000)))
    follower = opened(SimulatedDisk())
    assert fetched(follower, records) == LogAppended(5, 3, (VotersAt(1, VOTERS),))
    assert b"".join(map(bytes, follower.read(0, max_bytes=1000))) == records


def test_an_answer_may_end_inside_of_a_batch(log: QuorumLog) -> None:
    records = batch(0, "a", "b") + batch(2, "c")
    assert fetched(log, records[:-1]) == LogAppended(2, 1)
    assert isinstance(fetched(log, batch(2, "c")[:-1]), AppendRejected)


@pytest.mark.parametrize(
    "records",
    [
        batch(0, "a") + batch(2, "b"),
        batch(1, "a"),
        batch(0, "a", epoch=6),
        batch(0, "a", epoch=-1),
        batch(0, "a", epoch=2) + batch(1, "b", epoch=1),
        b"",
        batch(0, "a")[:-1] + b"\1",
        bytes(200),
    ],
    ids=["gap", "ahead", "above the leader's", "no epoch", "falling", "nothing", "checksum", "zeros"],
)
def test_fetched_records_that_do_not_fit_leave_the_log_alone(log: QuorumLog, records: bytes) -> None:
    assert isinstance(fetched(log, records), AppendRejected)
    assert view(log) == (0, 0, 0, [])
    assert fetched(log, batch(0, "a")) == LogAppended(1, 1)


def test_every_flipped_bit_of_what_was_fetched_is_refused_or_lies_in_what_was_left_out(log: QuorumLog) -> None:
    append(log, 2, epoch=3)
    records = batch(2, "a", "b", epoch=4) + batch(4, "c", epoch=5)
    for position in range(len(records)):
        for bit in range(8):
            damaged = bytearray(records)
            damaged[position] ^= 1 << bit
            outcome = fetched(log, bytes(damaged))
            if isinstance(outcome, AppendRejected):
                continue
            # A length that grew makes the last batch look cut short; an epoch between right epochs passes for right.
            kept = b"".join(map(bytes, log.read(2, max_bytes=1000)))
            assert [record.value for record in read_records(kept)] == [b"a", b"b"]
            log.truncate(2)


def test_a_log_is_cut_above_the_high_watermark_only(log: QuorumLog) -> None:
    append(log, 3)
    append(log, 3, epoch=2)
    log.commit(3)
    log.truncate(3)
    assert view(log) == (0, 3, 1, [])
    with pytest.raises(AssertionError, match="committed"):
        log.truncate(0)


def test_the_recovery_point_covers_committed_records_only(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, RECOVERY_POINT_INTERVAL + 5)
    flush(log)
    assert not disk.exists(f"{DIRECTORY}/recovery-point-offset-checkpoint")
    log.commit(RECOVERY_POINT_INTERVAL + 2)
    flush(log)
    assert f"{PARTITION.topic} 0 {RECOVERY_POINT_INTERVAL + 2}".encode() in disk.read_bytes(
        f"{DIRECTORY}/recovery-point-offset-checkpoint"
    )
    assert opened(disk).high_watermark == RECOVERY_POINT_INTERVAL + 2


def test_a_log_with_any_single_byte_changed_where_it_was_safe_is_named_and_does_not_open(
    disk: SimulatedDisk, log: QuorumLog
) -> None:
    for _ in range(10):
        append(log, 3)
    log.commit(30)
    log.close()
    names = [name for name in disk.list_dir(DIRECTORY) if name.endswith(".log")]
    assert len(names) > 1
    for name in names:
        path = f"{DIRECTORY}/{name}"
        starts = [position for position, _ in iter_batches(disk.read_bytes(path))]
        # In the segments that recovery reads again it takes a leader epoch that rises for a new leader's.
        epochs = {start + at for start in starts for at in range(12, 16)} if name == names[-1] else set()
        for position in set(range(disk.size_of(path))) - epochs:
            disk.flip_bit(path, position, position % 8)
            with pytest.raises(CorruptRecords) as caught:
                opened(disk)
            assert DIRECTORY in caught.value.detail
            disk.flip_bit(path, position, position % 8)
    assert view(opened(disk)) == (0, 30, 1, [])


NEWEST = f"{DIRECTORY}/00000000000000000003-0000000001.checkpoint"


def damage(disk: SimulatedDisk, path: str = NEWEST) -> None:
    disk.flip_bit(path, 70)


def test_a_damaged_snapshot_whose_records_the_log_has_is_renamed(
    disk: SimulatedDisk, log: QuorumLog, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, 5)
    log.commit(3)
    snapshot(log, 3, 1)
    log.close()
    damage(disk)
    again = opened(disk)
    assert (view(again), again.high_watermark) == ((0, 5, 1, []), 3)
    assert replayed(again, 5) == ["r0", "r1", "r2", "r3", "r4"]
    assert not disk.exists(NEWEST)
    assert disk.exists(f"{NEWEST}.damaged")
    assert sum(f"path={NEWEST}.damaged action=use-the-log" in line for line in caplog.messages) == 1
    snapshot(again, 3, 1)
    again.close()
    assert view(opened(disk)) == (0, 5, 1, [SnapshotId(3, 1)])


def test_an_older_snapshot_stands_in_for_a_damaged_one(disk: SimulatedDisk, log: QuorumLog) -> None:
    for _ in range(5):
        append(log, 1)
    log.commit(5)
    snapshot(log, 2, 1, voters=VOTERS)
    snapshot(log, 3, 1, voters=VOTERS)
    log.raise_log_start(2)
    flush(log)
    log.close()
    damage(disk)
    again = opened(disk)
    assert view(again) == (2, 5, 1, [SnapshotId(2, 1)])
    assert again.voters_in_log == [VotersAt(1, VOTERS)]
    assert replayed(again, 5) == ["s0", "s1", "s2", "r2", "r3", "r4"]


def test_a_damaged_snapshot_beside_a_newer_one_is_renamed(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 5)
    log.commit(5)
    snapshot(log, 3, 1)
    snapshot(log, 5, 1)
    log.close()
    damage(disk)
    assert view(opened(disk)) == (0, 5, 1, [SnapshotId(5, 1)])


def test_segments_that_still_begin_below_the_log_start_stand_in(disk: SimulatedDisk, log: QuorumLog) -> None:
    for epoch in range(1, 6):
        append(log, 1, epoch=epoch)
    log.commit(5)
    snapshot(log, 3, 3)
    log.raise_log_start(3)
    flush(log)
    log.close()
    damage(disk, f"{DIRECTORY}/00000000000000000003-0000000003.checkpoint")
    for _ in range(2):  # the lower log start is durable
        again = opened(disk)
        assert (view(again), again.high_watermark) == ((0, 5, 5, []), 5)
        assert replayed(again, 5) == ["r0", "r1", "r2", "r3", "r4"]
        assert again.end_offset_for_epoch(2) == LogEnd(2, 2)
        again.commit(3)
        flush(again)
        again.close()


def test_a_damaged_snapshot_is_named_and_the_log_does_not_open_without_its_records(
    disk: SimulatedDisk, log: QuorumLog
) -> None:
    for _ in range(10):
        append(log, 3)
    log.commit(30)
    snapshot(log, 27, 1)
    log.raise_log_start(27)
    log.retire_segments(NOW_MS)
    flush(log)
    log.close()
    newest = f"{DIRECTORY}/00000000000000000027-0000000001.checkpoint"
    assert not disk.exists(f"{DIRECTORY}/00000000000000000000.log")
    damage(disk, newest)
    for _ in range(2):
        with pytest.raises(CorruptRecords, match="00000000000000000027-0000000001.checkpoint"):
            opened(disk)
    assert disk.exists(newest)
    damage(disk, newest)  # and so repaired
    assert view(opened(disk)) == (27, 30, 1, [SnapshotId(27, 1)])


@pytest.mark.parametrize(("end_offset", "epoch"), [(4, 1), (3, 2)], ids=["behind its end", "of another epoch"])
def test_a_damaged_snapshot_that_the_log_does_not_reach_is_not_renamed(
    disk: SimulatedDisk, log: QuorumLog, end_offset: int, epoch: int
) -> None:
    """The power went before a fetched snapshot replaced the log."""
    append(log, 3)
    log.close()
    data = foreign_snapshot(end_offset, epoch)
    path = f"{DIRECTORY}/{end_offset:020d}-{epoch:010d}.checkpoint"
    file = disk.open(path, create=True)
    append_all(file, data)
    file.close()
    damage(disk, path)
    with pytest.raises(CorruptRecords, match=f"{end_offset:020d}-{epoch:010d}.checkpoint"):
        opened(disk)
    assert disk.exists(path)


def test_a_damaged_snapshot_stays_if_the_log_is_damaged_too(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 5)
    log.commit(5)
    snapshot(log, 3, 1)
    flush(log)
    log.close()
    damage(disk)
    disk.flip_bit(f"{DIRECTORY}/00000000000000000000.log", 70)
    with pytest.raises(CorruptRecords):
        opened(disk)
    assert disk.exists(NEWEST)


def test_the_log_starts_at_a_snapshot_and_still_does_after_a_restart(disk: SimulatedDisk, log: QuorumLog) -> None:
    for _ in range(10):
        append(log, 3)
    log.commit(30)
    assert snapshot_fault(SnapshotId(27, 1), log, log.high_watermark) is None
    snapshot(log, 15, 1)
    snapshot(log, 27, 1, voters=VOTERS)
    log.raise_log_start(27)
    log.delete_snapshots([SnapshotId(15, 1)])
    log.retire_segments(NOW_MS)
    flush(log)
    removal = log.take_removal()
    assert removal is not None
    removal()
    assert view(log) == (27, 30, 1, [SnapshotId(27, 1)])
    assert view(opened(disk)) == (27, 30, 1, [SnapshotId(27, 1)])
    assert not disk.exists(f"{DIRECTORY}/00000000000000000000.log")
    again = opened(disk)
    assert again.voters_in_log == [VotersAt(26, VOTERS)]
    assert again.snapshots[0].last_contained_ms == NOW_MS


def test_snapshots_tell_their_times_by_the_clock_of_the_machine(log: QuorumLog) -> None:
    append(log, 5)
    flush(log)
    log.commit(5)
    log.set_clock_offset(wall_ahead_ms=NOW_MS - 70)
    snapshot(log, 5, 1)
    assert [kept.last_contained_ms for kept in log.snapshots] == [70]


def test_an_empty_log_has_the_epoch_of_the_snapshot_it_starts_at(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 3)
    append(log, 3, epoch=4)
    log.commit(6)
    snapshot(log, 6, 4)
    log.raise_log_start(6)
    flush(log)
    for instance in (log, opened(disk)):
        assert view(instance) == (6, 6, 4, [SnapshotId(6, 4)])
        assert instance.end_offset_for_epoch(9) is None
    append(log, 2, epoch=4)
    assert log.end_offset_for_epoch(9) == LogEnd(4, 8)


def test_a_followers_log_may_start_where_it_has_no_snapshot_itself(log: QuorumLog) -> None:
    append(log, 3)
    append(log, 3)
    log.commit(6)
    snapshot(log, 6, 1)
    log.raise_log_start(3)
    assert view(log) == (3, 6, 1, [SnapshotId(6, 1)])
    with pytest.raises(AssertionError, match="newest snapshot"):
        log.raise_log_start(7)


def test_snapshots_below_the_log_start_go_at_the_next_start(disk: SimulatedDisk, log: QuorumLog) -> None:
    for _ in range(4):
        append(log, 3)
    log.commit(12)
    snapshot(log, 3, 1)
    snapshot(log, 9, 1)
    log.raise_log_start(9)
    log.close()
    assert view(opened(disk)) == (9, 12, 1, [SnapshotId(9, 1)])
    assert not disk.exists(f"{DIRECTORY}/00000000000000000003-0000000001.checkpoint")


def test_a_log_start_without_a_snapshot_is_damage(disk: SimulatedDisk, log: QuorumLog) -> None:
    for _ in range(4):
        append(log, 3)
    log.commit(12)
    snapshot(log, 9, 1)
    log.raise_log_start(9)
    log.close()
    disk.unlink(f"{DIRECTORY}/00000000000000000009-0000000001.checkpoint")
    with pytest.raises(CorruptRecords, match="starts at offset 9 and no snapshot"):
        opened(disk)


def test_a_snapshot_replaces_the_log(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 5)
    log.commit(4)
    flush(log)
    snapshot_id = SnapshotId(40, 6)
    assert install(log, snapshot_id, foreign_snapshot(40, 6, voters=VOTERS)) == SnapshotInstalled(snapshot_id, VOTERS)
    for instance in (log, opened(disk)):
        assert view(instance) == (40, 40, 6, [snapshot_id])
        assert instance.high_watermark == 40
    assert opened(disk).voters_in_log == [VotersAt(39, VOTERS)]
    assert fetched(log, batch(40, "next", epoch=7), epoch=7) == LogAppended(41, 7)
    flush(log)
    assert view(opened(disk)) == (40, 41, 7, [snapshot_id])


def test_a_damaged_snapshot_does_not_replace_the_log(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 5)
    flush(log)
    data = bytearray(foreign_snapshot(40, 6))
    data[100] ^= 4
    snapshot_id = SnapshotId(40, 6)
    outcome = install(log, snapshot_id, bytes(data))
    assert isinstance(outcome, SnapshotRejected)
    assert outcome.snapshot_id == snapshot_id
    assert view(log) == (0, 5, 1, [])
    assert not any("checkpoint.part" in name for name in disk.list_dir(DIRECTORY))
    assert isinstance(install(log, snapshot_id, foreign_snapshot(40, 6)), SnapshotInstalled)


@pytest.mark.parametrize(
    ("epochs", "snapshot_id"),
    [
        ((1,), SnapshotId(40, 6)),
        ((), SnapshotId(40, 6)),
        ((1, 2), SnapshotId(5, 6)),  # ends inside of the log, with a later epoch than any of it
        ((1, 7), SnapshotId(40, 6)),  # a tail that a later leader wrote and that is not committed
        ((1, 7), SnapshotId(10, 6)),  # such a tail that happens to end there
        ((1, 7), SnapshotId(8, 6)),
    ],
)
def test_a_snapshot_that_was_fetched_before_a_crash_replaces_the_log_at_the_next_start(
    disk: SimulatedDisk, log: QuorumLog, epochs: Sequence[int], snapshot_id: SnapshotId
) -> None:
    for epoch in epochs:
        append(log, 5, epoch=epoch)
    flush(log)
    fetch_part(log, snapshot_id, foreign_snapshot(*snapshot_id))
    log.begin_install(snapshot_id).carry_out()
    again = opened(disk)
    assert view(again) == (*[snapshot_id.end_offset] * 2, snapshot_id.epoch, [snapshot_id])
    assert fetched(again, batch(snapshot_id.end_offset, "a", epoch=6), epoch=9) == LogAppended(
        snapshot_id.end_offset + 1, 6
    )
    flush(again)
    assert opened(disk).end_offset_for_epoch(9) == LogEnd(6, snapshot_id.end_offset + 1)


def test_a_snapshot_of_another_history_than_the_committed_log_is_damage(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 5)
    append(log, 5, epoch=7)
    log.commit(10)
    log.close()
    file = disk.open(f"{DIRECTORY}/00000000000000000008-0000000006.checkpoint", create=True)
    append_all(file, foreign_snapshot(8, 6))
    with pytest.raises(CorruptRecords, match="does not have the record of epoch 6 before offset 8"):
        opened(disk)


def test_a_snapshot_of_a_later_epoch_than_what_follows_it_in_the_log_is_damage(
    disk: SimulatedDisk, log: QuorumLog
) -> None:
    append(log, 5)
    append(log, 5)
    log.commit(10)
    snapshot(log, 5, 1)
    log.raise_log_start(5)
    log.close()
    disk.unlink(f"{DIRECTORY}/00000000000000000005-0000000001.checkpoint")
    file = disk.open(f"{DIRECTORY}/00000000000000000005-0000000006.checkpoint", create=True)
    append_all(file, foreign_snapshot(5, 6))
    with pytest.raises(CorruptRecords, match="does not have the record of epoch 6 before offset 5"):
        opened(disk)


def test_a_log_that_is_about_to_be_replaced_gets_no_recovery_point(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 2 * RECOVERY_POINT_INTERVAL)
    log.commit(2 * RECOVERY_POINT_INTERVAL)
    flush(log)
    snapshot_id = SnapshotId(3 * RECOVERY_POINT_INTERVAL, 6)
    fetch_part(log, snapshot_id, foreign_snapshot(*snapshot_id))
    publication = log.begin_install(snapshot_id)
    publication.carry_out()
    flush(log)
    assert disk.read_bytes(f"{DIRECTORY}/recovery-point-offset-checkpoint") == f"0\n1\n{PARTITION.topic} 0 0\n".encode()
    assert isinstance(log.finish_install(publication), SnapshotInstalled)
    flush(log)
    assert view(opened(disk)) == (3000, 3000, 6, [snapshot_id])


def test_a_partial_snapshot_of_a_crash_is_discarded(disk: SimulatedDisk, log: QuorumLog) -> None:
    fetch_part(log, SnapshotId(40, 6), foreign_snapshot(40, 6))
    again = opened(disk)
    assert view(again) == (0, 0, 0, [])
    assert not any("part" in name for name in disk.list_dir(DIRECTORY))


def test_a_snapshot_and_the_log_behind_it_read_as_they_were_written(disk: SimulatedDisk, log: QuorumLog) -> None:
    for _ in range(4):
        append(log, 3)
    log.commit(12)
    snapshot(log, 3, 1, size=9)
    snapshot(log, 6, 1, size=2)
    assert replayed(log, 9) == ["s0", "s1", "r6", "r7", "r8"]
    assert values_of(log.open_snapshot(SnapshotId(3, 1)).batches()) == [f"s{number}" for number in range(9)]


def test_a_snapshot_that_is_read_keeps_its_file_until_its_reader_is_closed(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 3)
    append(log, 3)
    log.commit(6)
    snapshot(log, 3, 1)
    snapshot(log, 6, 1)
    reader = log.open_snapshot(SnapshotId(3, 1))
    next(iter(reader.batches()))
    log.delete_snapshots([SnapshotId(3, 1)])
    assert log.take_removal() is None
    reader.close()
    assert log.take_removal() is not None
    with pytest.raises(KafkaError) as caught:
        log.read_snapshot(SnapshotId(3, 1), 0, 100)
    assert caught.value.code is ErrorCode.SNAPSHOT_NOT_FOUND


def test_a_disk_that_is_full_fails_the_append_and_keeps_the_log(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 3)
    disk.free_space = 10
    with pytest.raises(StorageError):
        append(log, 3)
    assert view(log) == (0, 3, 1, [])
    disk.free_space = 1 << 20
    append(log, 1)
    assert log.end_offset == 4


def test_kafkas_bootstrap_snapshot_holds_no_record(disk: SimulatedDisk, log: QuorumLog) -> None:
    snapshot(log, 0, 0, voters=VOTERS)
    assert view(opened(disk)) == (0, 0, 0, [])
