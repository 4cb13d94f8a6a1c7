import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.node import disk_failure, process
from tailrace.node.disk_failure import FreshStart, probe, wait_for_disk
from tailrace.testing.node_process import package_path

COMMAND = ("python", "-m", "tailrace", "serve", "--disk-failures")


def test_a_disk_that_takes_a_small_file_answers_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    assert probe(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    fault = probe(tmp_path / "gone")
    assert fault is not None
    assert fault.errno == errno.ENOENT


def test_it_is_waited_until_a_sync_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sync, faults, listen = os.fsync, [errno.EIO, errno.ENOSPC], select.select

    def failing(descriptor: int) -> None:
        if faults:
            raise OSError(faults.pop(), "no")
        sync(descriptor)

    def pausing(readers: Sequence[int], _: object, __: object, timeout_s: float | None) -> object:
        if timeout_s is not None:
            pauses.append(timeout_s)
        return listen(readers, [], [], timeout_s and 0)

    monkeypatch.setattr(select, "select", pausing)
    monkeypatch.setattr(os, "fsync", failing)
    assert wait_for_disk(tmp_path, failures=3, take=None)
    assert pauses == [2.0, 0.5, 0.5], "after the third failure in a row it takes longer"
    pauses.clear()
    assert wait_for_disk(tmp_path, failures=99, take=None)
    assert pauses == [30.0]


def test_the_end_of_the_parent_process_ends_the_waiting_too(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from tailrace.node.disk_failure import wait_for_disk
print(wait_for_disk(Path({str(tmp_path / "gone")!r}), failures=1, take=len))
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = run_program(code)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def run_program(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": package_path(os.environ)},
    )


SIGNALLED = """
import os, select, signal, sys, threading
from pathlib import Path
from tailrace.node.disk_failure import wait_for_disk

directory, place, number = Path(sys.argv[1]), sys.argv[2], signal.Signals[sys.argv[3]]
listen = select.select

def pausing(readers, _, __, timeout_s):
    if timeout_s is not None:
        if place == "pause":
            os.kill(os.getpid(), number)
        timeout_s = 0
    return listen(readers, [], [], timeout_s)

def hang(descriptor):
    os.kill(os.getpid(), number)
    threading.Event().wait()

select.select = pausing
if place == "sync":
    os.fsync = hang
print(wait_for_disk(directory, failures=1, take=None))
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(os.getpid(), each)
"""


@pytest.mark.usefixtures("hangups_are_heard")
@pytest.mark.parametrize(("place", "number"), [("pause", "SIGINT"), ("pause", "SIGHUP"), ("sync", "SIGTERM")])
def test_a_signal_to_stop_ends_the_waiting_well_though_a_sync_hangs(tmp_path: Path, place: str, number: str) -> None:
    """A second signal changes nothing: `timeout` signals the process and then its group."""
    done = run_program(SIGNALLED, str(tmp_path), place, number)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_process_that_has_waited_handles_signals_as_before(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    assert wait_for_disk(tmp_path, failures=1, take=None)
    assert {number: signal.getsignal(number) for number in before} == before


FAILING = """
import os, signal, sys
import tailrace.node.process as process
from tailrace.model.errors import StorageError
from tailrace.node.settings.config import NodeConfig

moment, failures = sys.argv[2], int(sys.argv[3])

class FailingNode:
    advertised, metrics_address = (), None

    def __init__(self, config, *, on_fatal):
        self.on_fatal = on_fatal

    async def start(self):
        if moment == "start":
            raise StorageError("no disk")

    def say_ready(self):
        os.kill(os.getpid(), signal.SIGTERM)
        if moment == "not read":
            self.on_fatal(StorageError("no disk"))

    async def stop(self, *, with_cluster):
        if moment == "closing":
            raise StorageError("no disk")
        self.on_fatal(StorageError("no disk"))

def begin(program, words):
    ignored = {each for each in process.TO_STOP if signal.getsignal(each) == signal.SIG_IGN}
    print("begins anew", words[-1], *sorted(each.name for each in ignored), flush=True)
    os._exit(3)

if moment == "start" and failures == 2:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv = begin
process.Node = FailingNode
process._say_ready = lambda node, config: node.say_ready()
process.wait_for_disk = lambda *_, **__: True
config = NodeConfig({"log.dirs": sys.argv[1], "listeners": "127.0.0.1:0"})
process.run(config, command=("tailrace", "--disk-failures"), disk_failures=failures)
"""


@pytest.mark.usefixtures("hangups_are_heard")
@pytest.mark.parametrize(
    ("moment", "failures", "code", "output"),
    [
        ("start", 0, 1, ""),
        ("start", 1, 3, "begins anew 2\n"),
        ("start", 2, 3, "begins anew 3 SIGHUP\n"),
        ("not read", 0, 1, ""),
        ("closing", 1, 1, ""),
        ("flushing", 1, 1, ""),
    ],
)
def test_a_node_begins_anew_if_nothing_tells_it_to_stop(
    tmp_path: Path, moment: str, failures: int, code: int, output: str
) -> None:
    """The node fails in its start; after a signal to stop that it has not read yet; or in its clean stop.

    The fresh process handles signals, all but a SIGHUP that `nohup` has ignored.
    """
    done = run_program(FAILING, str(tmp_path), moment, str(failures))
    assert (done.returncode, done.stdout) == (code, output), done.stderr
    assert "no disk" in done.stderr


def fresh_start(monkeypatch: pytest.MonkeyPatch, *, failures: int) -> FreshStart:
    monkeypatch.setattr(disk_failure, "end_at_once", lambda: None)  # the signals of this process stay as they are
    return FreshStart(COMMAND, failures=failures, must_stop=lambda: False)


@pytest.mark.parametrize(("served_s", "failures"), [(None, 3), (5, 3), (61, 1)])
def test_the_fresh_process_gets_the_number_of_failures(
    served_s: float | None, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, list[str]]] = []
    now = [1_000.0]
    monkeypatch.setattr(os, "execv", lambda program, words: begun.append((program, words)))
    monkeypatch.setattr(disk_failure, "time", SimpleNamespace(monotonic=lambda: now[0]))
    start = fresh_start(monkeypatch, failures=2)
    if served_s is not None:
        start.note_ready()
        now[0] += served_s
    start.begin(StorageError("cannot sync: Input/output error", errno.EIO))
    assert begun == [("python", [*COMMAND, str(failures)])]


def test_a_broken_invariant_is_no_reason_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "execv", lambda *_: done.append("exec"))
    monkeypatch.setattr(process, "stop_at_once", lambda _: done.append("stop"))
    start = fresh_start(monkeypatch, failures=0)
    process.give_up(start, AssertionError())
    process.give_up(start, KafkaError(ErrorCode.CORRUPT_MESSAGE, "the metadata log is damaged"))
    process.give_up(None, StorageError("no disk"))
    assert done == ["stop"] * 3
    process.give_up(start, StorageError("no disk"))
    assert done == ["stop"] * 3 + ["exec", "stop"], "exec returns only if it was not possible"
