"""Every order in which a few things can happen to a partition with three copies: no order breaks a law."""

import pytest

from simulation.harness.small_scope import Explored, ScopeBreach, explore
from simulation.replicas import scope as replica_scope
from simulation.replicas.scope import ReplicaAction, ReplicaBudget, ReplicaScope, ReplicaWorld
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import PartitionState
from tailrace.replication.leadership import AfterAnswer, Horizon, InSyncProposal, Leadership
from tailrace.replication.replica_progress import ReplicaProgress


def search(budget: ReplicaBudget) -> Explored:
    scope = ReplicaScope()
    found = explore(scope, scope.start(budget), max_states=100_000)
    print(f"{budget}: {found.summary()}")  # noqa: T201
    return found


@pytest.mark.parametrize(
    ("budget", "reached"),
    [
        (ReplicaBudget(writes=2), {"2 committed"}),
        (ReplicaBudget(writes=1, crashes=1), {"1 committed", "a new leader", "a log diverges", "a replica joins"}),
        (ReplicaBudget(writes=1, shrinks=1), {"a replica leaves", "a replica joins", "an eligible leader"}),
        (ReplicaBudget(writes=1, alarms=1), {"a new leader", "an answer comes too late"}),
    ],
    ids=lambda value: (
        str(value) if isinstance(value, ReplicaBudget) else "-".join(sorted(value))
    ),  # the same in each worker
)
def test_every_order_of_a_few_things(budget: ReplicaBudget, reached: set[str]) -> None:
    found = search(budget)
    assert found.is_complete
    assert reached <= found.sometimes


def test_a_replica_that_joins_below_the_high_watermark_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def can_join(self: Leadership, progress: ReplicaProgress, horizon: Horizon) -> bool:
        return True

    monkeypatch.setattr(Leadership, "_can_join", can_join)
    with pytest.raises(ScopeBreach, match="lacks"):
        search(ReplicaBudget(writes=1, shrinks=1))


def test_a_high_watermark_that_forgets_proposed_replicas_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def note_maximal(self: Leadership) -> None:
        self._maximal = frozenset(self.state.in_sync_replicas)
        for progress in self.replicas.values():
            progress.may_join = False  # no replica is about to join, either

    monkeypatch.setattr(Leadership, "_note_maximal", note_maximal)
    with pytest.raises(ScopeBreach):
        search(ReplicaBudget(writes=2, shrinks=1))


REFUSED = """
    false alarm 3, unfence 3, learn 1, fetch 3, false alarm 3, alter 1, learn 1,
    write 1, flush 1, fetch 2, hear 2, flush 2, fetch 2
"""
"""Replica 3 is proposed and refused, since it is fenced, and lacks what is written then."""


def test_a_replica_that_was_refused_is_waited_for_while_a_copy_of_the_proposal_may_come() -> None:
    scope = ReplicaScope()
    world = told(scope, scope.start(ReplicaBudget(writes=1, alarms=2, copies=1)), REFUSED)
    assert world.committed == ()
    assert told(scope, world, "unfence 3, late copy 1").agreed.state.in_sync_replicas == (1, 2, 3)
    world = told(scope, world, "alter 1, learn 1")
    assert len(world.committed) == 1, "nothing is waited for any more"
    world = told(scope, world, "unfence 3")
    assert "late copy 1" not in map(scope.name, scope.actions(world))


def test_a_refused_proposal_that_is_forgotten_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    on_response = Leadership.on_response

    def forgetful(self: Leadership, proposal: InSyncProposal, outcome: PartitionState | KafkaError) -> AfterAnswer:
        next_step = on_response(self, proposal, outcome)
        if self.doubted:
            self.resume(None)
            return AfterAnswer.NOTHING
        return next_step

    monkeypatch.setattr(Leadership, "on_response", forgetful)
    scope = ReplicaScope()
    world = told(scope, scope.start(ReplicaBudget(writes=1, alarms=2, copies=1)), REFUSED)
    with pytest.raises(AssertionError, match="may lead, and lacks"):
        told(scope, world, "unfence 3, late copy 1")


def test_a_leader_that_counts_what_it_has_not_flushed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    safe_end_offset = Leadership.safe_end_offset

    def hasty(self: Leadership, own_end_offset: int, *, log_end_offset: int, now_ms: int, lag_ms: int) -> int:
        return safe_end_offset(self, log_end_offset, log_end_offset=log_end_offset, now_ms=now_ms, lag_ms=lag_ms)

    monkeypatch.setattr(Leadership, "safe_end_offset", hasty)
    with pytest.raises(ScopeBreach):
        search(ReplicaBudget(writes=1))


def test_a_leader_that_comes_back_in_the_same_epoch_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader may have lost records that other replicas have from it, and write something else at the same offsets
    in the same epoch."""
    monkeypatch.setattr(replica_scope, "registered", lambda world, broker: world)
    steps = """
        fetch 3, fetch 2, write 1, fetch 3, hear 3, flush 3, fetch 3, fetch 2, hear 2, flush 2, fetch 2,
        crash 1, return 1, fetch 3, hear 3, fetch 3, write 1, fetch 3, hear 3, flush 3, fetch 3, fetch 2, flush 1
    """
    scope = ReplicaScope()
    world = told(scope, scope.start(ReplicaBudget(writes=2, crashes=1)), steps.rpartition(",")[0])
    with pytest.raises(AssertionError, match="may lead, and lacks"):
        told(scope, world, "flush 1")


def told(scope: ReplicaScope, world: ReplicaWorld, steps: str) -> ReplicaWorld:
    """The world after these steps."""
    for step in steps.split(","):
        world = scope.take(world, _named(scope, world, step.strip()))
    return world


def _named(scope: ReplicaScope, world: ReplicaWorld, name: str) -> ReplicaAction:
    return next(action for action in scope.actions(world) if scope.name(action) == name)
