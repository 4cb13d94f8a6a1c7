"""A transaction that was said to be committed is read whole after a power cut, and an aborted one never.

The story: three producers with transactions that overlap, over segments that roll, with checkpoints and a clean stop.
It runs again for every operation of the disk, up to the cut; then a new node opens the files that the disk kept, and
the coordinator ends the transactions it had decided.
"""

from dataclasses import dataclass, field

import pytest

from budgets import examples
from tailrace.client.reading.fetching import visible_batches
from tailrace.model.topic_config import TopicConfig
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of, records_of, verified_by
from testkit.nodes.ports import ScriptedVerifier
from testkit.nodes.power_cuts import PowerCuts

DIRECTORY = "/data/logs"
CONFIG = TopicConfig(segment_bytes=500, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0)
READ_COMMITTED = 1


@dataclass
class Transaction:
    number: int
    producer_id: int
    epoch: int
    values: list[bytes] = field(default_factory=list)
    """The values in order, acknowledged values first."""
    acknowledged: int = 0
    is_commit: bool | None = None
    """The decided end; None while the transaction is open."""
    is_ended: bool = False
    """Whether the marker was acknowledged."""


class TransactionStory:
    def __init__(self, files: SimulatedDisk) -> None:
        self.files = files
        self.clock = ManualClock()
        self.transactions: list[Transaction] = []
        self.open: dict[int, Transaction] = {}
        self.epochs: dict[int, int] = {}
        self.coordinator_epoch = 0
        self.node: DataPath

    def tell(self) -> None:
        self.start()
        self.write(1, 2)
        self.write(2, 1)
        self.end(1, is_commit=True)
        self.write(1, 3)
        self.end(2, is_commit=False)
        self.checkpoint()
        self.write(3, 1)
        self.write(2, 4)
        self.end(1, is_commit=False)
        self.write(1, 1)
        self.end(3, is_commit=True)
        self.coordinator_epoch = 1
        self.end(2, is_commit=True)
        self.checkpoint()
        self.write(3, 5)
        self.write(2, 2)
        self.end(2, is_commit=False)
        self.stop()
        self.start()
        self.write(2, 1)
        self.end(1, is_commit=True)
        self.end(3, is_commit=False)
        self.write(1, 1)
        self.checkpoint()
        self.end(2, is_commit=True)
        self.stop()

    def start(self) -> None:
        self.node = DataPath(
            DIRECTORY, files=self.files, clock=self.clock, own_handlers=verified_by(ScriptedVerifier())
        )
        self.node.create("orders", config=CONFIG)
        self.node.end_turn()

    def stop(self) -> None:
        self.node.end_turn()
        self.node.table.close()

    def checkpoint(self) -> None:
        self.node.table.checkpoints.write_recovery_points()
        self.node.table.checkpoints.write_high_watermarks()
        self.node.end_turn()

    def write(self, producer_id: int, count: int) -> None:
        """Write as a producer of KIP-890: each transaction has an epoch of its own, and starts with sequence 0."""
        transaction = self.open.get(producer_id)
        if transaction is None:
            transaction = Transaction(len(self.transactions), producer_id, self.epochs.setdefault(producer_id, 0))
            self.open[producer_id] = transaction
            self.transactions.append(transaction)
        values = [f"{transaction.number}-{len(transaction.values) + at}".encode() for at in range(count)]
        records = batch_of(
            *values,
            producer_id=producer_id,
            producer_epoch=transaction.epoch,
            base_sequence=len(transaction.values),
            is_transactional=True,
        )
        transaction.values += values
        answer = self.node.produce("orders", records=records, version=12, transactional_id=f"id-{producer_id}")
        assert answer.produced.error_code == 0
        transaction.acknowledged = len(transaction.values)

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        transaction = self.open.pop(producer_id)
        transaction.is_commit = is_commit
        self.epochs[producer_id] += 1
        self.send_marker(transaction)

    def send_marker(self, transaction: Transaction) -> None:
        answer = self.node.end_transaction(
            "orders",
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch + 1,
            coordinator_epoch=self.coordinator_epoch,
            is_commit=bool(transaction.is_commit),
        )
        assert answer.response.markers[0].topics[0].partitions[0].error_code == 0
        transaction.is_ended = True

    def committed_values(self) -> list[bytes | None]:
        """The records that a reader of committed data sees."""
        found: list[bytes | None] = []
        offset = 0
        while True:
            answer = self.node.fetch("orders", offset, isolation=READ_COMMITTED, partition_max_bytes=300).fetched
            assert answer.error_code == 0
            if not answer.records:
                assert offset == answer.last_stable_offset
                return found
            stretches, offset, *_ = visible_batches(answer.records, offset, answer.aborted_transactions or ())
            found += [record.value for stretch in stretches for record in records_of(stretch)]

    def verify(self) -> None:
        self.clock = ManualClock()
        self.start()
        seen = self.committed_values()
        for transaction in self.transactions:
            its_values = [value for value in seen if value in transaction.values]
            if transaction.is_commit:
                assert its_values in ([], transaction.values), "whole or not at all"
            else:
                assert its_values == []
        self.end_what_was_decided()
        assert sorted(map(bytes, filter(None, self.committed_values()))) == sorted(
            value for transaction in self.transactions if transaction.is_commit for value in transaction.values
        )
        log = self.node.table.get("orders", 0).log
        assert log.producers.first_open_offset is None
        self.stop()

    def end_what_was_decided(self) -> None:
        """As a coordinator does after it comes back: what was not acknowledged is written again, all else aborted."""
        self.coordinator_epoch += 1
        for transaction in self.transactions:
            if not transaction.is_ended:
                transaction.is_commit = bool(transaction.is_commit)
                self.send_marker(transaction)


CUTS = PowerCuts(TransactionStory)


def test_the_story_is_true_without_a_power_cut() -> None:
    story = TransactionStory(SimulatedDisk.with_directory("/data", 0))
    story.tell()
    story.verify()


@pytest.mark.parametrize("seed", range(examples(2)))
def test_it_is_true_wherever_the_power_goes(seed: int) -> None:
    for operation in CUTS.operations(least=60):
        CUTS.cut_and_verify(operation, after=seed % 2 == 1, seed=1000 * seed + operation)


def test_a_disk_that_lies_is_found_out() -> None:
    assert len(list(CUTS.losses(lying_sync=True))) > 10
