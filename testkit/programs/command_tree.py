"""The commands of `tailrace`, as its parser knows them."""

import importlib
from collections.abc import Iterator
from typing import Any

import typer

from tailrace.cli.main import NOUNS


def all_commands() -> Iterator[tuple[str, Any]]:
    """The commands of every noun, by their words: `topics list`."""
    for noun in NOUNS:
        yield from commands_of(noun)


def commands_of(noun: str) -> Iterator[tuple[str, Any]]:
    """The commands of this noun, by their words."""
    module = importlib.import_module(f"tailrace.cli.{noun.replace('-', '_')}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer()
        app.command(noun)(module.command)
    yield from _below(noun, typer.main.get_command(app))


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The command itself, or the commands below it at any depth."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
    else:
        for name, subcommand in inner.items():
            yield from _below(f"{words} {name}", subcommand)
