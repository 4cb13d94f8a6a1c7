"""docs/glossary.md is true: each term is defined once, in order, and the modules that it names exist."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text()
TABLES = {
    head: [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in text.splitlines() if line[:1] == "|"]
    for head, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
TERMS = {head: [row[0] for row in rows[2:]] for head, rows in TABLES.items() if rows[0][0] == "Term"}
PLACES = sorted({name for rows in TABLES.values() for row in rows[2:] for name in re.findall(r"`([^`]+)`", row[-1])})


def test_a_term_is_defined_once() -> None:
    terms = [term for table in TERMS.values() for term in table]
    assert len(terms) > 50
    assert sorted(terms) == sorted(set(terms))


@pytest.mark.parametrize("head", TERMS)
def test_terms_are_in_order(head: str) -> None:
    assert TERMS[head] == sorted(TERMS[head])


@pytest.mark.parametrize("name", PLACES)
def test_the_place_of_a_term_exists(name: str) -> None:
    assert (ROOT / name).is_file() or importlib.import_module(f"tailrace.{name}") is not None
