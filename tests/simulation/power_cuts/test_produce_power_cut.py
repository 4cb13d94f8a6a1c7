"""Records acknowledged with acks=all are there after a power cut, wherever in the data path the power went.

The story: two topics, batches that roll segments, several partitions in one turn, a producer that retries, checkpoints,
retention, a topic deleted and made again, a clean stop and a new start. It runs again for every operation of the
disk, up to the cut; then a new node opens the files that the disk kept.
"""

from collections import defaultdict
from functools import partial

import pytest

from budgets import examples
from tailrace.model.ids import LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.periodic_work import PartitionPasses
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, Exchange, batch_of, topic_id_of
from testkit.nodes.faults import HastyDisk, Killed, kill_at
from testkit.nodes.ports import ImmediateDisk
from testkit.nodes.power_cuts import PowerCuts, noted

DIRECTORY = "/data/logs"
CONFIG = TopicConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0)
Key = tuple[str, int]


class ProduceStory:
    """Plays the story on a node and remembers the acknowledgements of the producers."""

    def __init__(self, files: SimulatedDisk, *, disk: type[ImmediateDisk] = ImmediateDisk) -> None:
        self.files = files
        self.disk = disk
        self.clock = ManualClock()
        self.sent: dict[Key, list[bytes | None]] = defaultdict(list)
        self.acknowledged: dict[Key, int] = defaultdict(int)
        """The number of sent values that were acknowledged; values are acknowledged in order."""
        self.sequences: dict[Key, int] = defaultdict(int)
        self.invoices = 1
        self.node: DataPath

    def tell(self) -> None:
        self.start()
        for number in range(4):
            self.produce("orders", 0, 1 + number % 3)
        self.turn(("orders", 0), ("orders", 1), ("invoices", 0), ("orders", 0))
        self.checkpoint()
        self.retry("orders", 1)
        for number in range(3):
            self.turn(("orders", number % 2), ("invoices", 0))
        PartitionPasses(self.node.table, clock=self.node.clock).apply_retention()
        self.produce("orders", 1, 5)
        self.replace_invoices()
        self.turn(("invoices", 0), ("orders", 1))
        self.checkpoint()
        self.stop()
        self.start()
        self.turn(("orders", 0), ("orders", 1), ("invoices", 0))
        self.produce("orders", 0, 2)
        self.stop()

    def start(self) -> None:
        self.node = DataPath(DIRECTORY, files=self.files, clock=self.clock, disk=self.disk(self.clock.call_soon))
        self.add("orders", 0, topic_id_of("orders"))
        self.add("orders", 1, topic_id_of("orders"))
        self.create_invoices()
        self.node.end_turn()

    def create_invoices(self) -> None:
        self.add("invoices", 0, TopicId(bytes([self.invoices]) * 16))

    def add(self, topic: str, partition: int, topic_id: TopicId) -> None:
        """As metadata does: what is known from a clean stop sleeps on, what is new is made behind the loop."""
        state = PartitionState(
            topic_id=topic_id,
            replicas=(BROKER,),
            in_sync_replicas=(BROKER,),
            leader=BROKER,
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
        )
        self.node.table.add(TopicPartition(topic, partition), state=state, config=CONFIG)

    def replace_invoices(self) -> None:
        """Delete a topic and make another topic of the same name."""
        for memory in (self.sent, self.acknowledged, self.sequences):
            memory.pop(("invoices", 0))
        self.node.table.delete("invoices", 0)
        self.node.end_turn()
        self.invoices += 1
        self.create_invoices()
        self.node.end_turn()

    def stop(self) -> None:
        self.node.end_turn()
        self.node.table.close()

    def checkpoint(self) -> None:
        self.node.table.checkpoints.write_recovery_points()
        self.node.table.checkpoints.write_high_watermarks()
        self.node.table.checkpoints.write_log_starts()
        self.node.end_turn()

    def produce(self, topic: str, partition: int, count: int, *, same_turn: bool = False) -> tuple[Key, int, Exchange]:
        key = (topic, partition)
        sent = self.sent[key]
        values = [f"{topic}-{partition}-{self.invoices}-{len(sent) + number}".encode() for number in range(count)]
        records = batch_of(*values, producer_id=5, producer_epoch=0, base_sequence=self.sequences[key])
        self.sequences[key] += count
        sent += values
        exchange = self.node.produce(topic, partition=partition, records=records, same_turn=same_turn)
        if not same_turn:
            self.hear(key, len(sent), exchange)
        return key, len(sent), exchange

    def turn(self, *keys: Key) -> None:
        """Several producers in one turn: one write per partition, one flush for the whole turn."""
        exchanges = [self.produce(*key, 1, same_turn=True) for key in keys]
        self.node.end_turn()
        for key, count, exchange in exchanges:
            self.hear(key, count, exchange)

    def retry(self, topic: str, partition: int) -> None:
        """The last value again, as a producer does that did not hear the answer."""
        key = (topic, partition)
        records = batch_of(self.sent[key][-1], producer_id=5, producer_epoch=0, base_sequence=self.sequences[key] - 1)
        answer = self.node.produce(topic, partition=partition, records=records).produced
        assert (answer.error_code, answer.base_offset) == (0, len(self.sent[key]) - 1)

    def hear(self, key: Key, count: int, exchange: Exchange) -> None:
        assert exchange.is_answered
        assert exchange.produced.error_code == 0
        self.acknowledged[key] = max(self.acknowledged[key], count)

    def go_on(self) -> None:
        """After a crash of the process: start again on what is there, and acknowledge a little more."""
        self.clock = ManualClock()
        self.start()
        for key in (("orders", 0), ("orders", 1), ("invoices", 0)):
            known = self.node.table.get(*key).log.producers.producers
            self.sequences[key] = known[5].batches[-1].last_sequence + 1 if 5 in known else 0
            self.sent[key] = self.node.values(key[0], partition=key[1])
        self.turn(("orders", 0), ("orders", 1), ("invoices", 0))

    def verify(self) -> None:
        self.clock = ManualClock()
        self.start()
        for key, sent in self.sent.items():
            found = self.node.values(key[0], partition=key[1])
            assert found == sent[: len(found)], f"{key}: what is there is not what was sent"
            assert len(found) >= self.acknowledged[key], f"{key}: {self.acknowledged[key]} were acknowledged"
        self.stop()


