"""Measurements and their results: rounds, medians, ratios to a peer, and whether a target is met."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.peers.peer import TAILRACE

ABSENT = "absent"


class Samples:
    """The rounds of one line: for each test and server the same quantities, one value a round."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, str], dict[str, list[float]]] = {}

    def add(self, test: str, server: str, **quantities: float) -> None:
        """Add a round. Without quantities the round only gives the test and the server their place in the order."""
        known = self._rounds.setdefault((test, server), {})
        for quantity, value in quantities.items():
            known.setdefault(quantity, []).append(value)

    def rows(self) -> list[tuple[str, str]]:
        """Every test with every server that took part in the test, test by test, in the order in which they were
        added."""
        measured = [row for row, quantities in self._rounds.items() if quantities]
        tests = dict.fromkeys(test for test, _ in measured)
        return [row for test in tests for row in measured if row[0] == test]

    def rounds(self, test: str, server: str, quantity: str) -> list[float]:
        """The values of the rounds in order; empty if this server has no such quantity."""
        return self._rounds.get((test, server), {}).get(quantity, [])

    def median(self, test: str, server: str, quantity: str) -> float | None:
        rounds = self.rounds(test, server, quantity)
        return statistics.median(rounds) if rounds else None

    def ratio(self, test: str, server: str, quantity: str, *, beside: str) -> float | None:
        """This server's median by that of a peer; None if the server or the peer has no median."""
        mine, theirs = self.median(test, server, quantity), self.median(test, beside, quantity)
        return None if mine is None or not theirs else mine / theirs


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed (nearest rank). There must be one value at least."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


class Column(NamedTuple):
    """A quantity in a table: its median, the ratios to these peers, and whether its rounds are shown."""

    quantity: str
    head: str
    digits: int = 0
    beside: tuple[str, ...] = ()
    shows_rounds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of one figure (decision 0047), or of its ratio to `beside`, if given: at least or at most `limit`."""

    test: str
    server: str
    quantity: str
    limit: float
    unit: str = ""
    beside: str | None = None
    is_upper: bool = False


class Verdict(NamedTuple):
    """A target and the measured figure; None if the peer was absent."""

    target: Target
    measured: float | None

    @property
    def missed_by(self) -> float | None:
        """The distance from the limit as a share of the limit; 0 if the target is met."""
        if self.measured is None:
            return None
        limit = self.target.limit
        share = (self.measured - limit) / limit if self.target.is_upper else (limit - self.measured) / limit
        return max(share, 0.0)

    def __str__(self) -> str:
        target = self.target
        unit = f" x {target.beside}" if target.beside else f" {target.unit}"
        bound = "at most" if target.is_upper else "at least"
        subject = target.test if target.server == TAILRACE else f"{target.test}, {target.server}"
        asked = f"{subject}, {target.quantity.replace('_', ' ')}: {bound} {target.limit:g}{unit}"
        if self.measured is None or self.missed_by is None:
            return f"{asked}; not measured, {target.beside or target.server} is {ABSENT}"
        state = f"missed by {_share(self.missed_by)}" if self.missed_by else "met"
        return f"{asked}; measured {number(self.measured)}: {state}"


def judge(samples: Samples, targets: Sequence[Target]) -> tuple[Verdict, ...]:
    """Judge the targets by their medians."""
    return tuple(Verdict(target, _measured(samples, target)) for target in targets)


def _measured(samples: Samples, target: Target) -> float | None:
    if target.beside is None:
        return samples.median(target.test, target.server, target.quantity)
    return samples.ratio(target.test, target.server, target.quantity, beside=target.beside)


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"


def number(value: float) -> str:
    """The number with three significant digits: a noisy machine does not give more."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Chart(NamedTuple):
    """A quantity to draw, and the head of its chart."""

    quantity: str
    head: str
    is_logarithmic: bool = False
    """Whether the scale is logarithmic: for values above 0 that differ by orders of magnitude."""


class Bar(NamedTuple):
    """A bar of a chart: the median, and the rounds as points."""

    test: str
    server: str
    rounds: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The report on one line: the same on the screen and on the page."""

    name: str
    title: str
    conditions: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    verdicts: tuple[Verdict, ...]
    absent: tuple[str, ...] = ()
    """Peers that did not take part, with the reasons."""
    chart_head: str = ""
    is_chart_logarithmic: bool = False
    """Whether the scale is logarithmic: for values above 0 that differ by orders of magnitude."""
    bars: tuple[Bar, ...] = field(default=())


def table(samples: Samples, columns: Sequence[Column]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The head and the rows: a row for each test and server, a cell for each median and ratio, the rounds last."""
    head = ["test", "server"]
    for column in columns:
        head += [column.head, *(f"x {peer}" for peer in column.beside)]
    head += [f"rounds, {column.head}" for column in columns if column.shows_rounds]
    return tuple(head), tuple(_row(samples, test, server, columns) for test, server in samples.rows())


def _row(samples: Samples, test: str, server: str, columns: Sequence[Column]) -> tuple[str, ...]:
    cells = [test, server]
    for column in columns:
        cells.append(_cell(samples.median(test, server, column.quantity), column.digits))
        cells += [_cell(samples.ratio(test, server, column.quantity, beside=peer), 2) for peer in column.beside]
    for column in columns:
        if column.shows_rounds:
            rounds = samples.rounds(test, server, column.quantity)
            cells.append(" ".join(_cell(value, column.digits) for value in rounds))
    return tuple(cells)


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def bars(samples: Samples, quantity: str) -> tuple[Bar, ...]:
    """A bar for each row that has the quantity."""
    found = (Bar(test, server, samples.rounds(test, server, quantity)) for test, server in samples.rows())
    return tuple(bar for bar in found if bar.rounds)
