"""`tailrace audit verify`."""

from pathlib import Path

import pytest

from tailrace.node.audit.chain import audit_files
from tailrace.node.audit.files import AuditFiles, AuditLimits
from testkit.programs.commands import run_command


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    files = AuditFiles(tmp_path, AuditLimits(segment_bytes=1 << 20, retention_bytes=1 << 20))
    files.open()
    files.append([{"event": "denied"}, {"event": "denied"}])
    files.close()
    return tmp_path


def test_a_whole_log_has_its_lines_and_the_last_hash(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_command(("audit", "verify", str(directory)), capsys)
    assert result.code == 0
    assert result.out.startswith("lines 1 to 2 are whole; hash ")


def test_a_changed_line_is_named_and_fails_the_command(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = audit_files(directory)
    path.write_bytes(path.read_bytes().replace(b"denied", b"denies", 1))
    result = run_command(("audit", "verify", str(directory)), capsys)
    assert (result.code, result.out) == (1, "")
    assert "line 1 was changed" in result.err


def test_an_empty_directory_has_no_line_to_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_command(("audit", "verify", str(tmp_path)), capsys)
    assert result.code == 1
    assert "audit.head cannot be read" in result.err
    files = AuditFiles(tmp_path, AuditLimits(segment_bytes=1 << 20, retention_bytes=1 << 20))
    files.open()
    files.close()
    result = run_command(("audit", "verify", str(tmp_path)), capsys)
    assert (result.code, result.err) == (0, "no line\n")
    result = run_command(("audit", "verify", str(tmp_path / "none")), capsys)
    assert "is no directory of an audit log" in result.err
