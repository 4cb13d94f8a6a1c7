"""Logs are compacted in slices, while everything else goes on."""

import logging
from collections.abc import Iterator

import pytest

from tailrace.model.errors import KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record, build_batch
from tailrace.replication.partition import Partition
from tailrace.replication.verification import UNVERIFIED
from tailrace.server.partitions.cleaner import Cleaner, CleanerConfig
from tailrace.storage import ReadLimits, checkpoints
from tailrace.storage.compaction.compactions import Compactions
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of, records_of
from testkit.nodes.ports import DeferredDisk
from testkit.records.batches import stored_batch, stored_marker

KEYED = TopicConfig(
    cleanup_policy=("compact",), segment_bytes=400, min_cleanable_dirty_ratio=0.1, file_delete_delay_ms=0
)


@pytest.fixture
def files() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def node(files: SimulatedDisk) -> DataPath:
    return DataPath("/logs", files=files)


def write(node: DataPath, topic: str = "orders", count: int = 12) -> None:
    for number in range(count):
        answer = node.produce(topic, records=batch_of(b"%d" % number, b"x" * 50, now=node.clock.now_ms))
        assert answer.produced.error_code == 0


def write_large(node: DataPath, disk: DeferredDisk, topic: str, count: int) -> None:
    """Batches of a segment's third, which are on the disk one after the other."""
    for _ in range(count):
        node.produce(topic, records=batch_of(b"x" * 120, now=node.clock.now_ms))
        disk.run()


def start(node: DataPath, **config: float) -> Cleaner:
    cleaner = Cleaner(node.table, clock=node.clock, config=CleanerConfig(**config))  # type: ignore[arg-type]
    cleaner.start()
    return cleaner


def offsets(node: DataPath, topic: str = "orders") -> list[int]:
    log = node.table.get(topic, 0).log
    return list(_offsets(node, topic, log.log_start_offset, log.log_end_offset))


def _offsets(node: DataPath, topic: str, offset: int, end_offset: int) -> Iterator[int]:
    while offset < end_offset:
        data = node.fetch(topic, offset).fetched.records
        headers = [header for _, header in iter_batches(data or b"")]
        if not headers:
            return
        yield from (record.offset for record in records_of(data) if record.offset >= offset)
        offset = headers[-1].end_offset


def test_the_cleaner_keeps_the_last_record_of_each_key_and_its_offset(node: DataPath) -> None:
    partition = node.create(config=KEYED)
    write(node)
    before = partition.log.log_end_offset
    cleaner = start(node)
    node.clock.advance(16_000)
    assert cleaner.compactions == 1
    assert partition.log.log_end_offset == partition.high_watermark == before
    kept = offsets(node)
    active = partition.log.compactions.first_dirty_offset
    assert kept == [active - 1, *range(active, before)]
    assert node.fetch("orders", 0).fetched.error_code == 0
    stored = checkpoints.read_offsets(node.files, "/logs", checkpoints.CLEANER_OFFSETS)
    assert stored == {partition.topic_partition: active}


def test_the_cleaner_goes_on_at_its_checkpoint_after_a_restart(node: DataPath) -> None:
    partition = node.create(config=KEYED)
    write(node)
    cleaner = start(node)
    node.clock.advance(16_000)
    cleaner.stop()
    kept, dirty = offsets(node), partition.log.compactions.first_dirty_offset
    node.table.close()
    again = DataPath("/logs", files=node.files)
    partition = again.create(config=TopicConfig(segment_bytes=400))
    assert partition.log.compactions.first_dirty_offset == dirty > 0
    assert offsets(again) == kept


def test_only_compacted_topics_whose_dirty_share_is_large_enough_are_compacted(node: DataPath) -> None:
    node.create("plain", config=TopicConfig(segment_bytes=400))
    node.create(
        "patient", config=TopicConfig(cleanup_policy=("compact",), segment_bytes=400, min_cleanable_dirty_ratio=1)
    )
    write(node, "plain")
    write(node, "patient")
    cleaner = start(node)
    node.clock.advance(60_000)
    assert cleaner.compactions == 0


def test_the_cleaner_may_be_switched_off(node: DataPath) -> None:
    node.create(config=KEYED)
    write(node)
    before = node.clock.calls_pending
    cleaner = start(node, log_cleaner_enable=False)
    assert node.clock.calls_pending == before
    node.clock.advance(100_000)
    assert cleaner.compactions == 0


def test_the_cleaner_begins_with_the_dirtiest_log_and_all_get_their_turn(
    node: DataPath, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("few", "many"):
        node.create(topic, config=KEYED)
        write(node, topic, 12)
    cleaner = start(node)
    node.clock.advance(16_000)
    assert cleaner.compactions == 2
    write(node, "few", 6)
    write(node, "many", 30)
    caplog.set_level(logging.INFO, logger="tailrace.server")
    node.clock.advance(16_000)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("tailrace")]
    order = [message.split("partition=")[1].split()[0] for message in messages]
    assert order == ["many-0", "few-0"]


