"""The command line: its nouns, and the form of a failure."""

import importlib
import subprocess
import sys

import pytest
import typer

from tailrace import __version__
from tailrace.cli.main import NOUNS, main
from testkit.programs.command_tree import commands_of


def exit_code(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


@pytest.mark.parametrize("noun", NOUNS)
def test_every_noun_has_commands_and_helps(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"tailrace.cli.{noun.replace('-', '_')}")
    assert callable(getattr(module, "command", None)) or isinstance(getattr(module, "app", None), typer.Typer)
    assert exit_code(noun, "--help") == 0
    assert f"tailrace {noun}" in capsys.readouterr().out


@pytest.mark.parametrize("noun", NOUNS)
def test_every_command_that_asks_a_cluster_prints_json_if_that_is_wanted(noun: str) -> None:
    commands = dict(commands_of(noun))
    assert commands
    for words, command in commands.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--bootstrap-server" not in options or "-o" in options, words


def test_help_lists_every_noun(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    for noun in NOUNS:
        assert NOUNS[noun] in text


def test_the_version_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_a_failure_is_one_line_on_stderr_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("serve", "--set", "num.partition=3") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "tailrace: unknown setting 'num.partition'; did you mean num.partitions?\n"


@pytest.mark.parametrize("words", [("serv",), ("serve", "--lissen", "x"), ("serve", "too", "many")])
def test_wrong_usage_is_code_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*words) == 2
    assert capsys.readouterr().out == ""


def test_only_the_given_noun_is_imported() -> None:
    script = (
        "import sys\nfrom tailrace.cli.main import build_app\nbuild_app(['serve'])\n"
        "print(sorted(name for name in sys.modules if name.startswith(('tailrace.cli.', 'tailrace.client', 'rich'))))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    imported = [f"tailrace.cli.{name}" for name in ("kafka_scripts", "main", "serve")]
    assert output.strip() == str(imported)


@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("serv", 2)])
def test_the_last_collection_of_garbage_has_nothing_to_walk(words: str, code: int) -> None:
    """Otherwise the end of a command takes as long as its work."""
    script = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('left', len(gc.get_objects())))\n"
        "from tailrace.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script, words], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert int(done.stdout.rpartition("left ")[2]) < 1000


@pytest.mark.parametrize("noun", ["serve", "up"])
def test_the_help_says_that_words_follow_the_address_of_the_ready_line(
    noun: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(noun, "-h") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "`dev` follows with --dev" in text or "Words may follow the address: `dev` with --dev" in text
