"""Downloads of a package manager are complete or absent, though a network may fail once."""

import sys
from pathlib import Path

import pytest

from benchmarks.downloads.fetching import fetched, put_in_place

COUNTS = "open('tries', 'a').write('.')"


@pytest.mark.parametrize(("program", "is_fetched", "tries"), [("0", True, 1), ("tries < 2", True, 2), ("1", False, 2)])
def test_a_command_that_fails_is_run_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, is_fetched: bool, tries: int
) -> None:
    text = f"{COUNTS}; tries = len(open('tries').read()); print('told'); raise SystemExit(int({program}))"
    command = [sys.executable, "-W", "ignore", "-c", text]
    assert fetched(command, directory=tmp_path) is is_fetched
    assert len((tmp_path / "tries").read_text()) == tries
    assert ("told" in capsys.readouterr().err) == (tries == 2)


def test_a_fetched_directory_is_renamed_unless_another_process_was_first(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "made").write_text(name)
    home = tmp_path / "home"
    assert put_in_place(tmp_path / "first", home)
    assert put_in_place(tmp_path / "second", home)
    assert (home / "made").read_text() == "first"
    assert not put_in_place(tmp_path / "nothing", tmp_path / "nowhere")
