import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import TopicId
from tailrace.storage import ClosedLog, ClosedTopic, EpochEntry
from tailrace.storage.closed_logs import CLOSED_LOGS, ClosedSegment, read_closed_logs, write_closed_logs
from tailrace.testing.disk import SimulatedDisk

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
def test_what_is_no_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="."):
        ClosedLog.from_line(line)


def test_the_size_is_that_of_all_segments() -> None:
    assert FULL.size_bytes == 900


def test_what_was_noted_is_found_again() -> None:
    found = read_closed_logs(written(), "/logs", broker_epoch=5)
    assert found == {
        "orders": ClosedTopic(ORDERS, {0: FULL.to_line(), 7: ClosedLog().to_line()}),
        "in-voices": ClosedTopic(INVOICES, {1: ClosedLog().to_line()}),
    }


def test_what_was_noted_for_another_clean_stop_is_not_believed() -> None:
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
