"""`tailrace serve`: one node, broker and controller."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.node_options import Dev, Insecure, UntilStdinCloses
from tailrace.cli.quick_imports import quick_imports


def command(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A server.properties or TOML file.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting; may be repeated.")
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Where the node keeps its data: tailrace-data if nothing is said."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where to listen, 127.0.0.1:9092 if nothing is said. Port 0 picks a free one.",
        ),
    ] = None,
    dev: Dev = False,
    insecure: Insecure = False,
    until_stdin_closes: UntilStdinCloses = False,
) -> None:
    """Run one node, broker and controller, until SIGTERM or SIGINT.

    Prints `tailrace ready: HOST:PORT` when it answers requests.
    """
    with quick_imports():
        from tailrace.node.config import load_config
        from tailrace.node.process import run

    flags: dict[str, str] = {}
    if data_dir is not None:
        if not data_dir.strip():
            raise typer.BadParameter("a directory has a name", param_hint="--data-dir")
        flags["log.dirs"] = data_dir
    if listen is not None:
        flags["listeners"] = listen
    if dev:
        flags["dev.mode"] = "true"
    if insecure:
        flags["listener.insecure.allow"] = "true"
    loaded = load_config(file=config, overrides=settings or (), environment=os.environ, flags=flags)
    raise typer.Exit(run(loaded, until_stdin_closes=until_stdin_closes))
