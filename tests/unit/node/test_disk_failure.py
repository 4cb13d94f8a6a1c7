import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.node import process
from tailrace.node.disk_failure import FreshStart, probe, wait_for_disk
from tailrace.testing.cluster import package_path

COMMAND = ("python", "-m", "tailrace", "serve", "--disk-failures")


def test_a_disk_that_takes_a_small_file_answers_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    assert probe(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    fault = probe(tmp_path / "gone")
    assert fault is not None
    assert fault.errno == errno.ENOENT


def test_it_is_waited_until_a_sync_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sync, faults = os.fsync, [errno.EIO, errno.ENOSPC]

    def failing(descriptor: int) -> None:
        if faults:
            raise OSError(faults.pop(), "no")
        sync(descriptor)

    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr(os, "fsync", failing)
    assert wait_for_disk(tmp_path, failures=3, until_stdin_closes=False)
    assert pauses == [2.0, 0.5, 0.5], "after the third failure in a row it takes longer"
    pauses.clear()
    assert wait_for_disk(tmp_path, failures=99, until_stdin_closes=False)
    assert pauses == [30.0]


def test_whoever_starts_a_node_and_goes_ends_the_waiting_too(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tailrace.node.disk_failure import wait_for_disk
print(wait_for_disk(Path({str(tmp_path / "gone")!r}), failures=1, until_stdin_closes=True))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": package_path(os.environ)},
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(("served_s", "failures"), [(None, 3), (5, 3), (61, 1)])
def test_the_process_becomes_a_fresh_one_that_knows_how_often_it_has_failed(
    served_s: float | None, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, list[str]]] = []
    now = [1_000.0]
    monkeypatch.setattr(os, "execv", lambda program, words: begun.append((program, words)))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    start = FreshStart(COMMAND, failures=2)
    if served_s is not None:
        start.note_ready()
        now[0] += served_s
    start.begin(StorageError("cannot sync: Input/output error", errno.EIO))
    assert begun == [("python", [*COMMAND, str(failures)])]


def test_a_broken_invariant_is_no_reason_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "execv", lambda *_: done.append("exec"))
    monkeypatch.setattr(process, "stop_at_once", lambda _: done.append("stop"))
    start = FreshStart(COMMAND, failures=0)
    process.give_up(start, AssertionError())
    process.give_up(start, KafkaError(ErrorCode.CORRUPT_MESSAGE, "the metadata log is damaged"))
    process.give_up(None, StorageError("no disk"))
    assert done == ["stop"] * 3
    process.give_up(start, StorageError("no disk"))
    assert done == ["stop"] * 3 + ["exec", "stop"], "exec returns only if it was not possible"
