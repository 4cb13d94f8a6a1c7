"""`tailrace`: finds the module of the given noun, and turns failures into one line and an exit code.

The module of a noun, `cli/<noun>.py`, has either `command`, a function, or `app`, a `typer.Typer` of several commands.
Only the module of the given noun is imported: `tailrace serve` must not pay for tables, clients and Arrow.

Exit codes: 0 success, 1 failure, 2 wrong usage. Data goes to stdout, everything else to stderr, and no user sees a
traceback unless TAILRACE_TRACEBACK is set.

Shells complete words by calling the program again with _TAILRACE_COMPLETE in the environment; `--install-completion`
sets that up.
"""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, TextIO

import typer

from tailrace.cli import quick_imports
from tailrace.cli.kafka_scripts import read_line
from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError

NOUNS: Mapping[str, str] = {
    "serve": "Run one node.",
    "up": "Run a local cluster, one process per node.",
    "topics": "List, create, describe, alter, move and delete topics.",
    "produce": "Write lines from stdin to a topic.",
    "consume": "Print the records of a topic.",
    "work": "Run a command for each record of a topic.",
    "groups": "List, describe, reset and delete consumer groups.",
    "transactions": "List, describe and abort transactions.",
    "audit": "Check the audit log of a node.",
    "acls": "List, add, remove and check access control lists.",
    "quotas": "List, set and remove quotas of clients.",
    "quorum": "Show the metadata quorum.",
    "brokers": "List, describe and unregister brokers.",
    "sessions": "Show fetch sessions.",
    "snapshots": "Show metadata snapshots.",
    "dump-log": "Print and check what log files hold.",
    "spark": "Show and move the checkpoints of Spark queries.",
    "certs": "Make certificates for TLS.",
    "users": "List, add and delete users with passwords.",
    "doctor": "Look for what is missing or wrong on this machine.",
}

_INTERRUPTED = 130
_WRONG_USAGE = 2
_COMPLETING = "_TAILRACE_COMPLETE"
_BREAKS = (":", "=")
_SHOW_TRACEBACK = "TAILRACE_TRACEBACK"
_COMMAND_CONFIG = "--command-config"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    _prepare_streams()
    code = _run(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.stderr.flush()
    except OSError:  # a message that cannot be written must not change the exit code
        _drop(sys.stderr)
    sys.exit(code)


def _run(words: list[str]) -> int:
    """The exit code."""
    try:
        line = read_line(_taken(words))
    except KafkaError as wrong:
        return _fail(wrong.detail) * _WRONG_USAGE
    if line.answer is not None:
        _fail(line.answer)
        return _WRONG_USAGE
    try:
        try:
            build_app(line.words)(args=line.words, prog_name="tailrace")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
            sys.stdout.flush()
            return 1 if code == _INTERRUPTED else code
    except KafkaError as fault:
        return _fail(fault.detail or fault.code.name)
    except BrokenPipeError:
        return _drop_output()
    except KeyboardInterrupt:
        return 1
    except OSError as fault:
        name = f"{fault.filename}: " if fault.filename else ""
        _drop_output()
        return _fail(f"{name}{fault.strerror or fault}")
    except Exception as fault:
        if os.environ.get(_SHOW_TRACEBACK):
            raise
        return _fail(
            f"this should not have happened: {type(fault).__name__}: {fault}"
            f" ({_SHOW_TRACEBACK}=1 shows where; please report it)"
        )
    return 0


def _taken(words: Sequence[str]) -> list[str]:
    """The words without `--command-config FILE`, which is an option of all commands: TAILRACE_COMMAND_CONFIG keeps the
    file. Words behind `--` are of another program."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, separator, file = word.partition("=")
        if word == "--":
            kept += [word, *rest]
        elif name != _COMMAND_CONFIG:
            kept.append(word)
        elif file := file if separator else next(rest, ""):
            os.environ["TAILRACE_COMMAND_CONFIG"] = file
        else:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{_COMMAND_CONFIG} needs a file")
    return kept


def _prepare_streams() -> None:
    """Replace streams that the shell has closed (`>&-`) with the null device; escape characters without encoding."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> int:
    """Drop the rest of the output: its reader has gone. Returns the exit code."""
    _drop(sys.stdout)
    return 1


def _drop(stream: TextIO) -> None:
    """Redirect this stream to the null device: otherwise Python's last flush would fail, with exit code 120."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def build_app(words: Sequence[str]) -> typer.Typer:
    """The command line with the commands of the noun in `words`; other nouns have their help text only."""
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        help="A Kafka-compatible replicated log.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    if _COMPLETING in os.environ:
        if "COMP_WORDS" in os.environ:
            _rejoin_words()
        words = _words_to_complete()
    command = next((word for word in words if not word.startswith("-")), None)
    for noun, text in NOUNS.items():
        _add(app, noun, text, is_named=noun == command)
    return app


def _rejoin_words() -> None:
    """Undo that bash divides words at `:` and `=`: for the commands, HOST:PORT is a word."""
    line = os.environ.get("COMP_WORDS", "")
    words = line.split("\n" if "\n" in line else " ")
    position = place = int(os.environ.get("COMP_CWORD", "0"))
    joined: list[str] = []
    for number, word in enumerate(words):
        if number and (word in _BREAKS or words[number - 1] in _BREAKS):
            joined[-1] += word
        else:
            joined.append(word)
        if number == position:
            place = len(joined) - 1
    os.environ.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(place))


def _words_to_complete() -> list[str]:
    """The words after `tailrace` on the line to complete; shells pass the line in different variables."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return line.split()[1:]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options before the noun."""


def _add(app: typer.Typer, noun: str, text: str, *, is_named: bool) -> None:
    if not is_named:
        app.command(noun, help=text)(_not_loaded)
        return
    with quick_imports():
        module = importlib.import_module(_module_of(noun))
    if hasattr(module, "app"):
        app.add_typer(module.app, name=noun, help=text)
    else:
        app.command(noun)(module.command)


def _not_loaded() -> None:
    """The placeholder of a noun whose module is not imported."""


def _module_of(noun: str) -> str:
    return f"tailrace.cli.{noun.replace('-', '_')}"


def _fail(line: str) -> int:
    shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in " ".join(line.splitlines()))
    with contextlib.suppress(OSError):  # stderr may be closed: the exit code is enough
        print(f"tailrace: {shown}", file=sys.stderr)  # noqa: T201 - the output of the command line
    return 1