CUTS = PowerCuts(ProduceStory)


@pytest.mark.parametrize("seed", range(examples(1)))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_records_acknowledged_with_acks_all_survive_a_power_cut_at_every_operation(after: bool, seed: int) -> None:
    for operation in CUTS.operations():
        CUTS.cut_and_verify(operation, after=after, seed=1000 * seed + operation)


@pytest.mark.parametrize("seed", range(examples(1)))
def test_records_acknowledged_with_acks_all_after_a_crash_of_the_process_survive_a_power_cut(seed: int) -> None:
    """The process that was killed may have made names which no sync has covered; the next process builds on these
    names."""
    for operation in CUTS.operations():
        story, files = CUTS.kill(operation, seed=1000 * seed + operation)
        story.go_on()
        files.power_cut()
        files.reboot()
        with noted(files, operation, f"killed, seed={seed}"):
            story.verify()


def test_a_mark_of_a_clean_stop_that_was_taken_away_never_comes_back() -> None:
    """Else the third start would trust what the second one had not flushed yet."""
    for seed in range(20):
        files = SimulatedDisk.with_directory("/data", seed)
        first = LogDirectory(DIRECTORY, files=files, is_durable=True)
        first.scan()
        first.mark_clean({})
        files.on_operation = kill_at(files.operations + 2)  # the mark is unlinked, its directory not synced
        with pytest.raises(Killed):
            LogDirectory(DIRECTORY, files=files, is_durable=True).scan()
        files.on_operation = None
        for _ in range(2):
            again = LogDirectory(DIRECTORY, files=files, is_durable=True)
            again.scan()
            assert not again.was_clean, f"seed={seed}"
            files.power_cut()
            files.reboot()


def test_an_answer_before_the_fsync_is_found_out() -> None:
    hasty = PowerCuts(partial(ProduceStory, disk=HastyDisk))
    assert len(list(hasty.losses())) > 10, (
        "a node that answers before the fsync must be seen to lose what it acknowledged"
    )
