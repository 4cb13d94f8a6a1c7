"""The records of key ranges that a log has deleted are known after a crash at any operation (decision 0099)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from budgets import examples
from tailrace.model.key_ranges import KeyRange, hash_of, of_slots, slot_of
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch, Log
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.power_cuts import PowerCuts, noted
from unit.storage.keys.key_logs import BATCH_BYTES, CONFIG, NEITHER, end_of, open_log

KEYS: Final = b"abcdefgh"
RANGES: Final = [of_slots(slot_of(hash_of(bytes([key]), 0)), slot_of(hash_of(bytes([key]), 0))) for key in KEYS]
RARE: Final = b"a" + b"b" * 9
"""A segment with one record of the first key."""
ROUNDS: Final = (RARE + b"bc" * 5, b"d" * 20 + b"cd" * 5)
KEPT: Final = replace(CONFIG, retention_bytes=15 * BATCH_BYTES)


def retain(log: Log, *, only_below_log_start: bool = False) -> None:
    """Apply retention, with all steps that it takes."""
    log.retention.apply(0, log.flushed_offset, only_below_log_start=only_below_log_start)
    while log.keys.awaits_removal:
        while log.keys.examine_on(lambda: 0):
            pass
        log.retention.apply(0, log.flushed_offset, only_below_log_start=only_below_log_start)


class RetainedStory:
    """A log that is read by key loses a segment, or several, again and again. `keys` are those of all records."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.keys = b""
        self.durable = 0
        self.is_clean = False
        self.deletions: list[int] = []
        """The operations of the disk during deletions."""
        self.log: Log

    def open(self) -> None:
        clean, self.is_clean = self.is_clean, False
        self.log = open_log(self.disk, KEPT, recovery_point=self.durable, clean=clean)

    def write(self, keys: bytes) -> None:
        """Write a batch for each key, in one go: each operation is one more crash."""
        stored = []
        for offset, key in enumerate(keys, self.log.log_end_offset):
            record = Record(0, 0, bytes([key]), bytes(BATCH_BYTES - 61 - 8))
            batch = bytes(build_batch([record], base_offset=offset, leader_epoch=0))
            stored.append(AppendBatch(batch, read_header(batch)))
        self.log.append(stored)
        self.log.flush()
        self.keys += keys

    def delete(self, *, is_read: bool) -> None:
        if is_read:
            end_of(self.log, NEITHER)  # indexes all, so that retention reads no records
        retain(self.log)

    def note_delete(self, *, is_read: bool) -> None:
        """Delete, and note the operations of the disk."""
        before = self.disk.operations
        self.delete(is_read=is_read)
        self.deletions += range(before + 1, self.disk.operations + 1)

    def tell(self) -> None:
        self.open()
        self.compare()
        for number, keys in enumerate(ROUNDS):
            self.write(keys)
            self.note_delete(is_read=number % 2 == 0)
        self.log.close()
        self.durable, self.is_clean = self.log.log_end_offset, True
        self.open()
        self.write(b"ab" * 10)
        self.note_delete(is_read=False)

    def verify(self) -> None:
        """Start again, and delete on."""
        self.open()
        self.compare()
        # Records of a write that the crash has broken off are there or not.
        self.keys = self.keys[: self.log.log_end_offset].ljust(self.log.log_end_offset, b"?")
        self.write(b"ch" * 20)
        self.delete(is_read=False)
        if b"?" not in self.keys[: self.log.log_start_offset]:
            self.compare()

    def compare(self) -> None:
        log_start = self.log.log_start_offset
        deleted = self.keys[:log_start]
        assert len(deleted) == log_start, "deleted records were flushed before"
        found = {key: self.start_of(wanted) for key, wanted in zip(KEYS, RANGES, strict=True)}
        assert found == {key: deleted.rfind(key) + 1 for key in KEYS}, f"the log starts at {log_start}"
        assert self.start_of(NEITHER) == 0

    def start_of(self, wanted: KeyRange) -> int | None:
        while (found := self.log.keys.start(*wanted)) is None:
            self.log.keys.index_on(lambda: 0)
        return found


class FollowerStory(RetainedStory):
    """A follower takes the notes of its leader, and deletes the same records some time later."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk)
        self.leader = RetainedStory(SimulatedDisk.with_directory("/data"))

    def write(self, keys: bytes) -> None:
        self.leader.write(keys)
        super().write(keys)

    def delete(self, *, is_read: bool) -> None:
        self.leader.delete(is_read=is_read)
        noted = self.leader.log.keys.noted
        assert noted is not None
        assert noted.known is not None
        self.log.keys.take_note(noted.known.to_bytes())
        self.log.advance_log_start(self.leader.log.log_start_offset)
        retain(self.log, only_below_log_start=True)

    def tell(self) -> None:
        self.leader.open()
        self.leader.compare()
        super().tell()

    def verify(self) -> None:
        self.open()
        self.compare()


Story = Callable[[SimulatedDisk], RetainedStory]


def operations_of_deletions(story: Story) -> list[int]:
    told = story(SimulatedDisk.with_directory("/data"))
    told.tell()
    assert len(told.deletions) > 30
    return told.deletions


@pytest.mark.parametrize("story", [RetainedStory, FollowerStory])
def test_deleted_records_are_known_after_a_kill_at_every_operation(story: Story) -> None:
    kills = PowerCuts(story)
    for operation in operations_of_deletions(story):
        told, disk = kills.kill(operation, seed=operation)
        with noted(disk, operation, "kill"):
            told.verify()


@pytest.mark.parametrize("seed", range(examples(1)))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("story", [RetainedStory, FollowerStory])
def test_deleted_records_are_known_after_a_power_cut_at_every_operation(story: Story, after: bool, seed: int) -> None:
    cuts = PowerCuts(story)
    for operation in operations_of_deletions(story):
        told, disk = cuts.cut(operation, after=after, seed=1000 * seed + operation)
        with noted(disk, operation, f"power cut, after={after}, seed={seed}"):
            told.verify()
