"""A group of two members, two partitions, and its coordinator: every order of a few things (KIP-848).

Larger scopes: `make soak`, or `python -m simulation scopes --only members`.
"""

import pytest

from simulation.harness.small_scope import explore
from simulation.members.scope import MemberScope
from simulation.members.scopes import SHORT_SCOPES, NamedMemberScope

FENCED = {
    "a member reads and does not know that it is fenced",
    "a heartbeat is refused: UNKNOWN_MEMBER_ID",
    "a commit is refused: UNKNOWN_MEMBER_ID",
    "a late commit is refused",
    "a release is cancelled",
}
REACHED = {
    "a lost answer": {"an answer is lost", "a heartbeat comes late"},
    "a lost commit": {"a commit comes late"},
    "a fence": {"a session ends", *FENCED},
    "a fail-over": {"records are lost with the coordinator", "a commit is sent again: NOT_COORDINATOR"},
    "a close": {"a commit is sent again: STALE_MEMBER_EPOCH"},
    "a poll overdue": FENCED,
    "a silence": {"a release is cancelled", "a late commit is refused"},
}
"""The states that a scope must have reached."""


@pytest.mark.parametrize("scope", SHORT_SCOPES, ids=lambda scope: scope.name)
def test_every_order_of_a_few_things(scope: NamedMemberScope) -> None:
    model = MemberScope(scope.size)
    found = explore(model, model.start(scope.budget), max_states=40_000)
    print(f"{scope.name}: {found.summary()}")  # noqa: T201
    assert found.is_complete
    assert REACHED.get(scope.name, set()) <= found.sometimes
