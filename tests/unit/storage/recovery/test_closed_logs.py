import pytest
from crc32c import crc32c

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.ids import TopicId
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import ClosedLog, ClosedTopic, EpochEntry, Log, ReadLimits
from tailrace.storage.checkpoints import LEADER_EPOCHS
from tailrace.storage.flushed_note import read_note
from tailrace.storage.recovery.closed_logs import CLOSED_LOGS, ClosedSegment, read_closed_logs, write_closed_logs
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch

ORDERS, INVOICES = TopicId(b"o" * 16), TopicId(b"i" * 16)
FULL = ClosedLog(
    log_start_offset=3,
    log_end_offset=40,
    first_dirty_offset=12,
    gap_bound=12,
    snapshot_offset=40,
    has_producers=True,
    segments=(ClosedSegment(0, 900), ClosedSegment(20, 0)),
    epochs=(EpochEntry(0, 3), EpochEntry(7, 20)),
)


def written() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs("/logs")
    logs = {
        "orders": ClosedTopic(ORDERS, {0: FULL.to_line(), 7: ClosedLog().to_line()}),
        "gone": ClosedTopic(INVOICES, {}),
        "in-voices": ClosedTopic(INVOICES, {1: ClosedLog().to_line()}),
    }
    write_closed_logs(disk, "/logs", logs, broker_epoch=5)
    return disk


@pytest.mark.parametrize("log", [ClosedLog(), FULL])
def test_a_line_gives_the_log_back(log: ClosedLog) -> None:
    assert ClosedLog.from_line(log.to_line()) == log


@pytest.mark.parametrize("line", ["", "0 0", "0 0 0 0 0 0 0 0:0", "0 0 0 0 0 0 0:0 x", FULL.to_line() + " 1"])
def test_an_invalid_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="."):
        ClosedLog.from_line(line)


def test_the_size_is_that_of_all_segments() -> None:
    assert FULL.size_bytes == 900


def test_written_lines_are_read_back() -> None:
    found = read_closed_logs(written(), "/logs", broker_epoch=5)
    assert found == {
        "orders": ClosedTopic(ORDERS, {0: FULL.to_line(), 7: ClosedLog().to_line()}),
        "in-voices": ClosedTopic(INVOICES, {1: ClosedLog().to_line()}),
    }


def test_lines_of_another_clean_stop_are_ignored() -> None:
    """Apache Kafka has used the directory in between: its mark says its own epoch."""
    assert read_closed_logs(written(), "/logs", broker_epoch=6) == {}
    assert read_closed_logs(SimulatedDisk(), "/", broker_epoch=5) == {}


def test_a_damaged_note_is_refused_wherever_the_damage_is() -> None:
    size = len(written().read_bytes(f"/logs/{CLOSED_LOGS}"))
    for position in range(size):
        disk = written()
        disk.flip_bit(f"/logs/{CLOSED_LOGS}", position, bit=1)
        try:
            found = read_closed_logs(disk, "/logs", broker_epoch=5)
        except CorruptRecords:
            continue
        assert found == {}, "the epoch has become another one"


def test_a_cut_note_is_refused() -> None:
    disk = written()
    content = disk.read_bytes(f"/logs/{CLOSED_LOGS}")
    for length in range(len(content)):
        disk.write_durably(f"/logs/{CLOSED_LOGS}", content[:length])
        with pytest.raises(CorruptRecords):
            read_closed_logs(disk, "/logs", broker_epoch=5)


DIRECTORY = "/logs/orders-0"
CONFIG = TopicConfig(segment_bytes=300)


def closed_log(disk: SimulatedDisk, *, producer_id: int = -1) -> ClosedLog:
    """A log of nine batches, after a clean close."""
    log = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=FIRST_TIMESTAMP_MS)
    for offset in range(9):
        log.append([stored_batch(offset, producer_id=producer_id, base_sequence=offset if producer_id >= 0 else -1)])
    log.close()
    closed = log.closed
    assert closed is not None
    return closed


def reopened(disk: SimulatedDisk, closed: ClosedLog) -> Log:
    return Log.reopen(DIRECTORY, closed, files=disk, config=CONFIG)


def test_a_log_that_was_closed_cleanly_goes_on_where_it_ended() -> None:
    disk = SimulatedDisk()
    closed = closed_log(disk, producer_id=7)
    operations = disk.operations
    log = reopened(disk, closed)
    assert disk.operations == operations, "opening changes nothing"
    assert log.log_end_offset == log.flushed_offset == 9
    assert log.recovery.clean
    log.append([stored_batch(9, producer_id=7, base_sequence=9)])
    log.flush()
    assert [log.read(ReadLimits(offset, 10_000)).next_offset for offset in (8, 9)] == [9, 10]
    assert log.producers.producers[7].batches[-1].last_sequence == 9


def test_an_active_segment_of_another_size_is_not_the_one_that_was_closed() -> None:
    disk = SimulatedDisk()
    closed = closed_log(disk)
    disk.open(f"{DIRECTORY}/{closed.segments[-1].base_offset:020d}.log").writev([b"more"])
    with pytest.raises(CorruptRecords, match="noted at its close"):
        reopened(disk, closed)


def test_a_missing_file_is_noticed() -> None:
    disk = SimulatedDisk()
    closed = closed_log(disk)
    disk.unlink(f"{DIRECTORY}/{closed.segments[-1].base_offset:020d}.log")
    with pytest.raises(StorageError):
        reopened(disk, closed)


def test_a_damaged_snapshot_of_producers_is_noticed() -> None:
    disk = SimulatedDisk()
    closed = closed_log(disk, producer_id=7)
    disk.flip_bit(f"{DIRECTORY}/{closed.snapshot_offset:020d}.snapshot", 20)
    with pytest.raises(CorruptRecords):
        reopened(disk, closed)


def test_a_log_whose_producers_stand_in_no_snapshot_at_its_end_is_opened_from_its_files() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=FIRST_TIMESTAMP_MS)
    log.append([stored_batch(0, producer_id=7, base_sequence=0)])
    assert log.closed is None


def test_the_first_flush_of_a_new_log_makes_everything_of_it_durable() -> None:
    disk = SimulatedDisk(3)
    disk.make_dirs("/logs")
    disk.sync_dir("/")
    disk.make_dirs(DIRECTORY)
    for name, content in (("partition.metadata", b"which topic"), ("00000000000000000000.log", b"")):
        disk.open(f"{DIRECTORY}/{name}", create=True).writev([content])
    log = Log.reopen(
        DIRECTORY,
        ClosedLog(),
        files=disk,
        config=CONFIG,
        is_new=True,
        unsynced_files=(disk.open(f"{DIRECTORY}/partition.metadata"),),
    )
    assert log.flushes.has_work
    log.flush()
    assert not log.flushes.has_work
    disk.power_cut()
    disk.reboot()
    assert disk.read_bytes(f"{DIRECTORY}/partition.metadata") == b"which topic"
    assert disk.exists(f"{DIRECTORY}/00000000000000000000.log")


def test_the_notes_of_a_log_that_is_used_again_vouch_for_its_file_of_epochs() -> None:
    disk = SimulatedDisk()
    log = reopened(disk, closed_log(disk))
    log.append([stored_batch(9)])
    log.flush()
    note = read_note(disk, DIRECTORY)
    assert note is not None
    assert note[:2] == (10, crc32c(disk.read_bytes(f"{DIRECTORY}/{LEADER_EPOCHS}")))
