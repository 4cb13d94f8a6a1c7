"""`tailrace serve`: one node, broker and controller."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli import quick_imports

Dev = Annotated[
    bool, typer.Option("--dev", help="Defaults for trying out: groups without delay, few internal partitions.")
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Listen for other machines without encryption, authentication or permissions."),
]
UntilStdinCloses = Annotated[
    bool,
    typer.Option("--until-stdin-closes", help="Stop when standard input ends, so that no program leaves it behind."),
]


def command(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A server.properties or TOML file.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting; may be repeated.")
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", metavar="DIR", help="The directory of the node's data; default: tailrace-data."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="The address to listen at; default: 127.0.0.1:9092. Port 0 picks a free port.",
        ),
    ] = None,
    dev: Dev = False,
    insecure: Insecure = False,
    until_stdin_closes: UntilStdinCloses = False,
    disk_failures: Annotated[int, typer.Option("--disk-failures", min=0, hidden=True)] = 0,
) -> None:
    """Run one node, broker and controller, until SIGTERM or SIGINT.

    Prints `tailrace ready: HOST:PORT` when it answers requests, and again after a restart because of a failed disk.
    Words may follow the address: `dev` with --dev, and `metrics=HOST:PORT`.

    Settings, the strongest first: --set and the other options; environment variables, as TAILRACE_NODE_ID for node.id;
    the file of --config.
    """
    with quick_imports():
        from tailrace.node import process
        from tailrace.node.settings.config import load_config

    flags = _flags(data_dir=data_dir, listen=listen, dev=dev, insecure=insecure)
    loaded = load_config(file=config, overrides=settings or (), environment=os.environ, flags=flags)
    again = [sys.executable, "-m", process.program.module, "serve"]
    again += [] if config is None else ["--config", str(config)]
    again += [word for setting in settings or () for word in ("--set", setting)]
    again += [] if data_dir is None else ["--data-dir", data_dir]
    again += [] if listen is None else ["--listen", listen]
    flagged = {"--dev": dev, "--insecure": insecure, "--until-stdin-closes": until_stdin_closes}
    again += [*(flag for flag, is_given in flagged.items() if is_given), "--disk-failures"]
    code = process.run(loaded, until_stdin_closes=until_stdin_closes, command=again, disk_failures=disk_failures)
    raise typer.Exit(code)


def _flags(*, data_dir: str | None, listen: str | None, dev: bool, insecure: bool) -> dict[str, str]:
    """The settings that are options."""
    if data_dir is not None and not data_dir.strip():
        raise typer.BadParameter("a directory has a name", param_hint="--data-dir")
    flags = {
        "log.dirs": data_dir,
        "listeners": listen,
        "dev.mode": "true" if dev else None,
        "listener.insecure.allow": "true" if insecure else None,
    }
    return {name: value for name, value in flags.items() if value is not None}