def test_keys_that_do_not_fit_the_memory_take_several_passes_of_the_cleaner(node: DataPath) -> None:
    partition = node.create(config=KEYED)
    for number in range(40):
        key = b"%d" % (number % 10)
        record = Record(0, node.clock.now_ms(), key, b"v")
        node.produce("orders", records=bytes(build_batch([record])))
    cleaner = start(node, log_cleaner_dedupe_buffer_size=500)
    node.clock.advance(16_000)
    assert cleaner.compactions > 2
    dirty = partition.log.compactions.first_dirty_offset
    kept = [offset for offset in offsets(node) if offset < dirty]
    assert len(kept) <= 10 + 1


def test_the_cleaner_reads_and_writes_no_faster_than_it_may(node: DataPath) -> None:
    node.create(config=KEYED)
    write(node, count=40)
    size_bytes = node.table.get("orders", 0).log.size_bytes
    cleaner = start(node, log_cleaner_io_max_bytes_per_second=size_bytes / 10)
    node.clock.advance(15_000 + 5_000)
    assert cleaner.compactions == 0
    node.clock.advance(60_000)
    assert cleaner.compactions == 1


def test_appends_and_reads_go_on_between_two_slices_of_the_cleaner() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    partition = node.create(config=KEYED)
    disk.run()
    write_large(node, disk, "orders", 12)
    cleaner = start(node)
    node.clock.advance(15_001)
    disk.run()  # what is to be compacted is on the disk
    node.clock.advance(1_000)
    assert cleaner.compactions == 0, "it waits for its own bytes"
    before = offsets(node)
    answer = node.produce("orders", b"meanwhile")
    disk.run()
    assert answer.produced.base_offset == before[-1] + 1
    for _ in range(20):
        node.clock.advance(1_000)
        disk.run()
    assert cleaner.compactions >= 1
    assert offsets(node)[-1] == before[-1] + 1 == partition.log.log_end_offset - 1


def test_under_page_cache_durability_the_cleaner_flushes_before_it_compacts() -> None:
    node = DataPath("/logs", files=SimulatedDisk(), settings={"log.durability": "page-cache"})
    partition = node.create(config=KEYED)
    write(node)
    assert partition.log.flushed_offset == 0 or partition.log.flushed_offset < partition.log.log_end_offset
    cleaner = start(node)
    node.clock.advance(16_000)
    assert cleaner.compactions == 1
    assert partition.log.flushed_offset >= partition.log.compactions.first_dirty_offset > 0


@pytest.mark.parametrize("end", ["delete", "close", "retain", "stop"])
def test_a_compaction_that_is_ended_by_something_else_leaves_nothing_behind(end: str) -> None:
    disk = DeferredDisk()
    files = SimulatedDisk()
    node = DataPath("/logs", files=files, disk=disk)
    partition = node.create(config=KEYED)
    disk.run()
    write_large(node, disk, "orders", 12)
    cleaner = start(node)
    node.clock.advance(15_001)
    disk.run()
    assert any(name.endswith(".cleaned") for name in files.list_dir("/logs/orders-0"))
    if end == "delete":
        node.table.delete("orders", 0)
    elif end == "retain":
        partition.log.advance_log_start(4)
        partition.apply_retention(node.clock.now_ms())
    else:
        cleaner.stop()
        if end == "close":
            disk.run()
            node.table.close()
    left = [name for name in files.list_dir("/logs") if name.startswith("orders-0")]
    if end == "delete":
        disk.run()
        node.clock.advance(100_000)
        disk.run()
        assert not [name for name in files.list_dir("/logs") if name.startswith("orders-0")]
    else:
        assert left == ["orders-0"]
        assert not [name for name in files.list_dir("/logs/orders-0") if name.endswith((".cleaned", ".swap"))]
        disk.run()
        for _ in range(10):
            node.clock.advance(16_000)
            disk.run()


