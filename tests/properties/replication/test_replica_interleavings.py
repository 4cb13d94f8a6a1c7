"""Any interleaving of appends, fetches, flushes, crashes and changes of leader keeps what was committed.

The worlds are those of the exhaustive search, with more of everything than it could get through; the laws are looked
at after each step. Hypothesis shrinks a failure to the shortest way to a breach.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.replicas.scope import ReplicaBudget, ReplicaScope, ReplicaWorld

BUDGET = ReplicaBudget(writes=12, crashes=4, shrinks=4, alarms=4, copies=4)


def led_to(choices: list[int], budget: ReplicaBudget = BUDGET) -> ReplicaWorld:
    """The world after these choices out of what can happen."""
    scope = ReplicaScope()
    world = scope.start(budget)
    for choice in choices:
        actions = scope.actions(world)
        if actions:
            world = scope.take(world, actions[choice % len(actions)])
    return world


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2**16), min_size=20, max_size=200))
def test_committed_records_are_never_lost_or_changed(choices: list[int]) -> None:
    led_to(choices)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**16), min_size=20, max_size=120))
def test_when_faults_end_all_copies_become_the_same(choices: list[int]) -> None:
    world = led_to(choices)._replace(budget=ReplicaBudget())
    scope = ReplicaScope()
    for step in range(400):
        actions = scope.actions(world)
        if not actions:
            break
        # Fair: everything that can happen happens in turn.
        world = scope.take(world, actions[step % len(actions)])
    state = world.agreed.state
    assert state.leader > 0
    assert set(state.in_sync_replicas) == {1, 2, 3}
    assert len({copy.log for copy in world.copies}) == 1
    assert {copy.high_watermark for copy in world.copies} == {len(world.committed)}
