"""The program of a node in tests: what it costs, and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.testing.node_process import node_environment

PROGRAM = (sys.executable, "-X", "importtime", "-m", "tailrace.testing.node_program")


def run(*words: str) -> tuple[int, str, set[str], list[str]]:
    """The exit code, the output, the imported modules, and the other lines of stderr. Standard input is at its end."""
    done = subprocess.run(
        [*PROGRAM, *words],
        input="",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=node_environment(),
    )
    lines = done.stderr.splitlines()
    imports = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    return done.returncode, done.stdout, imports, [line for line in lines if not line.startswith("import time:")]


def test_a_node_of_a_test_does_not_import_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path / 'data'}\nlisteners=127.0.0.1:0\ndev.mode=true\n")
    code, _, imports, _ = run("serve", "--until-stdin-closes", "--config", str(file))
    assert code == 0
    assert "tailrace.node.node" in imports
    assert imports & {"typer", "tailrace.cli.main", "argparse", "email"} == set()


def test_a_node_that_cannot_start_says_why_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partition=3\n")
    code, output, _, errors = run("serve", "--until-stdin-closes", "--config", str(file))
    assert (code, output) == (1, "")
    assert errors == [f"tailrace: {file}: unknown setting 'num.partition'; did you mean num.partitions?"]


@pytest.mark.parametrize("words", [(), ("serve", "--dev"), ("serve", "--until-stdin-closes", "--config")])
def test_other_words_are_refused(words: tuple[str, ...]) -> None:
    assert run(*words)[0] == 2
