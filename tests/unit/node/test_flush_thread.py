"""Group flushes on a real thread and a real file system."""

import queue
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

import pytest

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.node.flush_thread import FlushThread, PageCache
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import BatchBuilder
from tailrace.storage import AppendBatch, FlushTicket, Log, OsFiles
from tailrace.storage.files import OsFile
from tailrace.storage.flush import Flushes

Callback = Callable[[], None]


class SteppedLoop:
    """An event loop that runs a single callback whenever the test says so."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callback] = queue.SimpleQueue()

    def call(self, callback: Callback) -> None:
        self._calls.put(callback)

    def run_until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._calls.get(timeout=60)()


class FlushThreadBench:
    """A flush thread with its loop and its reports."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.failures: list[BaseException] = []
        self.thread = FlushThread(
            directory="test", call_soon=self.loop.call, post=self.loop.call, on_failure=self.failures.append
        )


@pytest.fixture
def node() -> Iterator[FlushThreadBench]:
    node = FlushThreadBench()
    yield node
    node.thread.stop()


def open_log(directory: Path) -> Log:
    directory.mkdir()
    return Log.open(str(directory), files=OsFiles(), config=TopicConfig(), now_ms=0)


def append(log: Log) -> None:
    builder = BatchBuilder(base_offset=log.log_end_offset, leader_epoch=0)
    builder.append(0, None, b"value")
    batch = builder.build()
    log.append((AppendBatch(batch, read_header(batch)),))


def damage_and_truncate(log: Log, directory: Path) -> None:
    """Take the log offline: a truncation, as on a follower, meets a damaged batch."""
    append(log)
    append(log)
    with next(directory.glob("*.log")).open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 4)  # the length of the first batch
    with pytest.raises(CorruptRecords):
        log.truncate_to(2)
    assert log.is_offline


