"""Many seeds of brokers with transactions, in several processes: `python -m simulation transactions --help`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import tailrace
from simulation.harness.sweep import Sweep, code_version, run_seed
from simulation.transactions.cluster import TransactionCluster
from simulation.transactions.plan import TransactionPlan

STATES = (
    "AddPartitionsToTxnRequest comes again late",
    "CommitSink ends a driver: INVALID_PRODUCER_ID_MAPPING",
    "CommitSink ends a driver: PRODUCER_FENCED",
    "CommitSinkRequest comes again late",
    "EndTxn ends a client: PRODUCER_FENCED",
    "EndTxnRequest comes again late",
    "InitProducerId ends a client: DUPLICATE_SEQUENCE_NUMBER",
    "InitProducerIdRequest comes again late",
    "Produce aborts: INVALID_PRODUCER_EPOCH",
    "ProduceRequest comes again late",
    "TxnOffsetCommitRequest comes again late",
    "WriteTxnMarkersRequest comes again late",
    "a batch is committed already",
    "a transaction that no client ended",
    "an attempt of a task again",
    "blackout",
    "broker killed",
    "client held",
    "client killed",
    "clock jumped",
    "coordinator moved",
    "false alarm",
    "leader moved",
    "log cut",
    "marker with nothing to end",
    "partition: brokers apart",
    "partition: isolate a leader",
    "partition: one way",
    "partition: split",
    "power cut within a step",
    "power of a broker cut",
    "producer id used up",
    "several instances",
)
"""The states that a few hundred seeds must reach."""


@dataclass
class TransactionSweep(Sweep[TransactionCluster]):
    """Seeds of brokers with transactions."""

    states = STATES

    committed: int = 0
    aborted: int = 0
    """Transactions whose end was answered."""
    batches: int = 0
    """Batches of sinks whose commit was answered."""

    def observe(self, cluster: TransactionCluster) -> None:
        cluster.world.sometimes["a transaction that no client ended"] += cluster.laws.ledger.fenced
        super().observe(cluster)
        self.committed += len(list(cluster.book.answered(is_commit=True)))
        self.aborted += len(list(cluster.book.answered(is_commit=False)))
        self.batches += cluster.batches

    def add(self, other: Self) -> None:
        super().add(other)
        self.committed += other.committed
        self.aborted += other.aborted
        self.batches += other.batches

    @property
    def work(self) -> str:
        ended = f"{self.committed} transactions committed, {self.aborted} aborted, {self.batches} batches of sinks"
        return f"{super().work}, {ended}"


run_transactions_seed: Final = partial(run_seed, TransactionSweep, TransactionCluster, TransactionPlan.of)


def transactions_code_version() -> str:
    """The version of the simulation and of the product, without what no broker imports: commands, and what runs in
    Spark."""
    product = Path(tailrace.__file__).parent
    sources = [source for source in product.rglob("*.py") if not _WITHOUT & set(source.relative_to(product).parts)]
    return code_version([*sources, *Path(__file__).parents[1].rglob("*.py")])


_WITHOUT = {"cli", "spark", "spark.py"}
