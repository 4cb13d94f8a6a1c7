"""A quorum's log on a disk: the view of the Raft machine, its effects, and the repairs at a start."""

import pytest

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.raft.effects import AppendAsLeader, KRaftVersion, LeaderChange, Voters
from tailrace.raft.events import AppendRejected, LogAppended
from tailrace.raft.rpc import LogEnd
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
    fetched,
    flush,
    opened,
    values_of,
    view,
)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> QuorumLog:
    return opened(disk)


def test_an_empty_quorum_log_has_neither_records_nor_epochs(log: QuorumLog) -> None:
    assert view(log) == (0, 0, 0, [])
    assert log.end_offset_for_epoch(7) is None


def test_a_quorum_log_reads_records_of_a_leader_by_epoch_and_offset(disk: SimulatedDisk, log: QuorumLog) -> None:
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


def test_a_quorum_log_of_a_follower_appends_the_records_of_a_leader(log: QuorumLog) -> None:
    log.append_as_leader(AppendAsLeader(0, 2, control=(KRaftVersion(1), Voters(VOTERS))), now_ms=NOW_MS)
    append(log, 3, epoch=3)
    records = b"".join(map(bytes, log.read(0, max_bytes=1000)))
    follower = opened(SimulatedDisk())
    assert fetched(follower, records) == LogAppended(5, 3, (VotersAt(1, VOTERS),))
    assert b"".join(map(bytes, follower.read(0, max_bytes=1000))) == records


def test_records_that_a_quorum_log_fetches_may_end_inside_of_a_batch(log: QuorumLog) -> None:
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
def test_fetched_records_that_do_not_fit_leave_the_quorum_log_alone(log: QuorumLog, records: bytes) -> None:
    assert isinstance(fetched(log, records), AppendRejected)
    assert view(log) == (0, 0, 0, [])
    assert fetched(log, batch(0, "a")) == LogAppended(1, 1)


def test_a_quorum_log_refuses_each_flipped_bit_of_fetched_records_or_leaves_it_out(log: QuorumLog) -> None:
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


def test_a_quorum_log_is_cut_above_the_high_watermark_only(log: QuorumLog) -> None:
    append(log, 3)
    append(log, 3, epoch=2)
    log.commit(3)
    log.truncate(3)
    assert view(log) == (0, 3, 1, [])
    with pytest.raises(AssertionError, match="committed"):
        log.truncate(0)


def test_the_recovery_point_of_a_quorum_log_covers_committed_records_only(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, RECOVERY_POINT_INTERVAL + 5)
    flush(log)
    assert not disk.exists(f"{DIRECTORY}/recovery-point-offset-checkpoint")
    log.commit(RECOVERY_POINT_INTERVAL + 2)
    flush(log)
    assert f"{PARTITION.topic} 0 {RECOVERY_POINT_INTERVAL + 2}".encode() in disk.read_bytes(
        f"{DIRECTORY}/recovery-point-offset-checkpoint"
    )
    assert opened(disk).high_watermark == RECOVERY_POINT_INTERVAL + 2


def test_a_quorum_log_with_a_changed_byte_where_it_was_safe_is_named_and_does_not_open(
    disk: SimulatedDisk, log: QuorumLog
) -> None:
    append_committed(log, *[3] * 10)
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


def test_a_full_disk_fails_the_append_and_keeps_the_quorum_log(disk: SimulatedDisk, log: QuorumLog) -> None:
    append(log, 3)
    disk.free_space = 10
    with pytest.raises(StorageError):
        append(log, 3)
    assert view(log) == (0, 3, 1, [])
    disk.free_space = 1 << 20
    append(log, 1)
    assert log.end_offset == 4
