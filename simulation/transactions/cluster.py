"""Brokers with coordinators, and clients with transactions, under faults: `docs/simulation.md`."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from simulation.harness.breach import Breach
from simulation.harness.cluster import CONVERGES
from simulation.harness.turns import Turn
from simulation.transactions.brokers import ORDERS, TransactionBrokers
from simulation.transactions.client import ScriptedClient
from simulation.transactions.laws import COPIES, STABLE
from simulation.transactions.nemesis import TransactionNemesis
from simulation.transactions.plan import TransactionPlan
from simulation.transactions.reader import CommittedReader
from simulation.transactions.script import Conversation, Script
from simulation.transactions.sink import Sink
from simulation.transactions.work import Copy, Instances, TransactionalId, Transfer, Work, stable_offset
from tailrace.coordinators.transactions.transaction import Transaction
from tailrace.model.partitions import TopicPartition

_LOOK_MS: Final = 500
_GENERATIONS: Final = (0, 2)
_STANDS_STILL_MS: Final = 35_000
"""A time of calm that is longer than the longest pause of the marker sender."""


class TransactionCluster(TransactionBrokers):
    """The brokers, the transactional ids with their instances, and a reader of each partition."""

    def __init__(self, seed: int, plan: TransactionPlan, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns of the nemesis that are taken before calm begins; None means every turn."""
        super().__init__(seed, plan)
        self.ids: list[Instances] = []
        self.nemesis = TransactionNemesis(self, self.ids, only)
        self.readers: list[CommittedReader] = []
        self._sources: dict[str, TopicPartition] = {}
        """By group, the partition that it copies."""
        self._stable: dict[tuple[str, TopicPartition], int] = {}
        self._before: list[int] = []
        """The committed transactions of each transactional id when calm began."""

    # The run

    def _start_clients(self) -> None:
        super()._start_clients()
        plan = self.plan
        works: list[tuple[str, Callable[[ScriptedClient], Work]]] = [
            (f"transfer-{number}", Transfer) for number in range(plan.transfers)
        ]
        for number in range(plan.copies):
            source, group_id = TopicPartition(ORDERS, number % plan.partitions), f"copies-{number}"
            self._sources[group_id] = source
            works.append((f"copy-{number}", partial(Copy, source, group_id)))
        old_first = self.world.chance(0.5, "generation", "first")
        for number, (name, work_of) in enumerate(works):
            generations = _GENERATIONS if (number % 2 == 0) is old_first else _GENERATIONS[::-1]
            self.ids.append(TransactionalId(self, name, work_of, generations=generations))
        if plan.is_old:
            for number, instances in enumerate((self.ids[0], self.ids[-1])):
                self.age(instances.name, number)
        self.ids += [Sink(self, f"sink-{number}") for number in range(plan.sinks)]
        for instances in self.ids:
            instances.start()
        self.readers = [CommittedReader(self, name) for name in self.names() if name.topic in (ORDERS, COPIES)]
        for reader in self.readers:
            Conversation(self, f"reader of {reader.name}", reader.run(), lambda: None).start()

    def _pass_chaos(self) -> None:
        world, plan = self.world, self.plan
        began_ms = world.now_ms
        is_over = False
        while not is_over:
            world.run(until_ms=world.now_ms + _LOOK_MS)
            passed_ms, counts = world.now_ms - began_ms, self.counts
            is_enough = counts and plan.enough_commits is not None and self._commits >= plan.enough_commits
            is_late = passed_ms >= plan.chaos_ms and (counts or passed_ms >= plan.longest_chaos_ms)
            is_over = is_enough or is_late

    @property
    def _commits(self) -> int:
        """The number of committed transactions and batches."""
        return sum(instances.committed for instances in self.ids)

    def _calm(self) -> None:
        super()._calm()
        self._before = [instances.committed for instances in self.ids]
        self.world.after(_STANDS_STILL_MS, partial(self._check_moved, dict(self.laws.ledger.states)))

    def _converge(self) -> None:
        try:
            super()._converge()
        except Breach as breach:
            unstable = [told for name in self.names() if (told := self.unstable(name)) is not None]
            if breach.law == CONVERGES and (unstable or self.laws.ledger.unfinished):
                raise Breach(STABLE, f"{unstable}, {self.laws.ledger.unfinished}; {self.describe()}") from None
            raise

    def _check_moved(self, before: Mapping[str, Transaction]) -> None:
        """Check that each open transaction has changed since calm began: a run that stands still need not go on to its
        end."""
        still = [name for name in self.laws.ledger.unfinished if self.laws.ledger.states[name] is before.get(name)]
        if still:
            raise Breach(STABLE, f"{still} for {_STANDS_STILL_MS} ms; {self.describe()}")

    def _is_in_sync(self) -> bool:
        """Whether all copies are in sync, and each transactional id has committed since calm began."""
        if any(instances.committed == known for instances, known in zip(self.ids, self._before, strict=True)):
            return False
        self.is_working = not self.has_all_in_sync()
        return not self.is_working

    def _is_at_rest(self) -> bool:
        """Whether the brokers are at rest, no client is at work, no transaction is open, and every record is read."""
        if (
            any(instances.processes for instances in self.ids)
            or self.laws.ledger.unfinished
            or not super()._is_at_rest()
        ):
            return False
        return all(self.unstable(name) is None for name in self.names()) and all(
            {reader.offset} == set(self._ends(reader.name)) for reader in self.readers
        )

    def _check_end(self) -> None:
        for name in self.names():
            self._content(name)
        Conversation(self, "auditor", self._audit(), lambda: None).start()
        is_read = self.world.run(
            until_ms=self.world.now_ms + 10_000, stop=lambda: len(self._stable) == len(self._sources)
        )
        assert is_read, f"of the offsets of all groups only {self._stable} were answered"
        self.laws.check_end(self._stable)
        self.laws.check_copies(self._sources)
        for reader in self.readers:
            reader.check()

    def _audit(self) -> Script[None]:
        """Request the offsets of all groups, for the check at the end."""
        for group_id, source in self._sources.items():
            self._stable[group_id, source] = yield from stable_offset(self, group_id, source)

    # The measure of a run

    @property
    def counts(self) -> bool:
        """Whether the run was eventful enough to be counted."""
        committed = [len(list(self.book.answered(is_commit=True, generation=generation))) for generation in (0, 2)]
        aborted = len(list(self.book.answered(is_commit=False)))
        is_large = min(committed) >= 4 and self.batches >= 3 and sum(committed) + self.batches >= 20 and aborted >= 5
        return is_large and self.moves >= 1 and super().counts

    @property
    def batches(self) -> int:
        """The number of acknowledged batches of sinks."""
        return sum(instances.committed for instances in self.ids if isinstance(instances, Sink))

    def describe(self) -> str:
        """The state of all nodes and transactional ids, for a failure's message."""
        states = "\n".join(
            f"{name}: {state.state.name} of {state.producer_id} in {state.producer_epoch}, {sorted(state.partitions)}"
            for name, state in sorted(self.laws.ledger.states.items())
        )
        alive = ", ".join(instance.name for instances in self.ids for instance in instances.processes)
        return f"{super().describe()}\nalive: {alive}\n{states}"


def run_seed(seed: int) -> TransactionCluster:
    """Run one seed. Raises Breach."""
    cluster = TransactionCluster(seed, TransactionPlan.of(seed))
    cluster.run()
    return cluster
