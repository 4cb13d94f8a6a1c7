"""The chart of `make demo`: the writes around the kill of a leader, beside the result of the Spark pipeline.

The figures of the first part come from its file (failover_demo.py). Without the file the chart has the pipeline alone.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

Series = Mapping[str, Sequence[tuple[date, float]]]
SMOOTH_DAYS = 14
"""The days of the moving average."""
WRITES, KILL = "#2a7f62", "#c0392b"


def draw(delays: Series, failover: Path, chart: Path) -> None:
    """Write the chart: the delays by day, one line for each label, and the writes of the file `failover`."""
    mpl.use("Agg")
    figures = json.loads(failover.read_text()) if failover.exists() else None
    figure, columns = plt.subplots(
        ncols=2 if figures else 1, squeeze=False, figsize=(15 if figures else 9, 5), layout="constrained"
    )
    if figures:
        draw_writes(columns[0][0], figures)
    draw_delays(columns[0][-1], delays)
    figure.savefig(chart, dpi=120)
    plt.close(figure)


def draw_writes(axes: Axes, figures: Mapping[str, Any]) -> None:
    """The rate of acknowledged records over time, with the kill and the time until writes were back."""
    width, verdict, killed_at = figures["column_s"], figures["verdict"], figures["killed_at"]
    rates = np.array(figures["columns"]) / width
    axes.bar(np.arange(len(rates)) * width, rates, width=width, align="edge", color=WRITES)
    axes.axvspan(killed_at, killed_at + figures["outage_s"], color=KILL, alpha=0.12)
    axes.axvline(killed_at, color=KILL)
    axes.annotate(
        f"kill -9 of the leader; \nwrites back after {figures['outage_s']:.1f} s ",
        (killed_at, max(rates, default=0.0)),
        color=KILL,
        ha="right",
        va="top",
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none"},
    )
    axes.set(
        title=f"{verdict['acknowledged']:,} acknowledged, {verdict['read']:,} read, {verdict['lost']:,} lost",
        xlabel="seconds",
        ylabel="acknowledged records/s",
    )
    axes.grid(alpha=0.3)


def draw_delays(axes: Axes, delays: Series) -> None:
    """The mean delay by day, averaged over two weeks."""
    for label, days in delays.items():
        smooth = np.convolve([delay for _, delay in days], np.ones(SMOOTH_DAYS) / SMOOTH_DAYS, mode="valid")
        axes.plot([day for day, _ in days][SMOOTH_DAYS - 1 :], smooth, label=label)
    axes.set(title="Mean departure delay, two-week average: from topics, by Spark", ylabel="minutes")
    axes.grid(alpha=0.3)
    axes.legend(ncols=2)
