"""The scopes of sinks whose exhaustive search ends: short scopes in seconds, the long scopes in minutes."""

from typing import Final, NamedTuple

from simulation.harness.small_scope import look_around
from simulation.sinks.scope import SinkScope
from simulation.sinks.world import SinkBudget


class NamedBudget(NamedTuple):
    """A search, and its name."""

    name: str
    budget: SinkBudget


SHORT_SCOPES: Final = (
    NamedBudget("one run, every crash", SinkBudget(second_run=0, failovers=1)),
    NamedBudget(
        "two batches, all things late",
        SinkBudget(second_run=0, batches=2, failovers=1, late_commits=1, late_markers=1, is_quick=True),
    ),
    NamedBudget("a second attempt", SinkBudget(second_run=0, attempts=1)),
    NamedBudget(
        "a second attempt, a timeout, every crash",
        SinkBudget(second_run=0, attempts=1, failovers=1, timeouts=1, is_quick=True),
    ),
    NamedBudget("two runs", SinkBudget(is_quick=True)),
)

LONG_SCOPES: Final = (
    NamedBudget("two runs, every step", SinkBudget()),
    NamedBudget("two runs, every crash", SinkBudget(failovers=1, is_quick=True)),
    NamedBudget("two runs, all things late", SinkBudget(late_commits=1, late_markers=1, is_quick=True)),
    NamedBudget("two runs and a timeout", SinkBudget(timeouts=1, is_quick=True)),
    NamedBudget("two runs and a second attempt", SinkBudget(attempts=1, is_quick=True)),
)

WIDE_SCOPES: Final = (NamedBudget("two runs and two batches", SinkBudget(batches=2, is_quick=True)),)
"""Scopes for mutants, whose search is begun only: it would take more than a quarter of an hour."""


def run_scope(number: int) -> None:
    """Search the first 30,000 worlds of the scope with this number; the numbers of short scopes come first. Raises
    Breach."""
    model = SinkScope()
    look_around(model, model.start((*SHORT_SCOPES, *LONG_SCOPES, *WIDE_SCOPES)[number].budget), max_states=30_000)
