"""A look through a log at rest finds what has changed in it, and what it finds in an index is mended."""

import errno

import pytest

from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log, Scrub
from tailrace.storage.segment_files.index import OffsetIndex
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from testkit.records.compaction import compact

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
COUNT = 30


@pytest.fixture
def log(disk: SimulatedDisk) -> Log:
    """30 batches in several segments and three leader epochs."""
    return filled(disk, CONFIG)


def filled(disk: SimulatedDisk, config: TopicConfig) -> Log:
    log = Log.open(DIRECTORY, files=disk, config=config, now_ms=0)
    for offset in range(COUNT):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset, leader_epoch=offset // 12)])
    log.flush()
    return log


def scrubbed(log: Log, *, max_bytes: int = 150) -> Scrub:
    scrub = log.begin_scrub(mends=True)
    while (part := scrub.next_slice(max_bytes=max_bytes)) is not None:
        part.run()
        scrub.finish_slice(part)
    return scrub


def files_of(disk: SimulatedDisk, suffix: str) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.list_dir(DIRECTORY) if name.endswith(suffix)]


@pytest.mark.parametrize("max_bytes", [1, 150, 500, 10**6])
def test_a_log_that_is_whole_is_read_to_its_end(log: Log, max_bytes: int) -> None:
    scrub = scrubbed(log, max_bytes=max_bytes)
    assert (scrub.bytes_read, scrub.indexes_rebuilt) == (log.size_bytes, 0)
    assert not log.is_offline


def test_every_flipped_bit_is_found() -> None:
    size = len(stored_batch(0, producer_id=4).buffer)
    for bit in range(8 * size):
        disk = SimulatedDisk()
        log = filled(disk, CONFIG)
        path = files_of(disk, ".log")[bit % 3]
        disk.flip_bit(path, size * (bit % 5) + bit // 8, bit % 8)
        scrubbed(log)
        assert log.is_offline, f"bit {bit}"


def test_a_scrub_does_not_read_what_is_not_flushed(disk: SimulatedDisk, log: Log) -> None:
    size_bytes = log.size_bytes
    log.append([stored_batch(COUNT, leader_epoch=2)])
    path = files_of(disk, ".log")[-1]
    disk.flip_bit(path, disk.size_of(path) - 1)
    assert scrubbed(log).bytes_read == size_bytes
    assert not log.is_offline


def test_a_file_that_has_become_shorter_is_found(disk: SimulatedDisk, log: Log) -> None:
    path = files_of(disk, ".log")[1]
    disk.open(path).truncate(disk.size_of(path) - 100)
    scrubbed(log)
    assert log.is_offline


def test_a_file_that_cannot_be_read_is_damaged(disk: SimulatedDisk, log: Log) -> None:
    disk.fail_reads_of(files_of(disk, ".log")[1])
    scrubbed(log)
    assert log.is_offline


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_wrong_index_is_made_anew(suffix: str) -> None:
    for bit in range(8 * 8):
        disk = SimulatedDisk()
        log = filled(disk, CONFIG)
        path = files_of(disk, suffix)[1]
        good = disk.read_bytes(path)
        disk.flip_bit(path, bit // 8, bit % 8)
        scrub = scrubbed(log)
        assert (scrub.indexes_rebuilt, log.is_offline) == (1, False), f"bit {bit}"
        assert disk.read_bytes(path) == good
        assert scrubbed(log).indexes_rebuilt == 0
        log.flush()


def test_the_indexes_of_a_sealed_segment_are_those_that_the_log_has_written(disk: SimulatedDisk, log: Log) -> None:
    for path in files_of(disk, "index"):
        disk.unlink(path)
    good = SimulatedDisk()
    filled(good, CONFIG)
    assert scrubbed(log).indexes_rebuilt == len(files_of(disk, ".log")) - 1
    for path in files_of(good, "index"):
        assert disk.read_bytes(path) == good.read_bytes(path)
    assert OffsetIndex.from_bytes(disk.read_bytes(files_of(disk, ".index")[0]), log_size_bytes=1000) is not None


def test_a_truncation_between_two_slices_is_no_damage(log: Log) -> None:
    scrub = log.begin_scrub(mends=True)
    while (part := scrub.next_slice(max_bytes=150)) is not None:
        if log.log_end_offset == COUNT and scrub.bytes_read > 900:
            log.truncate_to(5)
            log.append([stored_batch(5, leader_epoch=7)])
            log.flush()
        part.run()
        scrub.finish_slice(part)
    assert not log.is_offline
    assert log.log_end_offset == 6


@pytest.mark.parametrize("cut_at", range(1, COUNT))
def test_a_truncation_while_no_slice_is_under_way_is_no_damage(disk: SimulatedDisk, cut_at: int) -> None:
    """The log has grown past the place of the scrub again, with batches of other sizes."""
    log, is_cut = filled(disk, CONFIG), False
    scrub = log.begin_scrub(mends=True)
    while (part := scrub.next_slice(max_bytes=150)) is not None:
        part.run()
        scrub.finish_slice(part)
        if not is_cut and scrub.bytes_read > 1000:
            is_cut = True
            log.truncate_to(cut_at)
            while log.log_end_offset < 2 * COUNT:
                log.append([stored_batch(log.log_end_offset, 3, leader_epoch=7)])
            log.flush()
    assert is_cut
    assert not log.is_offline, log.failure


def test_an_index_that_cannot_be_read_is_made_anew(disk: SimulatedDisk, log: Log) -> None:
    path = files_of(disk, ".index")[1]
    good = disk.read_bytes(path)
    disk.fail_reads_of(path)
    assert scrubbed(log).indexes_rebuilt == 1
    assert not log.is_offline
    assert disk.read_bytes(path) == good


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_a_shortage_of_descriptors_is_no_damage(disk: SimulatedDisk, log: Log, suffix: str) -> None:
    disk.fail_reads_of(files_of(disk, suffix)[1], errno.EMFILE)
    scrub = scrubbed(log)
    assert not log.is_offline
    assert "Too many open files" in scrub.failure


def test_a_compaction_between_two_slices_is_no_damage() -> None:
    disk = SimulatedDisk()
    config = TopicConfig(
        segment_bytes=1000, index_interval_bytes=200, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0
    )
    log = filled(disk, config)
    for steps in range(12):
        scrub = log.begin_scrub(mends=True)
        for _ in range(steps):
            part = scrub.next_slice(max_bytes=300)
            if part is None:
                break
            if not steps % 3:
                compact(log, 10**15, end_offset=log.log_end_offset)
            part.run()
            scrub.finish_slice(part)
        compact(log, 10**15, end_offset=log.log_end_offset)
        log.append([stored_batch(log.log_end_offset, 3, leader_epoch=3)])
        log.flush()
        while (part := scrub.next_slice(max_bytes=300)) is not None:
            part.run()
            scrub.finish_slice(part)
        assert not log.is_offline


def test_a_slice_is_read_without_its_log_which_may_retire_the_segment_meanwhile(disk: SimulatedDisk) -> None:
    log = filled(disk, TopicConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1, retention_bytes=0))
    scrub = log.begin_scrub(mends=True)
    part = scrub.next_slice(max_bytes=300)
    assert part is not None
    log.retention.apply(0, log.log_end_offset)
    part.run()
    scrub.finish_slice(part)
    assert scrubbed(log).bytes_read == log.size_bytes
    assert not log.is_offline
