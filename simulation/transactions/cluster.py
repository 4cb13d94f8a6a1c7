"""Brokers with coordinators, and clients with transactions, under faults: `docs/simulation.md`."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from simulation.harness.breach import Breach
from simulation.harness.turns import Turn
from simulation.replicas.cluster import CONVERGES, ReplicaCluster
from simulation.replicas.laws import ReplicaLaws
from simulation.replicas.node import ReplicaNode
from simulation.transactions.book import Book
from simulation.transactions.client import TransactionalClient, partition_for
from simulation.transactions.laws import COPIES, STABLE, TransactionLaws
from simulation.transactions.nemesis import TransactionNemesis
from simulation.transactions.node import TransactionNode
from simulation.transactions.plan import TransactionPlan
from simulation.transactions.reader import CommittedReader
from simulation.transactions.script import Conversation, Script
from simulation.transactions.sink import Sink
from simulation.transactions.work import ORDERS, Copy, Instances, TransactionalId, Transfer, Work, stable_offset
from tailrace.coordinators.transactions.records import TransactionRecord
from tailrace.coordinators.transactions.transaction import LAST_EPOCH, Transaction
from tailrace.metadata.commands import TopicsCreated, TopicSpec
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tailrace.server.transactions.host import TransactionCoordinatorHost
from testkit.controller_commands import create_topics

_LOOK_MS: Final = 500
_GENERATIONS: Final = (0, 2)
_STANDS_STILL_MS: Final = 35_000
"""Of calm, more than the patience of the marker sender."""
_OLD_PRODUCER_ID: Final = 1_000_000
"""The first of those that were given away long ago."""
_COORDINATED: Final = 2
"""The partitions of each topic of coordinators."""


class TransactionCluster(ReplicaCluster):
    """Three brokers, the transactional ids with their instances, and a reader of each partition."""

    _node_type = TransactionNode
    plan: TransactionPlan
    laws: TransactionLaws

    def __init__(self, seed: int, plan: TransactionPlan, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns of the nemesis that are taken before calm begins; None means all."""
        self.book = Book()
        super().__init__(seed, plan)
        for node in self.nodes.values():
            assert isinstance(node, TransactionNode)
            node.late = plan.late
            node.on_markers = self.laws.markers_leave
        self.nemesis = TransactionNemesis(self, only)
        self.ids: list[Instances] = []
        self.readers: list[CommittedReader] = []
        self.is_working = self.is_reading = True
        self._sources: dict[str, TopicPartition] = {}
        """By group, the partition that it copies."""
        self._stable: dict[tuple[str, TopicPartition], int] = {}
        self._before: list[int] = []
        """The committed transactions of each transactional id when calm began."""

    def _make_laws(self) -> ReplicaLaws:
        plan = self.plan
        return TransactionLaws(
            self.book,
            min_in_sync=plan.min_in_sync,
            is_flushed=plan.is_flushed,
            lag_ms=plan.lag_ms,
            sometimes=self.world.sometimes,
        )

    @property
    def late(self) -> float:
        """The rate of requests that come again late: none in calm."""
        return self.plan.late if self.nemesis.is_chaos else 0.0

    def names(self) -> list[TopicPartition]:
        """All partitions."""
        return self._names()

    def revive(self, node: ReplicaNode) -> None:
        """Start it again, if it is down."""
        self._revive(node)

    # The run

    def _create(self) -> None:
        plan = self.plan
        sizes = {
            ORDERS: plan.partitions,
            COPIES: plan.partitions,
            TRANSACTION_STATE_TOPIC: _COORDINATED,
            GROUP_OFFSETS_TOPIC: _COORDINATED,
        }
        configs = (("min.insync.replicas", str(plan.min_in_sync)),)
        for name, size in sizes.items():
            answer = self.metadata.decide(
                create_topics(TopicSpec(name=name, num_partitions=size, replication_factor=3, configs=configs))
            )
            assert isinstance(answer, TopicsCreated), answer

    def _start_all(self) -> None:
        plan = self.plan
        works: list[tuple[str, Callable[[TransactionalClient], Work]]] = [
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
            for number, one in enumerate((self.ids[0], self.ids[-1])):
                self._age(one.name, number)
        self.ids += [Sink(self, f"sink-{number}") for number in range(plan.sinks)]
        for one in self.ids:
            one.start()
        self.readers = [CommittedReader(self, name) for name in self._names() if name.topic in (ORDERS, COPIES)]
        for reader in self.readers:
            Conversation(self, f"reader of {reader.name}", reader.run(), lambda: None).start()
        self.nemesis.start()
        self._repeat("repairs", 1.0, self._revive_all, in_calm=True)

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
        """Of transactions and batches."""
        return sum(one.committed for one in self.ids)

    def _age(self, transactional_id: str, number: int) -> None:
        """Its coordinator has the state as it is after almost 32,766 transactions."""
        name = partition_for(self, TRANSACTION_STATE_TOPIC, transactional_id)

        def host() -> TransactionCoordinatorHost | None:
            leader = self._leader_at(name)
            try:
                return None if leader is None else leader.broker.coordination.transactions.host_of(transactional_id)
            except KafkaError:
                return None

        self.world.run(until_ms=self.world.now_ms + 30_000, stop=lambda: host() is not None)
        found, leader = host(), self._leader_at(name)
        assert found is not None, f"no coordinator for {transactional_id}"
        assert leader is not None
        old = Transaction(
            producer_id=_OLD_PRODUCER_ID + number,
            producer_epoch=LAST_EPOCH - self.world.between(2, 8, "old epoch", transactional_id),
            timeout_ms=self.plan.transaction_timeout_ms,
            updated_at_ms=leader.clock.now_ms(),
        )
        record = TransactionRecord(transactional_id=transactional_id, transaction=old)
        leader.do(lambda: found._append((record,), lambda failure: None))

    def _leader_at(self, name: TopicPartition) -> ReplicaNode | None:
        state = self.metadata.image.partition(*name)
        node = None if state is None else self.nodes.get(state.leader)
        return node if node is not None and node.is_up else None

    def _converge(self) -> None:
        self.nemesis.stop()
        for node in self.nodes.values():
            assert isinstance(node, TransactionNode)
            node.late = 0.0
            if node.is_up:
                node.clock.wall_error_ms = 0
        self._before = [one.committed for one in self.ids]
        self.world.after(_STANDS_STILL_MS, partial(self._check_moved, dict(self.laws.ledger.states)))
        try:
            super()._converge()
        except Breach as breach:
            unstable = [told for name in self._names() if (told := self._unstable(name)) is not None]
            if breach.law == CONVERGES and (unstable or self.laws.ledger.unfinished):
                raise Breach(STABLE, f"{unstable}, {self.laws.ledger.unfinished}; {self.describe()}") from None
            raise

    def _check_moved(self, before: Mapping[str, Transaction]) -> None:
        """Nothing is as open as it was when calm began: a run that stands still need not go on to its end."""
        still = [name for name in self.laws.ledger.unfinished if self.laws.ledger.states[name] is before.get(name)]
        if still:
            raise Breach(STABLE, f"{still} for {_STANDS_STILL_MS} ms; {self.describe()}")

    def _is_in_sync(self, before: int) -> bool:
        """Everything in sync, and each transactional id has committed since calm began."""
        if any(one.committed == known for one, known in zip(self.ids, self._before, strict=True)):
            return False
        self.is_working = not self._has_all_in_sync()
        return not self.is_working

    def _is_at_rest(self) -> bool:
        """Also: no client is at work, nothing is open, and all is read."""
        if any(one.processes for one in self.ids) or self.laws.ledger.unfinished or not super()._is_at_rest():
            return False
        return all(self._unstable(name) is None for name in self._names()) and all(
            {reader.offset} == set(self._ends(reader.name)) for reader in self.readers
        )

    def _unstable(self, name: TopicPartition) -> str | None:
        """A leader whose last stable offset is not its end."""
        node = self._leader_at(name)
        partition = None if node is None else node.table.find(*name)
        if partition is None or partition.last_stable_offset == partition.log.log_end_offset:
            return None
        return f"{name}: {partition.last_stable_offset} of {partition.log.log_end_offset}"

    def _check_end(self) -> None:
        for name in self._names():
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
        """Ask for the offsets of all groups."""
        for group_id, source in self._sources.items():
            self._stable[group_id, source] = yield from stable_offset(self, group_id, source)

    # The measure of a run

    @property
    def moves(self) -> int:
        """Leaderships of coordinators beyond the first of each partition."""
        coordinated = (TRANSACTION_STATE_TOPIC, GROUP_OFFSETS_TOPIC)
        led = {(name, epoch) for name, epoch, _ in self.laws.leaders if name.topic in coordinated}
        return len(led) - _COORDINATED * len(coordinated)

    @property
    def faults(self) -> set[str]:
        """The kinds of fault that this run has had."""
        network, sometimes = self.network.counts, self.world.sometimes
        kinds = {
            "loss": network["lost"],
            "duplication": network["duplicated"],
            "delay": network["delayed"],
            "broker killed": sometimes["broker killed"],
            "power cut": sometimes["power of a broker cut"] + sometimes["power cut within a step"],
            "blackout": sometimes["blackout"],
            "false alarm": sometimes["false alarm"],
            "clock jump": sometimes["clock jumped"],
            "rival": sometimes["several instances"],
            "client killed": sometimes["client killed"],
            "late request": sum(count for state, count in sometimes.items() if state.endswith("again late")),
            "partition": sum(count for state, count in sometimes.items() if state.startswith("partition: ")),
        }
        return {kind for kind, count in kinds.items() if count}

    @property
    def counts(self) -> bool:
        """Whether the run was eventful enough to be counted."""
        committed = [len(list(self.book.answered(is_commit=True, generation=one))) for one in (0, 2)]
        aborted = len(list(self.book.answered(is_commit=False)))
        is_large = min(committed) >= 4 and self.batches >= 3 and sum(committed) + self.batches >= 20 and aborted >= 5
        return is_large and len(self.faults) >= 3 and self.moves >= 1

    @property
    def batches(self) -> int:
        """Of sinks, that were acknowledged."""
        return sum(one.committed for one in self.ids if isinstance(one, Sink))

    def describe(self) -> str:
        """The state of all nodes and transactional ids, for a failure's message."""
        states = "\n".join(
            f"{name}: {state.state.name} of {state.producer_id} in {state.producer_epoch}, {sorted(state.partitions)}"
            for name, state in sorted(self.laws.ledger.states.items())
        )
        alive = ", ".join(instance.name for one in self.ids for instance in one.processes)
        return f"{super().describe()}\n{len(self.book.transactions)} transactions, alive: {alive}\n{states}"


def run_seed(seed: int) -> TransactionCluster:
    """One run. Raises Breach."""
    cluster = TransactionCluster(seed, TransactionPlan.of(seed))
    cluster.run()
    return cluster
