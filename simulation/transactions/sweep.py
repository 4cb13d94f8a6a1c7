"""Many seeds of brokers with transactions, in several processes: `python -m simulation transactions --help`."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Self

import tailrace
from simulation.harness.shrink import attempt, explain
from simulation.harness.sweep import Sweep, code_version, load_sweep, save_sweep
from simulation.transactions.cluster import TransactionCluster
from simulation.transactions.plan import TransactionPlan
from simulation.transactions.shrink import TransactionAttempts
from tailrace.model.errors import KafkaError

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
class TransactionSweep(Sweep):
    """Seeds of brokers with transactions. A state counts once in each seed."""

    states = STATES

    committed: int = 0
    aborted: int = 0
    """Transactions whose end was answered."""
    batches: int = 0
    """Of sinks, whose commit was answered."""

    def add(self, other: Self) -> None:
        super().add(other)
        self.committed += other.committed
        self.aborted += other.aborted
        self.batches += other.batches

    @property
    def work(self) -> str:
        ended = f"{self.committed} transactions committed, {self.aborted} aborted, {self.batches} batches of sinks"
        return f"{super().work}, {ended}"


def run_seed(seed: int) -> TransactionSweep:
    """One run; a failure is in the result, cut down to the few turns of the nemesis that it takes."""
    logging.disable(logging.CRITICAL)  # disks fail on purpose here, and say so
    cluster = TransactionCluster(seed, TransactionPlan.of(seed))
    found = TransactionSweep(seeds=1)
    try:
        cluster.run()
    except (AssertionError, KafkaError) as error:
        found.failures.append(f"seed {seed} FAILED: {error!r}\n{failure_of(seed)}")
    found.counted = int(cluster.counts)
    found.events = cluster.world.events
    found.faults = Counter(cluster.faults)
    found.committed = len(list(cluster.book.answered(is_commit=True)))
    found.batches = cluster.batches
    found.aborted = len(list(cluster.book.answered(is_commit=False)))
    cluster.world.sometimes["a transaction that no client ended"] += cluster.laws.ledger.fenced
    found.sometimes = Counter({state: 1 for state, times in cluster.world.sometimes.items() if times})
    return found


def failure_of(seed: int) -> str | None:
    """The failure of a seed in words, with the few turns of the nemesis that it takes; None if no law is broken."""
    attempts = TransactionAttempts(seed)
    failure = attempt(attempts, TransactionPlan.of(seed))
    return None if failure is None else explain(attempts, failure, max_runs=60)


def sweep_transactions(
    path: Path, counted: int, processes: int, on_progress: Callable[[TransactionSweep], None], *, first: int = 0
) -> TransactionSweep:
    """Seeds from `first` on until so many count, or one fails. Results are kept in the file, as long as the code and
    the first seed are the same.
    """
    # Of what runs here, whatever becomes of the files meanwhile.
    code = f"{transactions_code_version()} from {first}"
    total = load_sweep(TransactionSweep, path, code)
    with get_context("spawn").Pool(processes) as pool:
        while total.counted < counted and not total.failures:
            before, began = total.seconds, time.perf_counter()
            begin = first + total.seeds
            for found in pool.imap(run_seed, range(begin, begin + _BLOCK)):
                total.add(found)
                total.seconds = before + time.perf_counter() - began
                on_progress(total)
            save_sweep(path, total, code)
    return total


def transactions_code_version() -> str:
    """Of the simulation and of the product, without what no broker imports: commands, and what runs in Spark."""
    product = Path(tailrace.__file__).parent
    sources = [source for source in product.rglob("*.py") if not _WITHOUT & set(source.relative_to(product).parts)]
    return code_version([*sources, *Path(__file__).parents[1].rglob("*.py")])


_WITHOUT = {"cli", "spark", "spark.py"}
_BLOCK = 50
"""Seeds between two looks at how many count."""
