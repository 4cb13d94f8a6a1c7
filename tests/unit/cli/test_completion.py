"""Completion of words in the shell, and the common form of all listings."""

import os
import shutil
import subprocess
import sys

import pytest

from testkit.programs.command_tree import all_commands

LISTS_NOTHING = {"audit verify", "certs init", "serve", "quorum recover", "up"}


def complete(line: str, *, shell: str = "bash") -> set[str]:
    """Completions of the shell for the last word of the line."""
    words = line.split(" ")
    environment = {**os.environ, "_TAILRACE_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        environment["_TYPER_COMPLETE_ARGS"] = line
    command = [sys.executable, "-m", "tailrace"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_nouns_commands_and_options_are_completed() -> None:
    assert complete("tailrace dum") == {"dump-log"}
    assert complete("tailrace topics desc") == {"describe"}
    assert "--bootstrap-server" in complete("tailrace topics describe --")
    assert "connect" in " ".join(complete("tailrace doctor conn", shell="zsh"))


def test_completion_of_a_noun_imports_no_other() -> None:
    script = (
        "import sys\nfrom tailrace.cli.main import build_app\nbuild_app([])\n"
        "print(sorted(name for name in sys.modules if name.startswith('tailrace.cli.')))"
    )
    environment = {**os.environ, "_TAILRACE_COMPLETE": "complete_bash", "COMP_WORDS": "tailrace serve --"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    imported = [f"tailrace.cli.{name}" for name in ("kafka_scripts", "main", "serve")]
    assert done.stdout.strip() == str(imported)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_the_shell_is_printed(shell: str) -> None:
    if (path := shutil.which(shell)) is None:
        path = shutil.which("bash") or pytest.fail("there is no bash")
        shell = "bash"
    command = [path, "-c", '"$0" -m tailrace --show-completion; exit $?', sys.executable]  # the shell is the parent
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"complete_{shell}" in done.stdout


def test_every_command_but_those_that_list_nothing_prints_json_if_wanted() -> None:
    with_json: set[str] = set()
    without: set[str] = set()
    for words, command in all_commands():
        found = with_json if any("-o" in parameter.opts for parameter in command.params) else without
        found.add(words)
    assert without == LISTS_NOTHING
    assert {"topics list", "spark checkpoint show", "groups describe", "brokers list"} <= with_json
