"""Java's defaults in docs/client-defaults.md are what its client has."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from interop.kafka_tools import JARS, absent, java

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

PAGE: Final = Path(__file__).parents[3] / "docs" / "client-defaults.md"
ROWS: Final = {
    "max.request.size": "bytes of a Produce request",
    "batch.size": "bytes in which a producer collects",
    "request.timeout.ms": "ms that a Produce may wait",
    "transaction.timeout.ms": "ms that a transaction may be open",
    "connections.max.idle.ms": "ms after which a client closes",
    "partition.assignment.strategy": "assignors that a member",
}
_JAVAS_COLUMN: Final = 2


def test_java_has_the_defaults_of_the_page() -> None:
    if why := absent():
        pytest.skip(why)
    source = str(Path(__file__).with_name("ClientDefaults.java"))
    command = [*java("-cp", f"{JARS}/*"), source, *ROWS]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    lines = PAGE.read_text().splitlines()
    on_the_page = {
        name: next(line for line in lines if line.startswith(f"| {what}"))[2:].split(" | ")[_JAVAS_COLUMN]
        for name, what in ROWS.items()
    }
    assert {name: cell.replace(",", "") for name, cell in on_the_page.items()} == dict(
        line.split("=") for line in printed.splitlines()
    )
