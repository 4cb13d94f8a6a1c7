"""`tailrace`: finds the module of the noun that was asked for, and turns failures into one line and an exit code.

A noun lives in `cli/<noun>.py`, which has either `command`, a function, or `app`, a `typer.Typer` of several commands.
Only the module that is asked for is imported: `tailrace serve` must not pay for tables, clients and Arrow.

Exit codes: 0 done, 1 failed, 2 not understood. Data goes to stdout, everything else to stderr.
"""

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from tailrace import __version__
from tailrace.model.errors import KafkaError

NOUNS: Mapping[str, str] = {
    "serve": "Run one node.",
    "up": "Run a local cluster, one process per node.",
    "topics": "List, create, describe, alter and delete topics.",
    "produce": "Write lines from stdin to a topic.",
    "consume": "Print the records of a topic.",
    "groups": "List, describe, reset and delete consumer groups.",
    "quorum": "Show the metadata quorum.",
    "brokers": "Show the brokers.",
    "sessions": "Show fetch sessions.",
    "snapshots": "Show metadata snapshots.",
    "dump-log": "Print what a log file holds.",
    "doctor": "Look for what is missing or wrong on this machine.",
    "bench": "Measure a cluster.",
    "pipeline": "Run named pipelines on Spark.",
}

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build_app(words)(args=words, prog_name="tailrace")
    except KafkaError as fault:
        sys.exit(_fail(fault.detail or fault.code.name))
    except BrokenPipeError:
        sys.exit(1)
    except OSError as fault:
        sys.exit(_fail(fault.strerror or str(fault)))
    except SystemExit as end:
        sys.exit(1 if end.code == _INTERRUPTED else end.code)


def build_app(words: Sequence[str]) -> typer.Typer:
    """The command line in which the noun named in `words` is real; the others have their help text only."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        help="A Kafka-compatible replicated log.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    asked = next((word for word in words if not word.startswith("-")), None)
    for noun, text in NOUNS.items():
        if importlib.util.find_spec(_module_of(noun)) is not None:
            _add(app, noun, text, is_asked=noun == asked)
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What may stand before the noun."""


def _add(app: typer.Typer, noun: str, text: str, *, is_asked: bool) -> None:
    if not is_asked:
        app.command(noun, help=text)(_not_loaded)
        return
    module = importlib.import_module(_module_of(noun))
    if hasattr(module, "app"):
        app.add_typer(module.app, name=noun, help=text, rich_help_panel=None)
    else:
        app.command(noun)(module.command)


def _not_loaded() -> None:
    """Stands for a noun whose module is not loaded."""


def _module_of(noun: str) -> str:
    return f"tailrace.cli.{noun.replace('-', '_')}"


def _fail(line: str) -> int:
    print(f"tailrace: {' '.join(line.splitlines())}", file=sys.stderr)  # noqa: T201 - this is the command line's voice
    return 1
