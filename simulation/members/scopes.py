"""The scopes of members whose exhaustive search ends: short scopes in seconds, the long scopes in minutes."""

from typing import Final, NamedTuple

from simulation.harness.small_scope import look_around
from simulation.members.parts import GroupSize, MemberBudget
from simulation.members.scope import MemberScope


class NamedMemberScope(NamedTuple):
    """A search, and its name."""

    name: str
    budget: MemberBudget
    size: GroupSize = GroupSize()  # a value: it never changes


_QUICK: Final = GroupSize(records=0)
_APART: Final = GroupSize(records=0, is_apart=True)
_STAGED: Final = GroupSize(records=0, is_staged=True)

SHORT_SCOPES: Final = (
    NamedMemberScope("a join", MemberBudget()),
    NamedMemberScope("two joins", MemberBudget(), GroupSize(is_a_there=False)),
    NamedMemberScope("a lost answer", MemberBudget(silent_answers=1), _QUICK),
    NamedMemberScope("a lost commit", MemberBudget(lost_commits=1)),
    NamedMemberScope("a fence", MemberBudget(expiries=1), _QUICK),
    NamedMemberScope("a fail-over", MemberBudget(failovers=1), _STAGED),
    NamedMemberScope("a close", MemberBudget(closes=1), _QUICK),
    NamedMemberScope("a poll overdue", MemberBudget(overdue_polls=1), _QUICK),
    NamedMemberScope("a silence", MemberBudget(silences=1), _QUICK),
    NamedMemberScope("a join, and releases apart", MemberBudget(), _APART),
    NamedMemberScope("a close, and releases apart", MemberBudget(closes=1), _APART),
)

LONG_SCOPES: Final = (
    NamedMemberScope(
        "a heartbeat that is overtaken", MemberBudget(silent_answers=1), GroupSize(records=0, is_disordered=True)
    ),
    NamedMemberScope("a lost answer, with records", MemberBudget(silent_answers=1)),
    NamedMemberScope("a fence, with records", MemberBudget(expiries=1)),
    NamedMemberScope("a lost answer and a fence", MemberBudget(silent_answers=1, expiries=1), _QUICK),
    NamedMemberScope("a lost answer and a fail-over", MemberBudget(silent_answers=1, failovers=1), _STAGED),
    NamedMemberScope("a fence and a fail-over", MemberBudget(expiries=1, failovers=1), _STAGED),
    NamedMemberScope("a close and a fence", MemberBudget(closes=1, expiries=1), _QUICK),
    NamedMemberScope("a close and a lost answer, and releases apart", MemberBudget(closes=1, silent_answers=1), _APART),
    NamedMemberScope(
        "a close and a fail-over, and releases apart",
        MemberBudget(closes=1, failovers=1),
        GroupSize(records=0, is_staged=True, is_apart=True),
    ),
)


def run_scope(number: int) -> None:
    """Search the first worlds of the scope of this number, the short ones first. Raises Breach."""
    named = (*SHORT_SCOPES, *LONG_SCOPES)[number]
    model = MemberScope(named.size)
    look_around(model, model.start(named.budget), max_states=30_000)