def test_a_full_disk_is_no_fault_of_a_log_and_the_cleaner_tries_again(
    node: DataPath, files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    partition = node.create(config=KEYED)
    write(node)
    space, files.free_space = files.free_space, 100
    cleaner = start(node)
    node.clock.advance(16_000)
    assert cleaner.compactions == 0
    assert not partition.log.is_offline
    assert "no space" in caplog.text
    files.free_space = space
    node.clock.advance(16_000)
    assert cleaner.compactions == 1


def test_a_log_that_cannot_be_compacted_now_keeps_no_other_from_it(
    node: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = node.create("stuck", config=KEYED)
    node.create("orders", config=KEYED)
    write(node, "stuck", count=24)
    write(node, "orders")
    begin, tries = Compactions.begin, list[int]()

    def begin_unless_stuck(compactions: Compactions, now_ms: int, **options: int) -> object:
        if compactions is stuck.log.compactions:
            tries.append(now_ms)
            raise StorageError("no space for a copy")
        return begin(compactions, now_ms, **options)

    monkeypatch.setattr(Compactions, "begin", begin_unless_stuck)
    cleaner = start(node)
    node.clock.advance(50_000)
    assert cleaner.compactions == 1
    assert len(tries) >= 2, "it is tried again when no other is due"


def test_a_log_that_a_pass_did_not_clean_is_skipped_until_more_can_be_compacted(
    node: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's dirty share is the largest all the while: it must not block the turns of other logs, nor the node."""
    waiting, orders = node.create("waiting", config=KEYED), node.create("orders", config=KEYED)
    for offset in range(2):
        waiting.log.append([stored_batch(offset, value_bytes=200, producer_id=7, is_transactional=True)])
    waiting.log.append([stored_marker(2, producer_id=7, is_commit=True)])
    waiting.sync(lambda: None)
    node.end_turn()
    node.clock.advance(1)
    assert waiting.last_stable_offset == 3
    assert waiting.log.segment_count == 2, "the transaction begins in a segment that is full and ends in another"
    begin, begun = Compactions.begin, list[Compactions]()

    def noted(compactions: Compactions, now_ms: int, **options: int) -> object:
        begun.append(compactions)
        return begin(compactions, now_ms, **options)

    monkeypatch.setattr(Compactions, "begin", noted)
    start(node)
    node.clock.advance(50_000)
    assert begun == [waiting.log.compactions]
    write(node)
    node.clock.advance(50_000)
    assert begun == [waiting.log.compactions, orders.log.compactions]
    waiting.log.append([stored_batch(3, value_bytes=250), stored_batch(4, value_bytes=250)])
    waiting.sync(lambda: None)
    node.end_turn()
    node.clock.advance(50_000)
    assert begun == [waiting.log.compactions, orders.log.compactions, waiting.log.compactions]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_log_that_fails_while_it_waits_for_the_disk_does_not_stop_the_cleaner(is_begun: bool) -> None:
    disk, files = DeferredDisk(), SimulatedDisk()
    node = DataPath("/logs", files=files, disk=disk)
    broken, whole = node.create("broken", config=KEYED), node.create("whole", config=KEYED)
    disk.run()
    write_large(node, disk, "broken", 23)
    write_large(node, disk, "whole", 11)
    cleaner = start(node)
    node.clock.advance(15_001)
    if is_begun:
        disk.run()
    assert [log for log, _ in disk.waiting] == [broken.log]
    files.write_short_at(files.operations + 1, 10)
    files.fail_at(files.operations + 2)  # what was written cannot be cut back
    node.produce("broken", b"torn")
    assert broken.log.is_offline
    for _ in range(20):
        disk.run()
        node.clock.advance(16_000)
    assert cleaner.compactions == 1
    assert whole.log.compactions.first_dirty_offset > 0


def test_the_cleaner_leaves_a_damaged_log_alone(
    node: DataPath, files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    node.create(config=KEYED)
    write(node)
    files.flip_bit("/logs/orders-0/00000000000000000000.log", 70)
    cleaner = start(node)
    node.clock.advance(100_000)
    assert cleaner.compactions == 0
    assert caplog.text.count("compaction-failed") == 1


@pytest.mark.parametrize("at", range(1, 40))
def test_a_disk_that_fails_in_a_compaction_leaves_a_right_log_or_an_offline_one(
    node: DataPath, files: SimulatedDisk, at: int
) -> None:
    partition = node.create(config=KEYED)
    write(node)
    last = offsets(node)[-3:]
    files.fail_at(files.operations + at)
    cleaner = start(node)
    try:
        node.clock.advance(16_000)
    except StorageError:
        return  # a flush failed: the node stops
    files.forget_faults()
    cleaner.stop()
    if partition.log.is_offline:
        with pytest.raises(KafkaError):
            partition.log.flush()
        node = DataPath("/logs", files=files)
        node.create(config=KEYED)
        node.end_turn()
    assert offsets(node)[-3:] == last


def test_offsets_of_groups_are_compacted_too(node: DataPath) -> None:
    partition = node.create("__consumer_offsets", config=KEYED)
    for number in range(20):
        done: list[object] = []
        partition.staging.append_records(
            [(b"group", b"%d" % number * 40)],
            now_ms=node.clock.now_ms(),
            on_done=done.append,
            producer_id=-1,
            producer_epoch=-1,
            verification=UNVERIFIED,
        )
        node.end_turn()
        assert done
    cleaner = start(node)
    node.clock.advance(16_000)
    assert cleaner.compactions == 1
    assert _size(partition) < 20


def _size(partition: Partition) -> int:
    found, offset = 0, 0
    while offset < partition.log.log_end_offset:
        result = partition.log.read(ReadLimits(offset, 1))
        found += sum(len(records_of(chunk)) for chunk in result.records)
        offset = result.next_offset
    return found
