"""How commands print: data to stdout as a table or as JSON, everything else to stderr."""

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from tailrace.client.blocking import Admin

Cell = str | int | float | bool | None | Sequence["Cell"] | Mapping[str, "Cell"]
Row = Mapping[str, Cell]

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        envvar="TAILRACE_BOOTSTRAP",
        help="Where to reach the cluster first.",
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


_BOOTSTRAP_TIMEOUT_MS = 1_000
"""Somebody is waiting at the terminal."""


def admin_of(bootstrap_servers: str) -> Admin:
    """An administrator's client that gives up soon on a cluster that is not there."""
    return Admin(bootstrap_servers, bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS)


class Format(StrEnum):
    """The forms of a listing."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="How to print.")]


def show(rows: Sequence[Row], columns: Sequence[str], output: Format) -> None:
    """Print rows. A table has Kafka's column names as its head; JSON is one array of objects."""
    if output is Format.JSON:
        write(json.dumps([dict(row) for row in rows], indent=2, ensure_ascii=False))
        return
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        write("  ".join(padded).rstrip())


def _text(cell: Cell) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, Mapping):
        return ",".join(f"{name}={value}" for name, value in cell.items()) or "-"
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        return ",".join(map(str, cell)) or "-"
    return str(cell)


def write(line: str) -> None:
    """One line of data."""
    sys.stdout.write(line + "\n")


def say(line: str) -> None:
    """One line for the person at the terminal."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def readable(content: bytes | None) -> Cell:
    """Bytes for JSON: text if they are UTF-8, else {"base64": ...}."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode("ascii")}
