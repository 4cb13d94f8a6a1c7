"""A section as a picture: a bar for each median, a point for each round."""

import statistics
from pathlib import Path

from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import TAILRACE
from benchmarks.results.figures import Section

COLOURS = {TAILRACE: "#1b6ca8", KAFKA: "#d9822b"}
OTHER = "#8a8d91"
_INCHES_PER_BAR = 0.32


def draw(section: Section, path: Path) -> None:
    """Write the PNG. The tests stand below each other, the servers of one test together, every server in its colour."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    servers = list(dict.fromkeys(bar.server for bar in section.bars))
    tests = list(dict.fromkeys(bar.test for bar in section.bars))
    figure, axes = pyplot.subplots(figsize=(8, 1.4 + _INCHES_PER_BAR * (len(section.bars) + len(tests))))
    labelled: set[str] = set()
    place, ticks = 0.0, []
    for test in tests:
        group = [bar for bar in section.bars if bar.test == test]
        ticks.append(place + (len(group) - 1) / 2)
        for bar in group:
            colour = COLOURS.get(bar.server, OTHER)
            label = None if bar.server in labelled else bar.server
            labelled.add(bar.server)
            axes.barh(place, statistics.median(bar.rounds), height=0.8, color=colour, label=label)
            axes.plot(bar.rounds, [place] * len(bar.rounds), "o", color="black", markersize=2.5, alpha=0.5)
            place += 1
        place += 1
    axes.set_yticks(ticks, tests)
    if section.is_chart_logarithmic:
        axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel(section.chart_head)
    axes.set_title(section.title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(servers), frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
