"""docs/decisions: each record has its number and title, and every record that code or pages cite is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
RECORDS = {path.name[:4]: path for path in sorted(FOLDER.glob("[0-9]*.md"))}
_CITED = re.compile(r"\bdecisions? ((?:\d{4}(?:, | and )?)+)|docs/decisions/(\d{4})")


def _title(path: Path) -> str:
    match = re.fullmatch(r"# (\d{4})[.:] (.+)", path.read_text().partition("\n")[0])
    assert match, f"{path.name} does not begin with its number and title"
    assert match[1] == path.name[:4]
    return match[2]


def test_every_record_has_a_title() -> None:
    assert all(_title(path) for path in RECORDS.values())


def test_a_number_is_used_once() -> None:
    assert len(RECORDS) == len(list(FOLDER.glob("[0-9]*.md")))


def test_a_record_that_is_superseded_names_its_successor() -> None:
    titles = [title for path in RECORDS.values() if "superseded" in (title := _title(path))]
    assert titles
    for title in titles:
        successors = re.findall(r"\d{4}", title.partition("superseded by")[2])
        assert successors
        assert all(number in RECORDS for number in successors), title


def test_every_record_that_is_cited_is_there() -> None:
    folders = ("src", "tests", "simulation", "testkit", "benchmarks", "fuzz", "scripts", "examples", "docs")
    files = [path for folder in folders for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    cited = [
        (path, number)
        for path in files
        for match in _CITED.finditer(path.read_text())
        for number in re.findall(r"\d{4}", match[0])
    ]
    assert len({number for _, number in cited}) > 10
    assert [f"{path} cites decision {number}" for path, number in cited if number not in RECORDS] == []


def test_every_number_without_a_record_is_in_the_list() -> None:
    section = (FOLDER / "README.md").read_text().partition("## Numbers without a record")[2]
    listed = set(re.findall(r"\d{4}", section))
    assert listed
    assert listed == {f"{number:04}" for number in range(1, int(max(listed)) + 1)} - set(RECORDS)
