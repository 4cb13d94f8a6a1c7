"""Transactions of several producers on one node, in any order, with power cuts and a network that repeats markers.

Laws, after every step:
1. A reader of committed data sees every transaction in all partitions it wrote to, once, or in none.
2. A transaction acknowledged as committed is there once nothing is open before it; an aborted or fenced one never is.
3. A group's offset is that of the last committed transaction that set it.
4. The state of a coordinator equals the one it reads again after a restart.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tailrace.coordinators.transactions.records import TransactionRecord, decode_record, encode_record
from tailrace.coordinators.transactions.transaction import Transaction
from tailrace.model.errors import ErrorCode
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.transaction_path import MarkerCopies, TransactionalClient, TransactionPath
from testkit.nodes.ports import HoldingDisk

E = ErrorCode
TOPICS = ("orders", "bills")
IDS = {"pay": 0, "ship": 2}
"""Transactional ids, with the transaction.version of their producers."""
SETTINGS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "1"}
names = st.sampled_from(sorted(IDS))


@dataclass
class Open:
    """The model of a producer's transaction."""

    number: int
    topics: set[str] = field(default_factory=set)
    offset: int | None = None


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = SimulatedDisk(seed=1)
        self.starts = 0
        self.numbers = 0
        self.written: dict[int, set[str]] = {}
        """By transaction: the topics it wrote to."""
        self.committed: set[int] = set()
        self.unknown: set[int] = set()
        """Transactions whose end the producer does not know."""
        self.open: dict[str, Open | None] = {}
        self.clients: dict[str, TransactionalClient] = {}
        self.offset = -1
        self.offsets_unknown: set[int] = set()
        self.node: TransactionPath
        self._start()

    def _start(self) -> None:
        self.starts += 1
        clock = ManualClock() if self.starts == 1 else self.node.clock
        self.disk = HoldingDisk(clock.call_soon)
        self.node = TransactionPath(
            "/data", files=self.files, clock=clock, disk=self.disk, settings=SETTINGS, start=self.starts
        )
        if self.starts == 1:
            self.copies = MarkerCopies(self.node)
        else:
            self.copies.attach(self.node)
        for client in self.clients.values():
            client.node = self.node

    @initialize()
    def begin(self) -> None:
        self.node.create_topics(*TOPICS)
        assert self.node.find_coordinator("g") is E.NONE
        for name, version in IDS.items():
            self.clients[name] = TransactionalClient(self.node, name, version=version)
            assert self.clients[name].initialize() is E.NONE
            self.open[name] = None

    @rule(name=names, topic=st.sampled_from(TOPICS), repeats=st.booleans())
    def write(self, name: str, topic: str, repeats: bool) -> None:
        """`repeats`: the network brings all markers of before once more."""
        client, transaction = self.clients[name], self._transaction(name)
        if client.version < 2:
            assert client.add(topic) is E.NONE
        assert client.send(topic, str(transaction.number).encode()) is E.NONE
        transaction.topics.add(topic)
        self.written[transaction.number] = transaction.topics
        if repeats:
            self.copies.send_again()

    @rule(name=names)
    def commit_offset(self, name: str) -> None:
        client, transaction = self.clients[name], self._transaction(name)
        if any(other is not None and other.offset is not None for other in self.open.values()):
            return  # a single open offset: which of two counts is for another test
        if client.version < 2:
            assert client.add_offsets("g") is E.NONE
        assert client.commit_offset("g", "orders", transaction.number) is E.NONE
        transaction.offset = transaction.number
        assert self.node.stable_offset("g", "orders") is E.UNSTABLE_OFFSET_COMMIT

    def _transaction(self, name: str) -> Open:
        found = self.open[name]
        if found is None:
            self.numbers += 1
            found = self.open[name] = Open(self.numbers)
            self.written[found.number] = found.topics
        return found

    @rule(name=names, is_commit=st.booleans())
    def end(self, name: str, is_commit: bool) -> None:
        transaction, self.open[name] = self.open[name], None
        if transaction is None:
            return
        code = self.clients[name].end(is_commit=is_commit)
        if not transaction.topics and transaction.offset is None:
            return
        assert code is E.NONE
        if is_commit:
            self._has_committed(transaction)

    def _has_committed(self, transaction: Open) -> None:
        self.committed.add(transaction.number)
        if transaction.offset is not None:
            self.offset = transaction.offset
            self.offsets_unknown.clear()

    @rule(name=names, topic=st.sampled_from(TOPICS), ends=st.lists(st.booleans(), min_size=2, max_size=4))
    def some_transactions(self, name: str, topic: str, ends: list[bool]) -> None:
        """Transactions in turn, while the network repeats markers. The steps are rules too, but seldom in a row."""
        for is_commit in ends:
            self.write(name, topic, repeats=True)
            self.nothing_is_half()
            self.end(name, is_commit)

    @rule(name=names)
    def next_instance(self, name: str) -> None:
        self.open[name] = None
        before = self.clients[name]
        self.clients[name] = TransactionalClient(self.node, name, version=before.version)
        assert self.clients[name].initialize() is E.NONE
        assert before.add("orders") in (E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING)

    @rule()
    def time_out(self) -> None:
        self.node.clock.advance(75_000)
        for name, transaction in self.open.items():
            if transaction is not None and (transaction.topics or transaction.offset is not None):
                code = self.clients[name].ask_for_end(is_commit=True).response.error_code
                assert code == E.PRODUCER_FENCED
        for name in IDS:
            self.next_instance(name)

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        before = self._known()
        if is_clean:
            self.node.stop()
        else:
            self.files.power_cut()
            self.files.reboot()
        self._start()
        assert self._known() == before

    @rule(name=names, is_commit=st.booleans(), flushes=st.integers(0, 4))
    def power_cut_while_it_ends(self, name: str, is_commit: bool, flushes: int) -> None:
        transaction = self.open[name]
        if transaction is None or not (transaction.topics or transaction.offset is not None):
            return
        self.disk.holds = True
        ending = self.clients[name].ask_for_end(is_commit=is_commit)
        for _ in range(flushes):
            self.disk.run()
            self.node.end_turn()
        if ending.is_answered:
            assert ending.response.error_code == E.NONE
            if is_commit:
                self._has_committed(transaction)
        elif is_commit:
            self.unknown.add(transaction.number)
            if transaction.offset is not None:
                self.offsets_unknown.add(transaction.offset)
        self.files.power_cut()
        self.files.reboot()
        self._start()
        self.next_instance(name)

    def _known(self) -> dict[str, Transaction]:
        return {
            name: transaction
            for host in self.node.transactions.active_hosts()
            for name, transaction in host.machine.transactions.items()
        }

    @invariant()
    def what_is_known_can_be_written_down(self) -> None:
        for name, transaction in self._known().items() if self.clients else ():
            record = TransactionRecord(transactional_id=name, transaction=transaction)
            assert decode_record(*encode_record(record)) == record

    @invariant()
    def nothing_is_half(self) -> None:
        if not self.clients:
            return
        seen = {topic: [int(value or b"") for value in self.node.committed_values(topic)] for topic in TOPICS}
        numbers = set().union(*seen.values())
        assert numbers <= self.committed | self.unknown
        is_open = any(transaction is not None for transaction in self.open.values())
        for topic in TOPICS:
            expected = {number for number in self.committed if topic in self.written[number]}
            visible = set(seen[topic])
            assert visible - expected <= self.unknown
            assert is_open or expected <= visible
        if not is_open:
            for number in numbers:
                assert {topic for topic in TOPICS if number in seen[topic]} == self.written[number]

    @invariant()
    def offsets_are_those_of_committed_transactions(self) -> None:
        if self.clients and not any(
            transaction is not None and transaction.offset is not None for transaction in self.open.values()
        ):
            found = self.node.stable_offset("g", "orders")
            assert found == self.offset or found in self.offsets_unknown


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
