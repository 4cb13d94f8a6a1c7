"""docs/limits.md is true: the tests that it names are there, and the settings have the defaults that it gives."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tailrace.node.settings.table import BROKER_SETTINGS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "limits.md"
TESTS = re.findall(r"(tests/[\w/]+\.py)::(\w+)", PAGE.read_text())
SETTINGS = re.findall(r"`([a-z.]+)` ([0-9][0-9,]*)", PAGE.read_text())


@cache
def functions_in(path: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_row_names_a_test_that_is_there() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.endswith(" Test |")]
    assert len(rows) > 50
    assert [row for row in rows if "tests/" not in row] == []
    assert [f"{path}::{name}" for path, name in TESTS if name not in functions_in(ROOT / path)] == []


@pytest.mark.parametrize(("name", "number"), SETTINGS)
def test_a_setting_has_the_default_that_the_page_gives(name: str, number: str) -> None:
    # The size of a batch is a setting of topics; the broker's is their default.
    assert BROKER_SETTINGS[name].default == int(number.replace(",", ""))
