"""Transactions over three brokers under faults: the product's coordinators, markers, logs and groups."""

from collections import Counter
from dataclasses import replace

import pytest

from budgets import blocks
from simulation.harness.breach import Breach
from simulation.harness.shrink import Attempts, explain
from simulation.transactions.book import Book, Identity
from simulation.transactions.cluster import TransactionCluster, run_seed
from simulation.transactions.plan import TransactionPlan
from simulation.transactions.script import Conversation
from simulation.transactions.sink_laws import SinkLaws
from simulation.transactions.work import TransactionalId
from tailrace.coordinators.transactions.records import SinkRecord, TransactionRecord
from tailrace.coordinators.transactions.sink import Sink
from tailrace.coordinators.transactions.transaction import Transaction, TransactionState
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SinkMember
from tailrace.protocol.messages.transactions import WritableTxnMarker, WriteTxnMarkersRequest

_PREPARE_COMMIT = TransactionState.PREPARE_COMMIT


@pytest.mark.parametrize("seeds", blocks(2, first=6))
def test_no_transaction_is_torn_lost_dirty_or_repeated(seeds: range) -> None:
    reached: Counter[str] = Counter()
    counted = 0
    for seed in seeds:
        cluster = run_seed(seed)
        reached.update(state for state, count in cluster.world.sometimes.items() if count)
        counted += cluster.counts
    assert counted >= len(seeds) / 4
    states = ("coordinator moved", "several instances", "marker with nothing to end", "a batch is committed already")
    if seeds.start == 6:  # the block that reaches all
        assert [state for state in states if not reached[state]] == []


def test_without_faults_every_transaction_ends_as_its_client_asks() -> None:
    committed: Counter[int] = Counter()
    batches = 0
    for seed in (0, 1):
        cluster = TransactionCluster(seed, TransactionPlan(chaos_ms=1_000))
        cluster.run()
        # An attempt of a task may be fenced by the decision on another attempt.
        asked = [
            transaction
            for transaction in cluster.book.transactions
            if transaction.member is None or transaction.wants_commit
        ]
        assert [transaction for transaction in asked if transaction.answered is not transaction.wants_commit] == []
        assert (cluster.laws.ledger.fenced, cluster.moves) == (0, 0)
        committed.update(transaction.generation for transaction in cluster.book.answered(is_commit=True))
        batches += cluster.batches
        assert cluster.world.sometimes["a batch is committed already"] == 0
    assert min(committed[0], committed[2]) > 5
    assert batches > 2


def test_requests_that_come_again_late_end_nothing_else() -> None:
    """A third of all comes a second time, on an old connection, up to 35 s later; markers too."""
    cluster = TransactionCluster(2, TransactionPlan(late=0.3, moves_per_s=0.3, chaos_ms=1_500))
    cluster.run()
    assert cluster.world.sometimes["WriteTxnMarkersRequest comes again late"] > 3


def test_the_same_seed_gives_the_same_run() -> None:
    plan = replace(TransactionPlan.of(6), chaos_ms=1_000, longest_chaos_ms=1_000)
    first, other = TransactionCluster(6, plan), TransactionCluster(6, plan)
    first.run()
    other.run()
    assert (first.world.events, first.describe()) == (other.world.events, other.describe())


def test_a_failing_run_is_cut_down_to_the_turns_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TransactionPlan(chaos_ms=1_000, moves_per_s=3.0, kills_per_s=3.0, transfers=1, copies=1, sinks=0)

    def kill(self: TransactionalId, conversation: Conversation) -> None:
        if self._cluster.world.sometimes["client killed"] == 2:
            raise Breach("one client is killed", conversation.name)

    attempts = Attempts(TransactionCluster, 0)
    assert attempts.failure(plan) is None
    monkeypatch.setattr(TransactionalId, "kill", kill)
    failure = attempts.failure(plan)
    assert failure is not None
    assert len(failure.turns) > 2
    told = explain(attempts, failure)
    assert "of which it takes 2" in told


def test_a_driver_that_dies_at_any_step_leaves_batches_whole() -> None:
    """Drivers and tasks are killed and held, coordinators move, and no other work is done."""
    plan = TransactionPlan(
        transfers=0,
        copies=0,
        sinks=2,
        kills_per_s=4.0,
        holds_per_s=4.0,
        rivals_per_s=4.0,
        moves_per_s=1.0,
        chaos_ms=2_500,
    )
    cluster = TransactionCluster(0, plan)
    cluster.run()
    sometimes = cluster.world.sometimes
    assert cluster.batches > 10
    assert min(sometimes["a batch is committed already"], sometimes["CommitSink ends a driver: PRODUCER_FENCED"]) > 0


def test_a_decided_batch_that_is_not_seen_whole_is_a_breach() -> None:
    book = Book()
    laws = SinkLaws(book)
    member = SinkMember("s", "r", 0, 0, 1)
    written = book.begin(member.transactional_id, "one", 2, Identity(7, 0))
    written.written[TopicPartition("orders", 0)] = {written.value("0"): 0, written.value("1"): 1}
    book.rows["s", 0] = 2
    prepared = Transaction(producer_id=7, producer_epoch=1, timeout_ms=1, updated_at_ms=0, state=_PREPARE_COMMIT)
    sink = Sink(last_batch=0, run="r", updated_at_ms=0)
    laws.decided(
        (
            TransactionRecord(transactional_id=member.transactional_id, transaction=prepared),
            SinkRecord(sink_id="s", sink=sink),
        )
    )
    laws.shown(written, [written.value("0")])
    with pytest.raises(Breach, match="a batch is committed whole"):
        laws.check_end()
    laws.shown(written, [written.value("1")])
    laws.check_end()
    with pytest.raises(Breach, match="a batch is committed once"):
        laws.shown(written, [written.value("1")])


def test_a_breach_in_a_callback_of_the_product_is_raised_after_the_event() -> None:
    laws = TransactionCluster(0, TransactionPlan()).laws
    laws.check()
    late = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=True, topics=(), coordinator_epoch=0)
    laws.markers_leave(WriteTxnMarkersRequest(markers=(late,)))
    with pytest.raises(Breach, match="markers follow a committed decision"):
        laws.check()
