"""The scopes of commits whose exhaustive search ends: short scopes in seconds, the long scopes in a quarter of an
hour."""

from typing import Final, NamedTuple

from simulation.commits.scope import CommitScope
from simulation.commits.world import CommitBudget, CommitSize
from simulation.harness.small_scope import look_around


class NamedCommitScope(NamedTuple):
    """A search, and its name."""

    name: str
    budget: CommitBudget
    kind: CommitSize = CommitSize()  # a value: it never changes


SHORT_SCOPES: Final = (
    NamedCommitScope("two commits of each", CommitBudget(commits=2)),
    NamedCommitScope("two looks of each", CommitBudget(fetches=2)),
    NamedCommitScope("nothing is committed yet", CommitBudget(fetches=2), CommitSize(has_offset=False)),
    NamedCommitScope("twice, and a fail-over", CommitBudget(duplicates=1, failovers=1)),
    NamedCommitScope("a reset", CommitBudget(resets=1)),
    NamedCommitScope("a reset and a fail-over", CommitBudget(resets=1, failovers=1)),
    NamedCommitScope("a plain commit", CommitBudget(plain_commits=1)),
    NamedCommitScope("a plain commit and a fail-over", CommitBudget(plain_commits=1, failovers=1)),
    NamedCommitScope("a deletion", CommitBudget(deletions=1)),
    NamedCommitScope("a cut and a repetition", CommitBudget(duplicates=1, cuts=1)),
    NamedCommitScope("a reset and a repetition", CommitBudget(duplicates=1, resets=1)),
    NamedCommitScope("a rewind and a repetition", CommitBudget(duplicates=1, plain_commits=1)),
)

LONG_SCOPES: Final = (
    NamedCommitScope("two looks and a reset", CommitBudget(fetches=2, resets=1)),
    NamedCommitScope("two commits and a plain one", CommitBudget(commits=2, plain_commits=1)),
    NamedCommitScope("two resets", CommitBudget(resets=2)),
    NamedCommitScope("a reset and a plain commit", CommitBudget(plain_commits=1, resets=1)),
    NamedCommitScope("a reset and a deletion", CommitBudget(resets=1, deletions=1)),
    NamedCommitScope("two looks and a deletion", CommitBudget(fetches=2, deletions=1), CommitSize(has_offset=False)),
    NamedCommitScope("a cut, a look and a fail-over", CommitBudget(fetches=2, cuts=1, failovers=1)),
    NamedCommitScope("a cut and a reset", CommitBudget(resets=1, cuts=1)),
    NamedCommitScope("three offsets", CommitBudget(failovers=1), CommitSize(offsets=3)),
    NamedCommitScope("all of them", CommitBudget(duplicates=1, plain_commits=1, resets=1, deletions=1, failovers=1)),
)
"""Together with the short scopes they take a quarter of an hour, nearly all of it for the scope at the end."""


def run_scope(number: int) -> None:
    """Search the scope with this number; the numbers of short scopes come first. Raises Breach."""
    named = (*SHORT_SCOPES, *LONG_SCOPES)[number]
    model = CommitScope(named.kind)
    look_around(model, model.start(named.budget), max_states=20_000)
