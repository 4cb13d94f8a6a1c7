"""scripts/every_python.sh: which interpreters it runs, and what it says of them."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = """#!/bin/sh
case "$*" in
-c*) echo 3.98 ;;
--version) echo Python 3.98.1 ;;
"-m venv"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
"-m pip"*) exit ${PIP_CODE:-0} ;;
"-m pytest"*) echo "FAILED tests/unit/test_it.py::test_it"; echo "$TURN: 7 passed in 1.00s"; exit ${TESTS_CODE:-0} ;;
esac
"""


@pytest.fixture
def scripted_python(tmp_path: Path) -> Path:
    """A folder with an interpreter python3.98 that answers as the script's calls want."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python3.98"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return folder


def run(folder: Path, *, pythons: str = "3.98", **environment: str) -> "subprocess.CompletedProcess[str]":
    given = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYENV_ROOT": str(folder / "no-pyenv"),
        "ENVIRONMENTS": str(folder / "env-"),
        "PYTHONS": pythons,
        **environment,
    }
    return subprocess.run(
        ["sh", str(ROOT / "scripts" / "every_python.sh")], env=given, capture_output=True, text=True, check=False
    )


def test_each_interpreter_that_is_found_runs_all_cases(scripted_python: Path) -> None:
    done = run(scripted_python, pythons="3.98 3.99")
    assert done.stdout == "Python 3.98.1: all: 7 passed in 1.00s\nPython 3.99: not on this machine\n"
    assert done.returncode == 0


def test_an_interpreter_of_pyenv_is_found(scripted_python: Path, tmp_path: Path) -> None:
    home = tmp_path / "versions" / "3.98.1" / "bin"
    home.mkdir(parents=True)
    (scripted_python / "python3.98").rename(home / "python")
    assert "7 passed" in run(scripted_python, PYENV_ROOT=str(tmp_path)).stdout


def test_a_failure_is_named_and_is_the_exit_code(scripted_python: Path) -> None:
    done = run(scripted_python, TESTS_CODE="1")
    assert "FAILED tests/unit/test_it.py::test_it" in done.stderr
    assert done.returncode == 1


def test_an_interpreter_without_an_environment_fails_the_run(scripted_python: Path) -> None:
    done = run(scripted_python, PIP_CODE="1")
    assert "cannot be set up" in done.stdout
    assert done.returncode == 1


def test_an_environment_is_set_up_once(scripted_python: Path) -> None:
    assert "Setting up" in run(scripted_python).stderr
    assert "Setting up" not in run(scripted_python).stderr
