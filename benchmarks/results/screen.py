"""A section on the terminal, and the rounds while they run."""

from rich.console import Console
from rich.table import Table

from benchmarks.results.figures import Section, number

WIDTH_OF_A_FILE = 160

console = Console()
if not console.is_terminal:
    console = Console(width=WIDTH_OF_A_FILE)


def show_round(label: str, test: str, server: str, **quantities: float) -> None:
    """Print a line as soon as something was measured."""
    values = "  ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in quantities.items())
    console.print(f"  {label:8} {test:28} {server:16} {values}", style="dim", highlight=False, soft_wrap=True)


def show(section: Section) -> None:
    table = Table(title=section.title, title_justify="left", caption=section.conditions, caption_justify="left")
    for name in section.head:
        is_text = name in ("test", "server") or name.startswith("rounds")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    previous = ""
    for test, *cells in section.rows:
        if previous and test != previous:
            table.add_section()
        table.add_row("" if test == previous else test, *cells)
        previous = test
    console.print(table)
    for peer in section.absent:
        console.print(f"  {peer}", style="yellow", highlight=False)
    for verdict in section.verdicts:
        console.print(f"  {verdict}", style="red" if verdict.missed_by else "green", highlight=False)
    console.print()
