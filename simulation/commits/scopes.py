"""The scopes of commits whose exhaustive search ends: short scopes in seconds, the long scopes in a quarter of an
hour."""

from typing import Final, NamedTuple

from simulation.commits.scope import CommitScope
from simulation.commits.world import Budget, Kind
from simulation.harness.small_scope import ScopeBreach, explore


class NamedScope(NamedTuple):
    """A search, and its name."""

    name: str
    budget: Budget
    kind: Kind = Kind()  # a value: it never changes


SHORT_SCOPES: Final = (
    NamedScope("two commits of each", Budget(commits=2)),
    NamedScope("two looks of each", Budget(fetches=2)),
    NamedScope("nothing is committed yet", Budget(fetches=2), Kind(has_offset=False)),
    NamedScope("twice, and a fail-over", Budget(duplicates=1, failovers=1)),
    NamedScope("a reset", Budget(resets=1)),
    NamedScope("a reset and a fail-over", Budget(resets=1, failovers=1)),
    NamedScope("a plain commit", Budget(plain_commits=1)),
    NamedScope("a plain commit and a fail-over", Budget(plain_commits=1, failovers=1)),
    NamedScope("a deletion", Budget(deletions=1)),
    NamedScope("a cut and a repetition", Budget(duplicates=1, cuts=1)),
    NamedScope("a reset and a repetition", Budget(duplicates=1, resets=1)),
    NamedScope("a rewind and a repetition", Budget(duplicates=1, plain_commits=1)),
)

LONG_SCOPES: Final = (
    NamedScope("two looks and a reset", Budget(fetches=2, resets=1)),
    NamedScope("two commits and a plain one", Budget(commits=2, plain_commits=1)),
    NamedScope("two resets", Budget(resets=2)),
    NamedScope("a reset and a plain commit", Budget(plain_commits=1, resets=1)),
    NamedScope("a reset and a deletion", Budget(resets=1, deletions=1)),
    NamedScope("two looks and a deletion", Budget(fetches=2, deletions=1), Kind(has_offset=False)),
    NamedScope("a cut, a look and a fail-over", Budget(fetches=2, cuts=1, failovers=1)),
    NamedScope("a cut and a reset", Budget(resets=1, cuts=1)),
    NamedScope("three offsets", Budget(failovers=1), Kind(offsets=3)),
    NamedScope("all of them", Budget(duplicates=1, plain_commits=1, resets=1, deletions=1, failovers=1)),
)
"""With the short scopes a quarter of an hour, nearly all that time for the last scope."""


def run_scope(number: int) -> None:
    """Search the scope of this number, the short ones first. Raises Breach."""
    named = (*SHORT_SCOPES, *LONG_SCOPES)[number]
    model = CommitScope(named.kind)
    try:
        explore(model, model.start(named.budget), max_states=20_000)
    except ScopeBreach as breach:
        assert breach.__cause__ is not None
        raise breach.__cause__ from None
