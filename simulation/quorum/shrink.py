"""Runs of one seed of whole nodes, for `harness.shrink`."""

from collections.abc import Iterator
from dataclasses import replace

from simulation.harness.shrink import Simplify
from simulation.harness.turns import Turn
from simulation.quorum.cluster import QuorumCluster
from simulation.quorum.plan import QuorumPlan


class QuorumAttempts:
    """`harness.shrink.Attempts`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def begin(self, plan: QuorumPlan, only: frozenset[Turn] | None) -> QuorumCluster:
        return QuorumCluster(self.seed, plan, only)

    def simpler(self, plan: QuorumPlan) -> Iterator[Simplify[QuorumPlan]]:
        """Each gives a plan with one kind of fault less."""
        network = plan.network
        if network.loss:
            yield lambda plan: replace(plan, network=replace(plan.network, loss=0.0))
        if network.duplication:
            yield lambda plan: replace(plan, network=replace(plan.network, duplication=0.0))
        if network.slow:
            yield lambda plan: replace(plan, network=replace(plan.network, slow=0.0))
        if plan.damage:
            yield lambda plan: replace(plan, damage=0.0)
        if plan.observers:
            yield lambda plan: replace(plan, observers=0)
