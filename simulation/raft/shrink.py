"""Runs of one seed of a quorum, for `harness.shrink`."""

from collections.abc import Iterator
from dataclasses import replace

from simulation.harness.shrink import Simplify
from simulation.harness.turns import Turn
from simulation.raft.cluster import RaftCluster
from simulation.raft.plan import Plan


class RaftAttempts:
    """`harness.shrink.Attempts`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def begin(self, plan: Plan, only: frozenset[Turn] | None) -> RaftCluster:
        return RaftCluster(self.seed, plan, only=only)

    def simpler(self, plan: Plan) -> Iterator[Simplify[Plan]]:
        """Each gives a plan with one kind of fault less."""
        network = plan.network
        if network.loss:
            yield lambda plan: replace(plan, network=replace(plan.network, loss=0.0))
        if network.duplication:
            yield lambda plan: replace(plan, network=replace(plan.network, duplication=0.0))
        if network.slow:
            yield lambda plan: replace(plan, network=replace(plan.network, slow=0.0))
        if plan.times.damage:
            yield lambda plan: replace(plan, times=replace(plan.times, damage=0.0))
        if plan.crash_in_step:
            yield lambda plan: replace(plan, crash_in_step=0.0)
        if plan.observers:
            yield lambda plan: replace(plan, observers=0)
