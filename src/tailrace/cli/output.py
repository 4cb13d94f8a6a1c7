"""Output of commands: data to stdout as a table or as JSON, everything else to stderr."""

import base64
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tailrace.client.blocking.admin import Admin
from tailrace.client.setting_fields import keywords_of
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import parse_addresses

Cell = str | int | float | bool | None | Sequence["Cell"] | Mapping[str, "Cell"]
Row = Mapping[str, Cell]


def _check_addresses(text: str) -> str:
    """The text, if it is a list of addresses. Raises typer.BadParameter."""
    try:
        parse_addresses(text)
    except KafkaError as fault:
        raise typer.BadParameter(fault.detail) from None
    return text


BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        envvar="TAILRACE_BOOTSTRAP",
        help="Where to reach the cluster first.",
        callback=_check_addresses,
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_VARIABLE: Final = "TAILRACE_COMMAND_CONFIG"
_ADDRESSES: Final = "bootstrap_servers"


_BOOTSTRAP_TIMEOUT_MS = 1_000
"""The time-out is short: a user waits at the terminal."""


def cluster_of(bootstrap_servers: str) -> ClientSettings:
    """The settings that the clients of a command share: with `--command-config` the settings of the file."""
    settings, strange = _settings_of_file()
    if strange:
        say(f"not used of the file of settings: {', '.join(strange)}")
    return ClientSettings(bootstrap_servers, **settings)


def _settings_of_file() -> tuple[dict[str, Any], list[str]]:
    """The settings in the file that the environment names, and the names in the file that are no settings of a command.
    Raises OSError, and KafkaError INVALID_CONFIG, never with a value."""
    name = os.environ.get(_VARIABLE)
    if not name:
        return {}, []
    from tailrace.node.settings.properties import parse_properties  # most commands need no file

    try:
        properties = parse_properties(Path(name).read_text(encoding="utf-8"))
    except ValueError:  # also of bytes that are not UTF-8
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is not a file of properties") from None
    given = keywords_of(properties)
    known = {setting.name for setting in fields(ClientSettings)} - {_ADDRESSES}
    settings = {keyword: value for keyword, value in given.items() if keyword in known}
    return settings, sorted(keyword.replace("_", ".") for keyword in given.keys() - known - {_ADDRESSES})


def admin_of(bootstrap_servers: str) -> Admin:
    """An administrator's client with a short time-out for a cluster that cannot be reached."""
    return Admin.of(replace(cluster_of(bootstrap_servers), bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS))


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
    if cell is None:
        return "-"
    if isinstance(cell, Mapping):
        cell = ",".join(f"{name}={value}" for name, value in cell.items())
    elif isinstance(cell, Sequence) and not isinstance(cell, str):
        cell = ",".join(map(str, cell))
    return one_line(str(cell)) or "-"


def one_line(text: str) -> str:
    """The text with escaped control characters: any client may name a group, and a terminal would obey control
    characters."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def write(line: str) -> None:
    """Print one line of data."""
    sys.stdout.write(line + "\n")


def say(line: str) -> None:
    """Print one line for the person at the terminal."""
    sys.stderr.write(one_line(line) + "\n")
    sys.stderr.flush()


def counted(count: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def readable(content: bytes | None) -> Cell:
    """Bytes for JSON: text for UTF-8, else {"base64": ...}."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode("ascii")}
