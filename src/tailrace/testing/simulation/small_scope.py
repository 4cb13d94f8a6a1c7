"""Exhaustive search of small worlds: every order in which a few things can happen to a few nodes.

A world is an immutable value. Worlds that have been seen are not looked at again. Of two actions that do not concern
each other only one order is tried, since both lead to the same world (sleep sets: Godefroid, "Partial-Order Methods for
the Verification of Concurrent Systems", 1996, with the rule for worlds that are met again). When the search ends
without a breach there is none within that scope.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

W = TypeVar("W")


class Action(NamedTuple):
    """Something that may happen to one node. Equal actions do the same as long as nothing else happens to that node."""

    node: int
    kind: str
    detail: Hashable = None
    is_rationed: bool = False
    """Whether a common budget for its kind is spent, so that two of a kind concern each other."""

    def concerns(self, other: "Action") -> bool:
        """Whether it matters which of the two happens first."""
        return self.node == other.node or (self.is_rationed and other.is_rationed and self.kind == other.kind)


class ScopeBreach(AssertionError):
    """An invariant does not hold, and the actions that lead there."""

    def __init__(self, detail: str, actions: list[str]) -> None:
        super().__init__("\n  ".join([detail, *actions]))
        self.actions = actions


@dataclass(slots=True)
class Explored:
    """What a search has seen."""

    states: int = 0
    transitions: int = 0
    deepest: int = 0
    is_complete: bool = False
    """Whether every state within the scope was visited."""
    sometimes: set[str] = field(default_factory=set)
    """What was reached somewhere."""


@dataclass(frozen=True, slots=True)
class Model(Generic[W]):
    """The worlds to search. Laws must look at states, not at the order in which these came about."""

    actions: Callable[[W], Sequence[Action]]
    """What can happen next."""
    take: Callable[[W, Action], W]
    """The world that it leads to. Raises AssertionError at a breach of a law."""
    fingerprint: Callable[[W], Hashable]
    """Equal for worlds that nothing can tell apart."""
    marks: Callable[[W], Iterable[str]] = lambda _: ()
    """What is worth telling that it was reached."""
    name: Callable[[Action], str] = str


Sleeping = frozenset[Action]


@dataclass(slots=True)
class _Visit(Generic[W]):
    """A world on the way down, with what is still to be tried there."""

    world: W
    to_do: list[Action]
    sleeping: Sleeping
    """What need not be tried any more: it was, before something that does not concern it."""


def explore(model: Model[W], start: W, *, max_states: int) -> Explored:
    """Visit every world that can be reached, depth first. Raises ScopeBreach with the way to the first breach."""
    found = Explored(states=1)
    seen: dict[Hashable, Sleeping] = {model.fingerprint(start): frozenset()}
    stack = [_Visit(start, list(model.actions(start)), frozenset())]
    trail: list[str] = []
    while stack:
        visit = stack[-1]
        if not visit.to_do:
            stack.pop()
            del trail[len(stack) - 1 :]
            continue
        action = visit.to_do.pop()
        sleeping = frozenset(one for one in visit.sleeping if not one.concerns(action))
        visit.sleeping |= {action}
        del trail[len(stack) - 1 :]
        trail.append(model.name(action))
        world = _take(model, visit.world, action, trail)
        found.transitions += 1
        to_do, sleeping = _to_do(model, world, sleeping, seen, found)
        if found.states >= max_states:
            return found
        if to_do:
            stack.append(_Visit(world, to_do, sleeping))
            found.deepest = max(found.deepest, len(trail))
    found.is_complete = True
    return found


def _to_do(
    model: Model[W], world: W, sleeping: Sleeping, seen: dict[Hashable, Sleeping], found: Explored
) -> tuple[list[Action], Sleeping]:
    """What must be tried in this world that was not tried when it was met before."""
    mark = model.fingerprint(world)
    slept = seen.get(mark)
    if slept is None:
        found.states += 1
        found.sometimes.update(model.marks(world))
        seen[mark] = sleeping
        return [one for one in model.actions(world) if one not in sleeping], sleeping
    missed = slept - sleeping
    if not missed:
        return [], sleeping
    seen[mark] = slept & sleeping
    possible = model.actions(world)
    return [one for one in possible if one in missed], sleeping | frozenset(possible) - missed


def _take(model: Model[W], world: W, action: Action, trail: list[str]) -> W:
    try:
        return model.take(world, action)
    except AssertionError as error:
        raise ScopeBreach(f"{type(error).__name__}: {error}", list(trail)) from error
