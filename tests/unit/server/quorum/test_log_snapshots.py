"""Snapshots of a quorum's log: where it starts, damage, and snapshots that replace it."""

from collections.abc import Sequence

import pytest

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.raft.events import LogAppended, SnapshotInstalled, SnapshotRejected
from tailrace.raft.rpc import LogEnd, SnapshotId
from tailrace.raft.snapshots import snapshot_fault
from tailrace.raft.voters import VotersAt
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import RECOVERY_POINT_INTERVAL
from tailrace.testing.disk import SimulatedDisk
from unit.server.quorum.log_snapshots import (
    DIRECTORY,
    NOW_MS,
    PARTITION,
    VOTERS,
    append,
    append_committed,
    batch,
    checkpoint_path,
    fetch_part,
    fetched,
    flush,
    foreign_snapshot,
    install,
    opened,
    replayed,
    snapshot,
    start_at_snapshot,
    values_of,
    view,
    write_foreign_snapshot,
)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> QuorumLog:
    return opened(disk)


NEWEST = checkpoint_path(3)


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
    append_committed(log, *[1] * 5)
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
    append_committed(log, 5)
    snapshot(log, 3, 1)
    snapshot(log, 5, 1)
    log.close()
    damage(disk)
    assert view(opened(disk)) == (0, 5, 1, [SnapshotId(5, 1)])


def test_segments_below_the_log_start_stand_in_for_a_damaged_snapshot(disk: SimulatedDisk, log: QuorumLog) -> None:
    for epoch in range(1, 6):
        append(log, 1, epoch=epoch)
    log.commit(5)
    start_at_snapshot(log, 3, 3)
    flush(log)
    log.close()
    damage(disk, checkpoint_path(3, 3))
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
    append_committed(log, *[3] * 10)
    start_at_snapshot(log, 27, 1)
    log.retire_segments(NOW_MS)
    flush(log)
    log.close()
    newest = checkpoint_path(27)
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
    path = write_foreign_snapshot(disk, end_offset, epoch)
    damage(disk, path)
    with pytest.raises(CorruptRecords, match=f"{end_offset:020d}-{epoch:010d}.checkpoint"):
        opened(disk)
    assert disk.exists(path)


def test_a_damaged_snapshot_stays_if_the_log_is_damaged_too(disk: SimulatedDisk, log: QuorumLog) -> None:
    append_committed(log, 5)
    snapshot(log, 3, 1)
    flush(log)
    log.close()
    damage(disk)
    disk.flip_bit(f"{DIRECTORY}/00000000000000000000.log", 70)
    with pytest.raises(CorruptRecords):
        opened(disk)
    assert disk.exists(NEWEST)


def test_a_quorum_log_starts_at_a_snapshot_and_still_does_after_a_restart(disk: SimulatedDisk, log: QuorumLog) -> None:
    append_committed(log, *[3] * 10)
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


def test_an_empty_quorum_log_has_the_epoch_of_the_snapshot_it_starts_at(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 3)
    append(log, 3, epoch=4)
    log.commit(6)
    start_at_snapshot(log, 6, 4)
    flush(log)
    for instance in (log, opened(disk)):
        assert view(instance) == (6, 6, 4, [SnapshotId(6, 4)])
        assert instance.end_offset_for_epoch(9) is None
    append(log, 2, epoch=4)
    assert log.end_offset_for_epoch(9) == LogEnd(4, 8)


def test_a_followers_quorum_log_may_start_where_it_has_no_snapshot_itself(log: QuorumLog) -> None:
    append_committed(log, 3, 3)
    snapshot(log, 6, 1)
    log.raise_log_start(3)
    assert view(log) == (3, 6, 1, [SnapshotId(6, 1)])
    with pytest.raises(AssertionError, match="newest snapshot"):
        log.raise_log_start(7)


def test_snapshots_below_the_log_start_go_at_the_next_start(disk: SimulatedDisk, log: QuorumLog) -> None:
    append_committed(log, *[3] * 4)
    snapshot(log, 3, 1)
    start_at_snapshot(log, 9, 1)
    log.close()
    assert view(opened(disk)) == (9, 12, 1, [SnapshotId(9, 1)])
    assert not disk.exists(checkpoint_path(3))


def test_the_start_of_a_quorum_log_without_a_snapshot_is_damage(disk: SimulatedDisk, log: QuorumLog) -> None:
    append_committed(log, *[3] * 4)
    start_at_snapshot(log, 9, 1)
    log.close()
    disk.unlink(checkpoint_path(9))
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
    write_foreign_snapshot(disk, 8, 6)
    with pytest.raises(CorruptRecords, match="does not have the record of epoch 6 before offset 8"):
        opened(disk)


def test_a_snapshot_of_a_later_epoch_than_what_follows_it_in_the_log_is_damage(
    disk: SimulatedDisk, log: QuorumLog
) -> None:
    append_committed(log, 5, 5)
    start_at_snapshot(log, 5, 1)
    log.close()
    disk.unlink(checkpoint_path(5))
    write_foreign_snapshot(disk, 5, 6)
    with pytest.raises(CorruptRecords, match="does not have the record of epoch 6 before offset 5"):
        opened(disk)


def test_a_quorum_log_that_a_snapshot_is_about_to_replace_gets_no_recovery_point(
    disk: SimulatedDisk, log: QuorumLog
) -> None:
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
    append_committed(log, *[3] * 4)
    snapshot(log, 3, 1, size=9)
    snapshot(log, 6, 1, size=2)
    assert replayed(log, 9) == ["s0", "s1", "r6", "r7", "r8"]
    assert values_of(log.open_snapshot(SnapshotId(3, 1)).batches()) == [f"s{number}" for number in range(9)]


def test_a_snapshot_that_is_read_keeps_its_file_until_its_reader_is_closed(disk: SimulatedDisk, log: QuorumLog) -> None:
    append_committed(log, 3, 3)
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


def test_kafkas_bootstrap_snapshot_holds_no_record(disk: SimulatedDisk, log: QuorumLog) -> None:
    snapshot(log, 0, 0, voters=VOTERS)
    assert view(opened(disk)) == (0, 0, 0, [])
