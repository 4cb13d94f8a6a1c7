"""The pages of docs: written by hand, except for a section for each line, which `--save` replaces."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results.figures import Section

DIRECTORY = Path(__file__).parents[2] / "docs" / "benchmarks"
PAGE = DIRECTORY / "README.md"
EXPERIMENTS = DIRECTORY.parent / "experiments"


def path_of(experiment: str) -> Path:
    """The page of an experiment, or the page of the lines without an experiment."""
    return EXPERIMENTS / f"{experiment}.md" if experiment else PAGE


def markdown(section: Section, machine: str) -> str:
    """The section in the form of the page, chart included."""
    parts = [f"## {section.title}", section.conditions, machine]
    parts.append(_table(section.head, section.rows))
    if section.absent:
        parts.append("\n".join(f"- {peer}" for peer in section.absent))
    if section.verdicts:
        parts.append("\n".join(f"- {verdict}" for verdict in section.verdicts))
    if section.bars:
        parts.append(f"![{section.title}: {section.chart_head}]({chart_name(section.name)})")
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    # Text stands left, numbers right; the rounds are read as text.
    rule = ["---" if name in ("test", "server") or name.startswith("rounds") else "---:" for name in head]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def chart_name(name: str) -> str:
    return f"{name}.png"


def replaced(page: str, name: str, text: str) -> str:
    """The page with this text in place of the section with this name; a new section comes at the end."""
    begin, end = f"<!-- {name}: written by make bench -->", f"<!-- {name}: end -->"
    section = f"{begin}\n\n{text}\n\n{end}"
    before, found, rest = page.partition(begin)
    if not found:
        return f"{page.rstrip()}\n\n{section}\n"
    _, closed, after = rest.partition(end)
    if not closed:
        raise ValueError(f"the section {name} has a beginning and no end")
    return before + section + after


def save(section: Section, machine: str, path: Path = PAGE) -> None:
    """Put the section into the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page = path.read_text() if path.exists() else "# Measured beside a peer\n"
    path.write_text(replaced(page, section.name, markdown(section, machine)))
