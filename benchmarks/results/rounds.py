"""Rounds of one line: the servers alternate, so that a noisy minute affects every server, and each round begins with
another server."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from benchmarks.peers.peer import Absent
from benchmarks.results.figures import ABSENT, Chart, Column, Samples, Section, Target, bars, judge, table

T = TypeVar("T")
Show = Callable[..., None]
"""Receives each round as soon as the round is measured: label, test, server, quantities."""


class Rounds:
    """Warm-ups, which are shown but not used, and then the measured rounds."""

    def __init__(self, count: int, show: Show, *, warm_ups: int) -> None:
        self._count = count
        self._warm_ups = warm_ups
        self.samples = Samples()
        self.absent: list[str] = []
        self._number = 1 - warm_ups
        self._show = show

    def __iter__(self) -> Iterator[int]:
        for number in range(1 - self._warm_ups, self._count + 1):
            self._number = number
            yield number

    def in_turn(self, peers: Sequence[T]) -> Sequence[T]:
        """The peers, another peer first in each round; in the first round in the given order."""
        first = (self._number + self._warm_ups - 1) % len(peers)
        return [*peers[first:], *peers[:first]]

    def record(self, test: str, server: str, **quantities: float) -> None:
        counts = self._number > 0
        self._show(f"round {self._number}" if counts else "warm-up", test, server, **quantities)
        self.samples.add(test, server, **(quantities if counts else {}))

    def enter(self, stack: ExitStack, name: str, peer: AbstractContextManager[T]) -> list[T]:
        """The peer in a list, for as long as the stack is open; an empty list for an absent peer, and the reason is
        noted."""
        try:
            return [stack.enter_context(peer)]
        except Absent as why:
            self.miss(name, str(why))
            return []

    def miss(self, name: str, why: str) -> None:
        """Note once that a peer does not take part."""
        reason = f"{name} is {ABSENT}: {why}"
        if reason not in self.absent:
            self.absent.append(reason)

    def section(
        self,
        name: str,
        title: str,
        conditions: str,
        columns: Sequence[Column],
        targets: Sequence[Target] = (),
        chart: Chart | None = None,
    ) -> Section:
        """The report on the measured rounds."""
        head, rows = table(self.samples, columns)
        return Section(
            name=name,
            title=title,
            conditions=conditions,
            head=head,
            rows=rows,
            verdicts=judge(self.samples, targets),
            absent=tuple(self.absent),
            chart_head=chart.head if chart else "",
            is_chart_logarithmic=chart is not None and chart.is_logarithmic,
            bars=bars(self.samples, chart.quantity) if chart else (),
        )
