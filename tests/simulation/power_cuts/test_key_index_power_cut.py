"""The power goes at every operation of a log that is read by key: no key index tells of batches that are gone.

All batches have one size, so that the batches written after a cut or a crash stand where other batches stood: an index
of the lost batches would fit the new batches. The story covers rolls, flushes, a truncation, a compaction, retention, a
clean stop and a start.
"""

from dataclasses import replace

import pytest

from budgets import examples
from tailrace.model.key_ranges import KeyRange, hash_of, of_slots, slot_of
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch, Log
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.power_cuts import PowerCuts, noted
from testkit.records.compaction import compact
from testkit.records.key_ends import compare_end, end_by_index, readable_hashes

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=500, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0)
KEYS = b"abcdefgh"
RANGES = [of_slots(slot_of(hash_of(bytes([key]), 0)), slot_of(hash_of(bytes([key]), 0))) for key in KEYS]
NEITHER = of_slots(99, 99)


class KeyedStory:
    """Tells the story to a log. `durable` is the recovery point that the next start gets."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.durable = 0
        self.is_clean = False
        self.epoch = 0
        self.unused = sorted(set(range(100, 256)) - {slot_of(wanted.first) for wanted in RANGES})
        self.log: Log

    def open(self, config: TopicConfig = CONFIG) -> None:
        clean, self.is_clean = self.is_clean, False
        self.log = Log.open(
            DIRECTORY, files=self.disk, config=config, now_ms=0, recovery_point=self.durable, clean=clean
        )

    def append(self, keys: bytes) -> None:
        for key in keys:
            record = Record(0, 0, bytes([key]), bytes(31))
            batch = bytes(build_batch([record], base_offset=self.log.log_end_offset, leader_epoch=self.epoch))
            self.log.append([AppendBatch(batch, read_header(batch))])

    def ask(self) -> None:
        """Index everything, by a question for a slot without records."""
        unused = self.unused.pop()
        end_by_index(self.log, of_slots(unused, unused), self.log.log_end_offset)
        self.log.keys.index_on(lambda: 0)  # a file of a segment that has been flushed since

    def flush(self) -> None:
        self.log.flush()

    def close(self) -> None:
        self.log.close()
        self.durable, self.is_clean = self.log.log_end_offset, True

    def truncate(self, offset: int) -> None:
        self.durable = min(self.durable, offset)
        self.log.truncate_to(offset)
        self.epoch += 1
        self.log.epochs.assign(self.epoch, self.log.log_end_offset)

    def tell(self) -> None:
        self.open()
        self.append(b"ababababcd")
        self.ask()
        self.flush()
        self.append(b"abc")
        self.ask()
        self.truncate(7)
        self.append(b"efefefef")
        self.flush()
        self.ask()
        self.close()
        self.open()
        self.ask()
        self.append(b"ggg")
        self.ask()
        self.flush()
        self.log.update_config(replace(CONFIG, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0))
        compact(self.log, 0, end_offset=self.log.log_end_offset)
        self.ask()
        self.log.update_config(replace(CONFIG, retention_bytes=800))
        self.log.retention.apply(0, self.log.flushed_offset)
        self.log.retention.apply(0, self.log.flushed_offset)
        self.append(b"hhhh")
        self.ask()
        self.flush()
        self.ask()
        self.close()

    def verify(self) -> None:
        """Start again, write what stands where lost batches stood, and compare all ends."""
        self.open()
        self.compare()
        self.epoch += 1
        self.log.epochs.assign(self.epoch, self.log.log_end_offset)
        self.append(b"hghghghg")
        self.compare()
        self.flush()
        self.compare()
        self.close()
        self.open()
        self.compare()

    def compare(self) -> None:
        log, found = self.log, readable_hashes(self.log)
        for wanted in (*RANGES, NEITHER, KeyRange(0, 2**32 - 1)):
            for end in range(log.log_start_offset, log.log_end_offset + 1, 2):
                compare_end(log, found, wanted, end)
            compare_end(log, found, wanted, log.log_end_offset)


CUTS = PowerCuts(KeyedStory)


@pytest.mark.parametrize("seed", range(examples(2)))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_ends_are_right_after_a_power_cut_at_every_operation(after: bool, seed: int) -> None:
    believed = 0
    for operation in CUTS.operations():
        story, disk = CUTS.cut(operation, after=after, seed=1000 * seed + operation)
        believed += any(name.endswith(".khx") for name in disk.list_dir(DIRECTORY)) if disk.exists(DIRECTORY) else 0
        with noted(disk, operation, f"power cut, after={after}, seed={seed}"):
            story.verify()
    assert believed > 10
