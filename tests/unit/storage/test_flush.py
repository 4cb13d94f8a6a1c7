"""Flushes of a log, and of several logs: names that they share, and many names, are synced once."""

import pytest

from tailrace.model.errors import StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log, sync_together
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.small_logs import DIRECTORY, NOW, SMALL, fill, open_log


class SyncsBench:
    """Logs in one directory, new logs, and the directories that are synced by name or all at once."""

    def __init__(self, logs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = SimulatedDisk.with_directory("/logs")
        self.synced: list[str] = []
        self.logs = [
            Log.open(f"/logs/orders-{number}", files=self.disk, config=TopicConfig(), now_ms=0)
            for number in range(logs)
        ]
        sync_dir, sync_all = self.disk.sync_dir, self.disk.sync_all

        def note_dir(path: str) -> None:
            self.synced.append(path)
            sync_dir(path)

        def note_all(path: str) -> bool:
            self.synced.append("all")
            return sync_all(path)

        monkeypatch.setattr(self.disk, "sync_dir", note_dir)
        monkeypatch.setattr(self.disk, "sync_all", note_all)

    def flush(self) -> None:
        tickets = [log.flushes.begin() for log in self.logs]
        sync_together(tickets)
        for log, ticket in zip(self.logs, tickets, strict=True):
            log.flushes.finish(ticket)


def test_a_directory_that_logs_share_is_synced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SyncsBench(3, monkeypatch)
    bench.flush()
    assert sorted(bench.synced) == ["/logs", "/logs/orders-0", "/logs/orders-1", "/logs/orders-2"]
    assert not any(log.flushes.has_work for log in bench.logs)


def test_many_directories_are_synced_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SyncsBench(40, monkeypatch)
    bench.flush()
    assert bench.synced == ["all"]
    assert not any(log.flushes.has_work for log in bench.logs)


@pytest.mark.parametrize("count", [3, 40])
def test_logs_that_are_flushed_together_survive_a_power_cut(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = SyncsBench(count, monkeypatch)
    for log in bench.logs:
        log.append([stored_batch(0)])
    bench.flush()
    bench.disk.power_cut()
    bench.disk.reboot()
    for number in range(count):
        again = Log.open(f"/logs/orders-{number}", files=bench.disk, config=TopicConfig(), now_ms=0)
        assert again.log_end_offset == bench.logs[number].log_end_offset > 0


def test_no_flush_syncs_nothing() -> None:
    sync_together(())


def test_a_flush_of_a_log_covers_the_batches_that_were_appended_when_it_began(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 3)
    ticket = log.flushes.begin()
    fill(log, 2)
    ticket.sync()
    log.flushes.finish(ticket)
    assert log.flushed_offset == 3
    assert log.flushes.has_work
    log.flush()
    assert log.flushed_offset == 5
    assert not log.flushes.has_work
    before = disk.operations
    log.flush()
    assert disk.operations == before


def test_a_flush_of_a_log_that_a_truncation_overtakes_does_not_count() -> None:
    disk = SimulatedDisk.with_directory("/data")
    log = open_log(disk)
    fill(log, 20)
    ticket = log.flushes.begin()
    log.truncate_to(4)
    fill(log, 30)
    ticket.sync()
    log.flushes.finish(ticket)
    assert log.flushed_offset <= 4
    log.flush()
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=34).log_end_offset == 34


def test_a_failed_flush_puts_the_log_offline(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 2)
    disk.fail_at(disk.operations + 1)
    with pytest.raises(StorageError):
        log.flush()
    with pytest.raises(StorageError, match="a flush failed"):
        log.append([stored_batch(2)])
    assert log.flushed_offset == 0


def test_the_next_flush_of_a_log_without_is_durable_covers_all_segments() -> None:
    disk = SimulatedDisk.with_directory("/data", 3)
    log = Log.open(DIRECTORY, files=disk, config=SMALL, now_ms=NOW, is_durable=False)
    fill(log, 30)
    assert not [line for line in disk.history if " sync " in line and line.endswith(".log")]
    log.flush()
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=30).log_end_offset == 30
