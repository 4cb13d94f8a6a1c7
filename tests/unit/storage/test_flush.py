"""Flushes of several logs: names that they share, and many names, are synced once."""

import pytest

from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log, sync_together
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch


class SyncsBench:
    """Logs in one directory, new logs, and the directories that are synced by name or all at once."""

    def __init__(self, logs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_dirs("/logs")
        self.disk.sync_dir("/")
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
