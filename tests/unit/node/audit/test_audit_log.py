"""The thread of the audit log: full disks, full queues, and the end."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from tailrace.node.audit import log as audit_log
from tailrace.node.audit.chain import audit_files, verify
from tailrace.node.audit.files import AuditFiles, AuditLimits
from tailrace.node.audit.log import AuditLog
from testkit.programs.waiting import wait_until

LIMITS = AuditLimits(segment_bytes=1 << 20, retention_bytes=1 << 20)


def started(directory: Path) -> AuditLog:
    log = AuditLog(directory, LIMITS, node_id=7)
    log.start()
    return log


def events(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in audit_files(directory) for line in path.read_bytes().splitlines()]


def denied(number: int) -> dict[str, object]:
    return {"time_ms": 0, "event": "denied", "resource": f"topic-{number}"}


def test_lines_that_wait_are_written_before_the_end(tmp_path: Path) -> None:
    log = started(tmp_path)
    for number in range(1_200):
        log.put(denied(number))
    log.stop()
    found = events(tmp_path)
    assert [line["resource"] for line in found] == [f"topic-{number}" for number in range(1_200)]
    assert (found[0]["time"], found[0]["node"]) == ("1970-01-01T00:00:00.000+00:00", 7)
    assert (log.written, log.lost, verify(tmp_path).fault) == (1_200, 0, None)


def test_a_full_disk_loses_lines_and_the_next_line_tells_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_log, "_RETRY_SECONDS", 0.01)
    log = started(tmp_path)
    log.put(denied(0))
    wait_until(lambda: log.written == 1)
    is_full, write = threading.Event(), os.write
    is_full.set()

    def write_on_full_disk(descriptor: int, content: memoryview) -> int:
        if not is_full.is_set():
            return write(descriptor, content)
        if len(content) > 10:
            return write(descriptor, content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tailrace.node.audit.files.os.write", write_on_full_disk)
    log.put(denied(1))
    wait_until(lambda: log.is_failing)
    assert "event=audit-not-written" in caplog.text
    assert "No space left on device" in caplog.text
    is_full.clear()
    log.put(denied(2))
    wait_until(lambda: log.written == 3)
    log.stop()
    assert not log.is_failing
    assert [(line["event"], line.get("count"), line.get("resource")) for line in events(tmp_path)] == [
        ("denied", None, "topic-0"),
        ("lines-lost", 1, None),
        ("denied", None, "topic-2"),
    ]
    assert verify(tmp_path).fault is None


def test_a_slow_disk_holds_up_no_caller_and_a_full_queue_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MOST_WAITING", 3)
    may_go_on, append = threading.Event(), AuditFiles.append

    def slow_append(files: AuditFiles, lines: list[dict[str, object]]) -> None:
        assert may_go_on.wait(30)
        append(files, lines)

    monkeypatch.setattr(AuditFiles, "append", slow_append)
    log = started(tmp_path)
    for number in range(10):
        log.put(denied(number))
    assert log.lost == 7
    may_go_on.set()
    log.stop()
    assert [line["resource"] for line in events(tmp_path) if line["event"] == "denied"] == [
        "topic-0",
        "topic-1",
        "topic-2",
    ]
    log = started(tmp_path)
    assert verify(tmp_path).fault is None
    log.stop()


def test_a_directory_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        AuditLog(tmp_path / "file" / "audit", LIMITS, node_id=7).start()
