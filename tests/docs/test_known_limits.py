"""docs/known-limits.md: few entries, each with its case and its way around."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "known-limits.md").read_text()
MOST = 60
ENTRIES = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| Effect |")
]


def test_the_page_stays_short() -> None:
    assert 20 < len(ENTRIES) <= MOST, "a user reads this page whole; what only we look at is an open end"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry[0][:60])
def test_an_entry_says_what_happens_when_and_the_way_around(entry: tuple[str, ...]) -> None:
    assert len(entry) == 3
    assert all(entry)


def test_every_setting_that_is_named_is_known() -> None:
    clients = "".join(path.read_text() for path in (DOCS.parent / "src" / "tailrace" / "client").rglob("*.py"))
    known = (DOCS / "settings.md").read_text() + (DOCS / "spark.md").read_text() + clients
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+){2,})(?:=[^`]*)?`", PAGE))
    assert len(named) > 10
    unknown = {name for name in named if name not in known and name.replace(".", "_") not in known}
    assert {name for name in unknown if not name.startswith("spark.sql.")} == set()
