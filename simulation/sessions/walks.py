"""Long walks through the worlds of `sessions.scope`, by a seed: with more events than an exhaustive search can have."""

from collections import Counter

from simulation.harness.world import World
from simulation.sessions.parts import SessionBudget, SessionKind
from simulation.sessions.scope import SessionAction, SessionScope

STEPS = 150
CONVERGE_EVERY = 8
_RARE = frozenset(
    (
        "give up early",
        "lose request",
        "lose answer",
        "duplicate",
        "restart broker",
        "restart reader",
        "close",
        "break",
        "hold back",
        "steal",
        "grow old",
    )
)
"""The events that are faults: one step out of four may be a fault."""


def run_seed(seed: int) -> Counter[str]:
    """Walk by this seed; returns the states that were reached. Raises Breach."""
    chance = World(seed)
    kind = SessionKind(
        readers=chance.choice((1, 1, 2), "swarm", "readers"),
        partitions=chance.choice((1, 2, 3), "swarm", "partitions"),
        is_follower=chance.chance(0.5, "swarm", "follower"),
        version=chance.choice((15, 17, 18), "swarm", "version"),
        slots=chance.choice((1, 10), "swarm", "slots"),
        max_bytes=chance.choice((10, 15, 1 << 20), "swarm", "bytes"),
        max_partitions=chance.choice((None, None, 1), "swarm", "slices"),
    )
    budget = SessionBudget(*(chance.choice((0, 2, 6), "swarm", name) for name in SessionBudget._fields))
    scope = SessionScope(kind, converge_every=CONVERGE_EVERY)
    world = scope.start(budget._replace(appends=10))
    for step in range(STEPS):
        actions = scope.actions(world)
        rare = [action for action in actions if action.kind in _RARE]
        usual = [action for action in actions if action.kind not in _RARE]
        options: list[SessionAction] = rare if rare and chance.chance(0.25, "fault", step) else usual
        world = scope.take(world, chance.choice(options or rare, "step", step))
    return Counter(scope.sometimes)
