"""Transactions over three brokers under faults: the product's coordinators, markers, logs and groups."""

import os
from collections import Counter
from pathlib import Path

import pytest

from budgets import examples
from simulation.breach import Breach
from simulation.shrink import attempt, explain
from simulation.sweep import save_sweep
from simulation.transaction_cluster import TransactionCluster, run_seed
from simulation.transaction_plan import TransactionPlan
from simulation.transaction_script import Conversation
from simulation.transaction_shrink import TransactionAttempts
from simulation.transaction_sweep import TransactionSweep, sweep_transactions, transactions_code_version
from simulation.transaction_work import TransactionalId
from tailrace.protocol.messages.transactions import WritableTxnMarker, WriteTxnMarkersRequest

SEEDS = int(os.environ.get("TRANSACTION_SEEDS", examples(5)))
"""From 5 on."""


def test_no_transaction_is_torn_lost_dirty_or_repeated() -> None:
    reached: Counter[str] = Counter()
    counted = 0
    for seed in range(5, 5 + SEEDS):
        cluster = run_seed(seed)
        reached.update(state for state, count in cluster.world.sometimes.items() if count)
        counted += cluster.counts
    assert counted >= SEEDS / 4
    for state in ("coordinator moved", "several instances", "marker with nothing to end"):
        assert reached[state], state


def test_without_faults_every_transaction_ends_as_its_client_asks() -> None:
    committed: Counter[int] = Counter()
    for seed in (0, 1):
        cluster = TransactionCluster(seed, TransactionPlan(chaos_ms=1_000))
        cluster.run()
        assert [one for one in cluster.book.transactions if one.answered is not one.wants_commit] == []
        assert (cluster.laws.ledger.fenced, cluster.moves) == (0, 0)
        committed.update(one.generation for one in cluster.book.answered(is_commit=True))
    assert min(committed[0], committed[2]) > 5


def test_requests_that_come_again_late_end_nothing_else() -> None:
    """A third of all comes a second time, on an old connection, up to 35 s later; markers too."""
    cluster = TransactionCluster(2, TransactionPlan(late=0.3, moves_per_s=0.3, chaos_ms=3_000))
    cluster.run()
    assert cluster.world.sometimes["WriteTxnMarkersRequest comes again late"] > 10


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = run_seed(2), run_seed(2)
    assert (one.world.events, one.describe()) == (other.world.events, other.describe())


def test_a_failing_run_is_cut_down_to_the_turns_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TransactionPlan(chaos_ms=1_000, moves_per_s=3.0, kills_per_s=3.0, transfers=1, copies=1)

    def kill(self: TransactionalId, one: Conversation) -> None:
        if self._cluster.world.sometimes["client killed"] == 2:
            raise Breach("one client is killed", one.name)

    attempts = TransactionAttempts(0)
    assert attempt(attempts, plan) is None
    monkeypatch.setattr(TransactionalId, "kill", kill)
    failure = attempt(attempts, plan)
    assert failure is not None
    assert len(failure.turns) > 2
    told = explain(attempts, failure)
    assert "of which it takes 2" in told


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    done = TransactionSweep(seeds=50, counted=20, committed=7)
    save_sweep(path, done, transactions_code_version())
    assert sweep_transactions(path, 20, 1, lambda total: None) == done
    save_sweep(path, done, "of another code")
    assert sweep_transactions(path, 0, 1, lambda total: None).seeds == 0


def test_a_breach_in_a_callback_of_the_product_is_raised_after_the_event() -> None:
    laws = TransactionCluster(0, TransactionPlan()).laws
    laws.check()
    late = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=True, topics=(), coordinator_epoch=0)
    laws.markers_leave(WriteTxnMarkersRequest(markers=(late,)))
    with pytest.raises(Breach, match="markers follow a committed decision"):
        laws.check()
