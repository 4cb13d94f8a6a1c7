"""docs/reference/errors.md is made from the docstrings of the error codes; REWRITE=1 writes it anew."""

import re
from pathlib import Path

import tailrace
from docs.documented_fields import documented_fields
from docs.generated import check_generated
from tailrace.model.errors import ErrorCode

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "errors.md"
SOURCES = ROOT / "src" / "tailrace"
_CODE = re.compile(r"ErrorCode\.([A-Z_]+)")


def codes_in_use() -> set[str]:
    """The codes that a broker or a client of ours gives, or acts on: the code names them."""
    return {
        name
        for path in SOURCES.rglob("*.py")
        if path != SOURCES / "model" / "errors.py"
        for name in _CODE.findall(path.read_text())
    } - {ErrorCode.NONE.name}


def codes() -> str:
    lines = ["| Code | Name | Retriable | Meaning | Advice |", "| --- | --- | --- | --- | --- |"]
    docs = documented_fields(ErrorCode)
    for code in sorted(ErrorCode[name] for name in docs):
        meaning, _, advice = docs[code.name].partition(". ")
        cells = (str(int(code)), f"`{code.name}`", "yes" if code.retriable else "", f"{meaning}.", advice)
        lines.append(f"| {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def test_the_table_is_what_the_code_says() -> None:
    check_generated(PAGE, {"codes": codes})


def test_each_code_in_use_has_a_meaning_and_says_what_to_do() -> None:
    docs = documented_fields(ErrorCode)
    assert codes_in_use() - docs.keys() == set()
    assert docs.keys() - codes_in_use() == set(), "no code of ours gives these"
    parts = {name: text.partition(". ") for name, text in docs.items()}
    assert [name for name, (meaning, _, advice) in parts.items() if not meaning or not advice.endswith(".")] == []


def test_each_class_of_errors_that_a_user_can_catch_is_on_the_page() -> None:
    caught = {name for name in tailrace.__all__ if is_exception(getattr(tailrace, name))}
    assert "ProducerFenced" in caught
    assert {name for name in caught if f"`{name}`" not in PAGE.read_text()} == set()


def is_exception(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Exception)
