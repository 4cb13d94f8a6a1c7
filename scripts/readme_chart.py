"""Draws the picture of README.md from the tables of docs/benchmarks: `python scripts/readme_chart.py`.

The figures are read from the page that `make bench ARGS=--save` writes; this program has no figure of its own. Run it
again when the page has new figures: a test compares the picture with the page.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "benchmarks" / "README.md"
PICTURE: Final = ROOT / "docs" / "readme.svg"
COLOURS: Final = {"tailrace": "#1b6ca8", "Apache Kafka": "#d9822b"}
NAMES: Final = {"tailrace": "Tailrace", "Apache Kafka": "Apache Kafka"}
WIDTH: Final = 960
MARGIN: Final = 28
LABEL_WIDTH: Final = 116
VALUE_WIDTH: Final = 90
BAR: Final = 22
PANEL: Final = 104
FOOT: Final = 30
STYLE: Final = (
    "<style>text{font-size:15px;fill:#24292f}.title{font-size:17px;font-weight:600}"
    ".foot{font-size:12px;fill:#57606a}</style>"
)


class Panel(NamedTuple):
    """A comparison: the column of a table, where one test has a row for each server."""

    title: str
    test: str
    column: str
    unit: str


PANELS: Final = (
    Panel("From the start of a node to the first acknowledged record", "one node", "start s", "s"),
    Panel("From kill -9 of a leader to the next acknowledged record", "a leader is killed", "p50 s", "s"),
    Panel("Memory of an idle node", "one node", "idle MB", "MB"),
)


def rows(page: str) -> Iterator[dict[str, str]]:
    """The rows of all tables of the page, by the names of their columns."""
    header: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = cells
        elif not set(line) <= set("|-: "):
            yield dict(zip(header, cells, strict=True))


def figures(page: str, panel: Panel) -> dict[str, str]:
    """The figure of each server, as the table has it."""
    found = {
        row["server"]: row[panel.column] for row in rows(page) if row.get("test") == panel.test and panel.column in row
    }
    return {server: found[server] for server in COLOURS}


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of words; `kind` is its class in the style."""
    return f'<text x="{x:g}" y="{y:g}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'.replace("'", '"')


def drawn(page: str) -> str:
    """The picture: a panel for each comparison, below each other."""
    height = len(PANELS) * PANEL + FOOT + MARGIN
    room = WIDTH - 2 * MARGIN - LABEL_WIDTH - VALUE_WIDTH
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
    )
    title = "<title>Tailrace beside Apache Kafka: start, fail-over, memory</title>"
    parts = [head, title, STYLE, f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#f6f8fa"/>']
    for number, panel in enumerate(PANELS):
        top = MARGIN + number * PANEL
        parts.append(text(MARGIN, top + 8, panel.title, "title"))
        values = figures(page, panel)
        longest = max(float(value) for value in values.values())
        for place, (server, value) in enumerate(values.items()):
            y = top + 20 + place * (BAR + 8)
            width = room * float(value) / longest
            parts.append(text(MARGIN, y + 16, NAMES[server]))
            parts.append(
                f'<rect x="{MARGIN + LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"'
                f' fill="{COLOURS[server]}"/>'
            )
            parts.append(text(round(MARGIN + LABEL_WIDTH + width + 8, 1), y + 16, f"{value} {panel.unit}"))
    source = "Medians, both servers in one run, default settings; docs/benchmarks has each round and the machines."
    parts.append(text(MARGIN, height - 16, source, "foot"))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn(PAGE.read_text()))
    print(PICTURE)