def test_appended_records_are_flushed_when_the_callback_comes(node: FlushThreadBench, tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    append(log)
    seen: list[int] = []
    node.thread.flush(log, lambda: seen.append(log.flushed_offset))
    assert seen == [], "never inside the caller"
    node.loop.run_until(lambda: seen)
    assert seen == [1]


def test_all_logs_requested_in_one_iteration_of_the_loop_share_a_round(node: FlushThreadBench, tmp_path: Path) -> None:
    logs = [open_log(tmp_path / f"a-{number}") for number in range(5)]
    done: list[Log] = []
    for log in logs:
        append(log)
        node.thread.flush(log, lambda log=log: done.append(log))  # type: ignore[misc]
    node.loop.run_until(lambda: len(done) == 5)
    assert done == logs
    assert node.thread.rounds_done == 1


def test_a_flush_requested_while_a_round_runs_is_in_the_next_round(node: FlushThreadBench, tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    flushed: list[int] = []

    def again() -> None:
        flushed.append(log.flushed_offset)
        if len(flushed) < 3:
            append(log)
            node.thread.flush(log, again)

    append(log)
    node.thread.flush(log, again)
    node.loop.run_until(lambda: len(flushed) == 3)
    assert flushed == [1, 2, 3]
    assert node.thread.rounds_done == 3


def test_a_flush_that_fails_is_reported_and_never_tried_again(
    node: FlushThreadBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[FlushTicket] = []

    def fail(ticket: FlushTicket, _: Callback) -> None:
        tries.append(ticket)
        raise StorageError("the disk is gone")

    monkeypatch.setattr(FlushTicket, "sync_content", fail)
    log = open_log(tmp_path / "a-0")
    append(log)
    called: list[str] = []
    for _ in range(2):
        node.thread.flush(log, lambda: called.append("safe"))
    node.loop.run_until(lambda: node.failures)
    assert called == []
    assert len(tries) == 1
    assert isinstance(node.failures[0], StorageError)


class TimedDisk:
    """A disk whose syncs take as long as the test says; the thread's clock goes by them alone."""

    def __init__(self, thread: FlushThread, seconds: Callable[[int], float]) -> None:
        self._thread = thread
        self._seconds = seconds
        self._now = 100.0
        self.stalled: list[float] = []
        """The figure for the watch of the disk just before each sync ended."""

    def now(self) -> float:
        return self._now

    def sync(self) -> None:
        self._now += self._seconds(len(self.stalled))
        self.stalled.append(round(self._thread.stalled_seconds, 3))


@pytest.mark.parametrize("kind", ["files", "works"])
@pytest.mark.parametrize(
    ("seconds", "stalled"),
    [
        pytest.param(lambda _: 0.019, [0.019] * 60, id="a long round of quick syncs"),
        pytest.param(lambda n: 7.0 if n == 59 else 0.01, [0.01] * 59 + [7.0], id="a sync that hangs behind quick ones"),
        pytest.param(lambda _: 1.02, [1.02 + n for n in range(60)], id="a disk whose every sync is slow"),
    ],
)
def test_a_round_is_stalled_by_its_syncs_not_by_their_number(
    node: FlushThreadBench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: Callable[[int], float],
    stalled: list[float],
    kind: str,
) -> None:
    logs = [open_log(tmp_path / f"a-{number}") for number in range(60 if kind == "files" else 0)]
    for log in logs:
        append(log)
        log.flush()  # the names, which would be synced besides
        append(log)
    disk = TimedDisk(node.thread, seconds)
    monkeypatch.setattr("tailrace.node.flush_thread.perf_counter", disk.now)
    monkeypatch.setattr(OsFile, "sync", lambda _: disk.sync())
    done: list[None] = []
    for log in logs:
        node.thread.flush(log, partial(done.append, None))
    for _ in range(60 - len(logs)):
        node.thread.carry_out(disk.sync, partial(done.append, None))
    node.loop.run_until(lambda: len(done) == 60)
    assert disk.stalled == pytest.approx(stalled)
    assert node.thread.rounds_done == 1
    assert node.thread.stalled_seconds == 0.0


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_a_flush_that_cannot_begin_or_end_is_reported(
    node: FlushThreadBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Otherwise no round would ever follow, and every flush would wait."""

    def fail(*_: object) -> None:
        raise OSError("the descriptor cannot be closed")

    log = open_log(tmp_path / "a-0")
    append(log)
    monkeypatch.setattr(Flushes, step, fail)
    node.thread.flush(log, lambda: None)
    node.loop.run_until(lambda: node.failures)
    assert isinstance(node.failures[0], OSError)


def test_a_log_that_goes_offline_before_its_round_is_not_flushed_and_ends_the_waits(
    node: FlushThreadBench, tmp_path: Path
) -> None:
    """The log refuses everything until it is opened again: callbacks run with nothing flushed, and the node goes on."""
    broken, whole = open_log(tmp_path / "a-0"), open_log(tmp_path / "a-1")
    called: list[tuple[str, int]] = []
    for log, name in ((broken, "broken"), (whole, "whole")):
        append(log)
        node.thread.flush(log, lambda name=name, log=log: called.append((name, log.flushed_offset)))  # type: ignore[misc]
    damage_and_truncate(broken, tmp_path / "a-0")
    node.loop.run_until(lambda: len(called) == 2)
    assert (sorted(called), node.failures) == ([("broken", 0), ("whole", 1)], [])
    node.thread.flush(broken, lambda: called.append(("broken again", broken.flushed_offset)))
    node.thread.when_idle(lambda: called.append(("idle", 0)))
    node.loop.run_until(lambda: len(called) == 4)
    assert (called[2:], node.failures) == ([("broken again", 0), ("idle", 0)], [])
    assert node.thread.flushes_done == 1


def test_a_callback_that_fails_does_not_hold_back_the_others(node: FlushThreadBench, tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    append(log)
    called: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    node.thread.flush(log, fail)
    node.thread.flush(log, lambda: called.append("first round"))
    with pytest.raises(ZeroDivisionError):
        node.loop.run_until(lambda: False)
    assert called == ["first round"]
    append(log)
    node.thread.flush(log, lambda: called.append("second round"))
    node.loop.run_until(lambda: len(called) == 2)


def test_idle_means_that_nothing_waits(node: FlushThreadBench, tmp_path: Path) -> None:
    log = open_log(tmp_path / "a-0")
    events: list[str] = []
    node.thread.when_idle(lambda: events.append("idle"))
    assert events == ["idle"]
    append(log)
    node.thread.flush(log, lambda: events.append("flushed"))
    node.thread.when_idle(lambda: events.append("idle again"))
    node.loop.run_until(lambda: len(events) == 3)
    assert events == ["idle", "flushed", "idle again"]


def test_the_page_cache_only_calls_back(node: FlushThreadBench, tmp_path: Path) -> None:
    loop = SteppedLoop()
    log = open_log(tmp_path / "a-0")
    append(log)
    called: list[str] = []
    PageCache(call_soon=loop.call, syncing=node.thread).flush(log, lambda: called.append("written"))
    assert called == []
    loop.run_until(lambda: called)
    assert log.flushed_offset == 0


def test_a_slow_round_is_logged(
    node: FlushThreadBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Produce and administration wait for the round, and nothing else says why they waited."""
    done: list[str] = []
    monkeypatch.setattr("tailrace.node.flush_thread._SLOW_SECONDS", 3600)
    node.thread.carry_out(lambda: None, lambda: done.append("short"))
    node.loop.run_until(lambda: done)
    assert not [record for record in caplog.records if record.name == "tailrace.node"]
    monkeypatch.setattr("tailrace.node.flush_thread._SLOW_SECONDS", -1.0)
    node.thread.carry_out(lambda: None, lambda: done.append("long"))
    node.loop.run_until(lambda: done == ["short", "long"])

    def slow_lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "tailrace.node"]

    (line,) = slow_lines()
    assert line.startswith("event=flush-round-slow directory=test seconds=")
    assert " logs=0 works=1 rounds=1 longest=" in line
    for number in range(2, 5):
        node.thread.carry_out(lambda: None, lambda: done.append("long"))
        node.loop.run_until(partial(lambda number: len(done) == 1 + number, number))
    assert slow_lines() == [line], "once a minute"
    monkeypatch.setattr("tailrace.node.flush_thread.perf_counter", lambda: perf_counter() + 60)
    node.thread.carry_out(lambda: None, lambda: done.append("long"))
    node.loop.run_until(lambda: len(done) == 6)
    assert " rounds=4 " in slow_lines()[1], "with those in between"
