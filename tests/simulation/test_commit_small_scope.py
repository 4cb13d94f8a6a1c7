"""Commits of two readers that split a partition, in every order of a few things (KIP-X).

Larger scopes: `make soak`, or `python -m simulation scopes`.
"""

import pytest

from simulation.commits.scope import CommitScope
from simulation.commits.scopes import SHORT_SCOPES, NamedCommitScope
from simulation.harness.small_scope import explore

REACHED = {
    "twice, and a fail-over": {"records are lost with the coordinator"},
    "a reset": {"a commit is fenced", "a frontier is lowered", "a reset lowers nothing"},
    "a reset and a fail-over": {"a commit is fenced", "records are lost with the coordinator"},
    "a plain commit": {"a frontier is lowered"},
    "a deletion": {"a commit is fenced"},
    "a cut and a repetition": {"a commit is fenced"},
    "a reset and a repetition": {"a commit is fenced"},
    "a rewind and a repetition": {"a commit is fenced"},
}
"""The states that a scope must have reached, beside that everything is done."""


@pytest.mark.parametrize("scope", SHORT_SCOPES, ids=lambda scope: scope.name)
def test_every_order_of_a_few_things(scope: NamedCommitScope) -> None:
    model = CommitScope(scope.kind)
    found = explore(model, model.start(scope.budget), max_states=20_000)
    print(f"{scope.name}: {found.summary()}")  # noqa: T201
    assert found.is_complete
    assert {"everything is done", *REACHED.get(scope.name, ())} <= found.sometimes
