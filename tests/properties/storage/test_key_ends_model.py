"""The end of a key range is what a walk over all records finds, whatever is done to the log and to its power."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from budgets import examples
from tailrace.model.key_ranges import HASH_SPACE, WHOLE, KeyRange, hash_of, of_slots, slot_of
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records import _kernels_twin as twin
from tailrace.protocol.records.batch import read_header, seal
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch
from tailrace.storage.keys import batch_slots, key_ends, key_indexes
from testkit.records.batches import stored_marker
from testkit.records.compaction import compact
from testkit.records.key_ends import ANY_HASH, compare_end, readable_hashes
from testkit.records.log_machine import DIRECTORY, LogMachine

KEYS = (b"a", b"b", b"c", b"", b"d" * 40, b"k17", b"k18", None)
BY_KEY = [KeyRange(hash_of(key, 0), hash_of(key, 0)) for key in KEYS if key is not None]
RANGES = [
    *(of_slots(slot_of(group.first), slot_of(group.first)) for group in BY_KEY),
    *BY_KEY,
    of_slots(0, 127),
    of_slots(128, 255),
    of_slots(16, 31),
    KeyRange(0, HASH_SPACE - 1),
    KeyRange(77, BY_KEY[0].first - 1),
    KeyRange(BY_KEY[1].first, HASH_SPACE - 5),
]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
NOW_MS = 1_700_000_000_000

sendings = st.tuples(
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=5),
    st.sampled_from((0, 0, 0, 1, 2, 3, 4)),
    st.sampled_from(("data", "data", "data", "data", "lying", "marker")),
)


def batch_of(offset: int, keys: list[bytes | None], codec: int, kind: str, epoch: int) -> AppendBatch:
    if kind == "marker":
        return stored_marker(offset, producer_id=9, is_commit=True, leader_epoch=epoch, timestamp=NOW_MS)
    records = [Record(0, NOW_MS, key, b"v" * 20) for key in keys]
    built = build_batch(records, base_offset=offset, codec=codec, leader_epoch=epoch)
    if kind == "lying":
        built[60] += 1  # the count of records, and of offsets
        built[26] += 1
        seal(built)
    return AppendBatch(bytes(built), read_header(built))


class KeyEndsModel(LogMachine):
    """The model is the log itself, read from end to end."""

    now_ms = NOW_MS

    @initialize(seed=st.integers(0, 2**32), is_compacted=st.booleans(), keeps_files=st.booleans())
    def begin(self, seed: int, is_compacted: bool, keeps_files: bool) -> None:
        self.config = TopicConfig(
            cleanup_policy=("compact", "delete") if is_compacted else ("delete",),
            segment_bytes=700,
            index_interval_bytes=150,
            retention_bytes=4000,
            retention_ms=-1,
            file_delete_delay_ms=0,
            min_cleanable_dirty_ratio=0.0,
            key_ranges_index="auto" if keeps_files else "none",
        )
        self.epoch = 0
        self.deleted: dict[int, int] = {}
        """The deleted records, as `readable_hashes` found them before."""
        self.ticks: Callable[[], int] = count(0, 6).__next__
        self.begin_log(seed)

    def take_what_is_there(self) -> None:
        """A crash may have taken back the deletion of some records."""
        start = self.log.log_start_offset
        self.deleted = {offset: key for offset, key in self.deleted.items() if offset < start}

    @contextmanager
    def deletes(self) -> Iterator[None]:
        """Note the records that are deleted meanwhile."""
        found = readable_hashes(self.log)
        yield
        self.deleted.update((offset, key) for offset, key in found if offset < self.log.log_start_offset)

    @rule(sent=st.lists(sendings, min_size=1, max_size=6))
    def append(self, sent: list[tuple[list[bytes | None], int, str]]) -> None:
        for keys, codec, kind in sent:
            self.log.append([batch_of(self.log.log_end_offset, keys, codec, kind, self.epoch)])

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def checkpoint(self) -> None:
        self.recovery_point, self.durable_start = self.log.flushed_offset, self.log.log_start_offset
        self.first_dirty = self.log.compactions.first_dirty_offset

    @precondition(lambda self: self.log.log_end_offset > self.log.log_start_offset)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        self.recovery_point = 0
        self.first_dirty = 0
        self.log.truncate_to(offset)
        self.epoch += 1
        self.log.epochs.assign(self.epoch, self.log.log_end_offset)

    @rule(data=st.data())
    def advance_log_start(self, data: st.DataObject) -> None:
        start, flushed = self.log.log_start_offset, self.log.flushed_offset
        with self.deletes():
            self.log.advance_log_start(data.draw(st.integers(start, max(flushed, start))))

    @rule()
    def retain(self) -> None:
        with self.deletes():
            self.log.retention.apply(NOW_MS, self.log.flushed_offset)
            while self.log.keys.awaits_removal:
                while self.log.keys.examine_on(self.ticks):
                    pass
                self.log.retention.apply(NOW_MS, self.log.flushed_offset)

    @rule(wanted=st.sampled_from(RANGES), data=st.data())
    def come_back(self, wanted: KeyRange, data: st.DataObject) -> None:
        """A reader has lost a record only if a record of its range was deleted behind its offset; from the start of its
        range on, no record was deleted."""
        offset = data.draw(st.integers(0, self.log.log_start_offset))
        while (start := self.log.keys.start(*wanted)) is None:
            self.log.keys.index_on(self.ticks)
        own = [at for at, key in self.deleted.items() if wanted.first <= key <= wanted.last]
        assert max(own, default=-1) < start <= self.log.log_start_offset
        if self.log.keys.has_lost([wanted], offset) and offset < self.log.log_start_offset and wanted != WHOLE:
            assert max(own, default=-1) >= offset

    @precondition(lambda self: self.config.is_compacted)
    @rule()
    def compact(self) -> None:
        self.log.flush()
        compact(self.log, NOW_MS, end_offset=self.log.log_end_offset)

    @rule(keeps_files=st.booleans())
    def change_settings(self, keeps_files: bool) -> None:
        self.config = replace(self.config, key_ranges_index="auto" if keeps_files else "none")
        self.log.update_config(self.config)
        assert keeps_files or not [name for name in self.disk.list_dir(DIRECTORY) if name.endswith(".khx")]

    @rule(wanted=st.sampled_from(RANGES), data=st.data())
    def ask_in_vain(self, wanted: KeyRange, data: st.DataObject) -> None:
        """Ask, perhaps make a step, and go on."""
        end = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        self.log.keys.end(*wanted, end)
        if data.draw(st.booleans()):
            self.log.keys.index_on(self.ticks)

    @rule(wanted=st.sampled_from(RANGES), data=st.data())
    def ask(self, wanted: KeyRange, data: st.DataObject) -> None:
        found = readable_hashes(self.log)
        end = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        self.compare(found, wanted, end)
        self.compare(found, wanted, self.log.log_end_offset)

    def compare(self, found: list[tuple[int, int]], wanted: KeyRange, end: int) -> None:
        compare_end(self.log, found, wanted, end, deleted=self.deleted.items(), monotonic_ms=self.ticks)

    @rule(wanted=st.sampled_from(RANGES[:-6]), data=st.data())
    def skip(self, wanted: KeyRange, data: st.DataObject) -> None:
        """No batch that is passed over has a record of the slots."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = data.draw(st.integers(start, end))
        limit = data.draw(st.integers(offset, end))
        slots = range(slot_of(wanted.first), slot_of(wanted.last) + 1)
        reached = self.log.keys.next_match(sum(1 << slot for slot in slots), offset, limit)
        assert offset <= reached <= limit
        passed = [key for at, key in readable_hashes(self.log) if offset <= at < reached]
        assert not [key for key in passed if key == ANY_HASH or slot_of(key) in slots]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            found = readable_hashes(self.log)
            for end in range(self.log.log_start_offset, self.log.log_end_offset + 1, 3):
                for wanted in RANGES:
                    self.compare(found, wanted, end)


@pytest.mark.parametrize("is_small", [True, False], ids=["small steps of the twin", "large steps"])
def test_the_ends_are_those_of_all_records(is_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_small:
        monkeypatch.setattr(key_ends, "_BACK_BYTES", 150)
        monkeypatch.setattr(key_ends, "_FORWARD_BYTES", 300)
        monkeypatch.setattr(key_ends, "MOST_ENTRIES", 2)
        monkeypatch.setattr(batch_slots, "GROUP_BATCHES", 2)
        monkeypatch.setattr(key_ends, "MAX_QUESTIONS", 3)
        monkeypatch.setattr(key_indexes, "MAX_LOADED", 1)
        monkeypatch.setattr(batch_slots, "split_by_key", twin.split_by_key)
    run_state_machine_as_test(
        KeyEndsModel, settings=settings(max_examples=examples(60), stateful_step_count=25, deadline=None, phases=PHASES)
    )
