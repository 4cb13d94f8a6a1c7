"""Reads of a log, and bytes that are damaged under a reader."""

from pathlib import Path

import pytest

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log, OsFiles, ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.small_logs import DIRECTORY, NOW, fields, fill, names, offsets, open_log


def test_a_read_of_a_log_gives_its_batches_byte_for_byte_from_the_batch_that_holds_the_offset() -> None:
    log = open_log(SimulatedDisk())
    made = fill(log, 30, count=3)
    for offset in range(90):
        result = log.read(ReadLimits(offset, 1))
        batch = made[offset // 3]
        assert b"".join(result.records) == batch.buffer
        assert (result.first_offset, result.next_offset) == (batch.header.base_offset, batch.header.end_offset)
        assert result.size_bytes == len(batch.buffer)


def test_a_read_of_a_log_takes_whole_batches_up_to_its_limits() -> None:
    log = open_log(SimulatedDisk(), TopicConfig(index_interval_bytes=200))
    size = len(fill(log, 50)[0].buffer)
    assert offsets(log.read(ReadLimits(10, 3 * size)).records) == [10, 11, 12]
    assert offsets(log.read(ReadLimits(10, 4 * size - 1)).records) == [10, 11, 12]
    assert offsets(log.read(ReadLimits(10, 10**6), 14).records) == [10, 11, 12, 13]
    assert offsets(log.read(ReadLimits(10, 10**6)).records) == list(range(10, 50))
    assert log.read(ReadLimits(50, 10**6)).records == []
    assert log.read(ReadLimits(20, 10**6), 20).records == []


def test_a_read_of_a_log_gives_a_first_batch_that_is_too_large_unless_that_is_not_wanted() -> None:
    log = open_log(SimulatedDisk())
    fill(log, 3)
    for max_bytes in (0, 1, 30, 61, 80):
        assert offsets(log.read(ReadLimits(1, max_bytes)).records) == [1]
        end_position = log.read(ReadLimits(1, 1)).end_position
        result = log.read(ReadLimits(1, max_bytes, min_one_message=False))
        assert fields(result) == ([], 0, 1, 1, end_position // 2)


def test_a_read_of_a_log_gives_no_batch_that_crosses_the_end_offset() -> None:
    log = open_log(SimulatedDisk())
    fill(log, 2, count=4)
    assert log.read(ReadLimits(5, 1000), 6).records == []
    assert offsets(log.read(ReadLimits(1, 1000), 6).records) == [0]


@pytest.mark.parametrize("offset", [-1, 4, 11])
def test_an_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    log = open_log(SimulatedDisk())
    fill(log, 10)
    log.advance_log_start(5)
    with pytest.raises(KafkaError) as caught:
        log.read(ReadLimits(offset, 100))
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_bytes_of_a_read_of_a_log_belong_to_the_reader(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 20)
    held = log.read(ReadLimits(0, 400))
    before = [bytes(chunk) for chunk in held.records]
    log.truncate_to(1)
    log.append([stored_batch(1, text="other")])
    assert [bytes(chunk) for chunk in held.records] == before


def test_a_read_of_a_log_reports_a_damaged_batch_with_file_and_position(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    size = len(fill(log, 5)[0].buffer)
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 2 * size + 8, 7)
    with pytest.raises(StorageError, match=rf"{0:020d}\.log at position {2 * size}"):
        log.read(ReadLimits(2, 1000))
    with pytest.raises(StorageError, match="offline"):
        log.check_online()


@pytest.mark.parametrize("max_bytes", [1, 300, 10**6])
@pytest.mark.parametrize("is_hinted", [False, True])
def test_a_read_of_a_log_serves_no_flipped_bit_outside_the_checksum(is_hinted: bool, max_bytes: int) -> None:
    """Base offset, length, leader epoch and magic: a reader gets what was written, or the error of a damaged log."""
    for bit in range(8 * 17):
        for batch in (0, 3, 7):
            disk = SimulatedDisk()
            log = open_log(disk)
            written = []
            for number in range(8):
                stored = stored_batch(log.log_end_offset, 1 + number % 3, leader_epoch=number // 4)
                log.append([stored])
                written.append(bytes(stored.buffer))
            log.close()
            log = open_log(disk, clean=True)
            if is_hinted:
                offset = 0
                while offset < log.log_end_offset:
                    offset = log.read(ReadLimits(offset, max_bytes)).next_offset
            position = sum(map(len, written[:batch]))
            disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", position + bit // 8, bit % 8)
            for offset in range(log.log_end_offset):
                try:
                    served = b"".join(map(bytes, log.read(ReadLimits(offset, max_bytes)).records))
                except StorageError:
                    continue
                assert served in b"".join(written), f"bit {bit} of batch {batch} is served from offset {offset}"
            assert log.is_offline


def test_a_wrong_offset_index_misleads_no_reader_of_the_log(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 40)
    log.close()
    for base in names(disk, ".index"):
        path = f"{DIRECTORY}/{base:020d}.index"
        for position in range(7, disk.size_of(path), 8):
            disk.flip_bit(path, position, 3)
    again = open_log(disk, clean=True)
    assert again.log_end_offset == 40
    for offset in range(40):
        assert offsets(again.read(ReadLimits(offset, 1)).records) == [offset]
        assert offsets(again.read(ReadLimits(offset, 10**6)).records)[0] == offset


def test_a_small_read_of_a_log_does_not_hold_the_large_memory_that_was_read(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path / "orders-0"), files=OsFiles(), config=TopicConfig(), now_ms=NOW)
    for value_bytes in (20_000, 900_000):
        log.append([stored_batch(log.log_end_offset, value_bytes=value_bytes)])
    (records,) = log.read(ReadLimits(0, 900_000)).records
    assert offsets([records]) == [0]
    assert not isinstance(records, memoryview) or memoryview(records.obj).nbytes < 100_000
