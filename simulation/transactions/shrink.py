"""Runs of one seed with transactions, for `harness.shrink`."""

from collections.abc import Iterator
from dataclasses import replace

from simulation.harness.shrink import Simplify
from simulation.harness.turns import Turn
from simulation.transactions.cluster import TransactionCluster
from simulation.transactions.plan import TransactionPlan


class TransactionAttempts:
    """`harness.shrink.Attempts`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def begin(self, plan: TransactionPlan, only: frozenset[Turn] | None) -> TransactionCluster:
        return TransactionCluster(self.seed, plan, only)

    def simpler(self, plan: TransactionPlan) -> Iterator[Simplify[TransactionPlan]]:
        """Each gives a plan with one kind of fault, or of client, less."""
        network = plan.network
        if network.loss:
            yield lambda plan: replace(plan, network=replace(plan.network, loss=0.0))
        if network.duplication:
            yield lambda plan: replace(plan, network=replace(plan.network, duplication=0.0))
        if network.slow:
            yield lambda plan: replace(plan, network=replace(plan.network, slow=0.0))
        if plan.late:
            yield lambda plan: replace(plan, late=0.0)
        if plan.copies:
            yield lambda plan: replace(plan, copies=0)
        if plan.sinks:
            yield lambda plan: replace(plan, sinks=0)
        if plan.transfers > 1:
            yield lambda plan: replace(plan, transfers=1)
