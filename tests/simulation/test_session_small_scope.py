"""Both ends of a fetch session in every order of a few things (KIP-227), and in long walks at random.

Larger scopes: `make soak`, or `python -m simulation scopes`.
"""

import os
from collections import Counter

import pytest

from budgets import examples
from simulation.harness.small_scope import explore
from simulation.sessions import plain
from simulation.sessions.scope import SessionScope
from simulation.sessions.scopes import SHORT_SCOPES, NamedSessionScope
from simulation.sessions.walks import run_seed

WALKS = int(os.environ.get("SESSION_WALKS", examples(10)))
REACHED = {
    "a loss": {"a session is closed", "a partition is left out", "a fetch waits"},
    "a request comes late": {"error 70", "a session is closed"},
    "a request comes twice": {"error 71"},
    "the broker restarts": {"error 70"},
    "a thief": {"error 70"},
    "one slot for two": {"a session is evicted", "error 70"},
    "a follower evicts": {"a session is evicted", "error 70"},
    "small answers": {"an answer is full"},
    "a follower, a loss": {"a follower rests"},
}
"""The states that a scope must have reached, beside that both ends agree."""


@pytest.mark.parametrize("scope", SHORT_SCOPES, ids=lambda scope: scope.name)
def test_every_order_of_a_few_things(scope: NamedSessionScope) -> None:
    model = SessionScope(scope.kind)
    found = explore(model, model.start(scope.budget), max_states=20_000)
    print(f"{scope.name}: {found.summary()}")  # noqa: T201
    assert found.is_complete
    assert {"both ends agree", *REACHED.get(scope.name, ())} <= found.sometimes


def test_long_walks_break_no_law() -> None:
    reached: Counter[str] = Counter()
    for seed in range(WALKS):
        reached += run_seed(seed)
    missed = {"error 70", "error 71", "a follower rests", "an answer is full", "a session is evicted"} - set(reached)
    assert WALKS < 10 or not missed


def test_an_unknown_part_of_a_session_stops_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "SESSION_PARTS", plain.SESSION_PARTS - {"visits"})
    with pytest.raises(AssertionError, match="a session has other parts"):
        explore(
            SessionScope(SHORT_SCOPES[0].kind),
            SessionScope(SHORT_SCOPES[0].kind).start(SHORT_SCOPES[0].budget),
            max_states=100,
        )
