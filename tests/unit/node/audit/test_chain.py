"""The check of an audit log: lines that were changed, cut off or removed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.node.audit.chain import HEAD, LONGEST_LINE, audit_files, verify
from tailrace.node.audit.files import AuditFiles, AuditLimits

LIMITS = AuditLimits(segment_bytes=400, retention_bytes=1 << 20)


def written(directory: Path, lines: int, limits: AuditLimits = LIMITS) -> list[Path]:
    """The files of a log with this number of lines, each appended by itself."""
    files = AuditFiles(directory, limits)
    files.open()
    for number in range(lines):
        files.append([{"event": "denied", "resource": f"topic-{number}"}])
    files.close()
    return audit_files(directory)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_a_log_in_several_files_is_whole(tmp_path: Path) -> None:
    assert len(written(tmp_path, 12)) > 2
    verdict = verify(tmp_path)
    assert (verdict.fault, verdict.first, verdict.last.number) == (None, 1, 12)
    content = [json.loads(line) for path in audit_files(tmp_path) for line in lines_of(path)]
    assert [line["resource"] for line in content] == [f"topic-{number}" for number in range(12)]


def changed_line(files: list[Path]) -> str:
    path = files[1]
    path.write_bytes(path.read_bytes().replace(b"topic-", b"TOPIC-", 1))
    return f"line {json.loads(lines_of(path)[0])['n']} was changed"


def changed_last_line(files: list[Path]) -> str:
    path = files[-1]
    first, name, last = path.read_bytes().rpartition(b"topic-")
    path.write_bytes(first + name.upper() + last)
    return "line 12 was changed"


def removed_line(files: list[Path]) -> str:
    lines = lines_of(files[0])
    files[0].write_bytes(b"".join((lines[0], *lines[2:])))
    return "lines 2 to 2 before it are missing"


def repeated_line(files: list[Path]) -> str:
    first, *rest = lines_of(files[0])
    files[0].write_bytes(b"".join((first, first, *rest)))
    return "line 1 comes behind line 1"


def removed_middle_file(files: list[Path]) -> str:
    files[1].unlink()
    return "before it are missing, or their file"


def removed_first_file(files: list[Path]) -> str:
    files[0].unlink()
    return "are missing: no later line tells that the node removed them"


def removed_last_file(files: list[Path]) -> str:
    files[-1].unlink()
    return "to 12 are missing: the tail was cut off"


def cut_tail(files: list[Path]) -> str:
    path = files[-1]
    path.write_bytes(path.read_bytes()[:-5])
    return "lines 12 to 12 are missing: the tail was cut off"


def cut_tail_of_middle_file(files: list[Path]) -> str:
    files[1].write_bytes(files[1].read_bytes()[:-5])
    return f"{files[2].name}:1: the file before ends in the middle of a line"


def removed_head(files: list[Path]) -> str:
    (files[0].parent / HEAD).unlink()
    return f"{HEAD} cannot be read"


def other_text(files: list[Path]) -> str:
    files[0].write_bytes(b"[1, 2]\n" + files[0].read_bytes())
    return f"{files[0].name}:1: no line of an audit log"


def long_line(files: list[Path]) -> str:
    files[0].write_bytes(b"x" * (LONGEST_LINE + 1) + files[0].read_bytes())
    return f"{files[0].name}:1: a line of more than {LONGEST_LINE} bytes"


@pytest.mark.parametrize(
    "harm",
    [
        changed_line,
        changed_last_line,
        removed_line,
        repeated_line,
        removed_middle_file,
        removed_first_file,
        removed_last_file,
        cut_tail,
        cut_tail_of_middle_file,
        removed_head,
        other_text,
        long_line,
    ],
)
def test_the_first_fault_is_named(tmp_path: Path, harm: Callable[[list[Path]], str]) -> None:
    files = written(tmp_path, 12)
    expected = harm(files)
    fault = verify(tmp_path).fault
    assert fault is not None
    assert expected in fault


def test_a_line_that_a_node_is_writing_is_no_fault(tmp_path: Path) -> None:
    files = written(tmp_path, 2)
    with files[-1].open("ab") as file:
        file.write(b'{"n":3,"pr')
    verdict = verify(tmp_path)
    assert (verdict.fault, verdict.last.number, verdict.unfinished_bytes) == (None, 2, 10)
    (path,) = written(tmp_path, 1)  # the next start cuts the bytes off, and goes on
    assert len(lines_of(path)) == 3
    assert verify(tmp_path).fault is None


def test_a_start_does_not_hide_a_tail_that_was_cut_off(tmp_path: Path) -> None:
    files = written(tmp_path, 3)
    files[-1].write_bytes(b"".join(lines_of(files[-1])[:-1]))
    written(tmp_path, 2)
    assert "lines 3 to 3 before it are missing" in str(verify(tmp_path).fault)


def test_old_files_are_removed_within_the_limit_and_a_line_tells_of_them(tmp_path: Path) -> None:
    files = written(tmp_path, 60, AuditLimits(segment_bytes=400, retention_bytes=2_000))
    assert sum(path.stat().st_size for path in files) < 2_000 + 2 * 400
    verdict = verify(tmp_path)
    assert verdict.fault is None
    assert verdict.first > 1
    files[0].unlink()
    assert "no later line tells" in str(verify(tmp_path).fault)


def test_an_audit_log_has_one_writer(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path, LIMITS)
    files.open()
    with pytest.raises(OSError, match="another process writes this audit log"):
        AuditFiles(tmp_path, LIMITS).open()
    files.close()
    written(tmp_path, 1)


def test_files_are_for_the_node_alone(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    (path,) = written(directory, 1)
    modes = [found.stat().st_mode & 0o777 for found in (directory, path, directory / HEAD)]
    assert modes == [0o700, 0o600, 0o600]
