"""docs/architecture.md as tests read it: its sections, the rows of its tables, and the things that it names."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def section(title: str) -> str:
    """The text of a section. Raises LookupError if there is none."""
    _, found, rest = PAGE.partition(f"\n## {title}\n")
    if not found:
        raise LookupError(f"docs/architecture.md has no section {title!r}")
    return rest.partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the rows of a section's tables, without their heads."""
    tables = re.findall(r"^\|.*\n\|-.*\n((?:\|.*\n?)*)", section(title), re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def subjects(title: str) -> list[str]:
    """The names in the first cells of a section's table."""
    return [name for row in rows(title) for name in re.findall(r"`([^`]+)`", row[0])]


def resolve(name: str) -> tuple[str, object]:
    """The module of a dotted name and the thing itself, which may be the module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(["tailrace", *parts[:length]])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as fault:
            if fault.name is None or not module.startswith(fault.name):
                raise
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return module, found
    raise AssertionError(f"docs/architecture.md names {name}, which does not exist")


def in_order(names: list[str], layers: list[str]) -> bool:
    """Whether these are the modules of an import contract, each once, from the top layer to the lowest."""
    places = {module.strip(): at for at, layer in enumerate(layers) for module in layer.split("|")}
    found = [places.get(name, -1) for name in names]
    return sorted(names) == sorted(places) and found == sorted(found)
