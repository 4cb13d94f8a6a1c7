"""Logs of small segments whose records have keys, and their key indexes."""

from tailrace.model.key_ranges import KeyRange, hash_of, of_slots, slot_of
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch, Log
from tailrace.testing.disk import SimulatedDisk
from testkit.records.key_ends import end_by_index

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0)
A, B = (of_slots(slot_of(hash_of(key, 0)), slot_of(hash_of(key, 0))) for key in (b"a", b"b"))
NEITHER = of_slots(99, 99)
BATCH_BYTES = 100
"""The size of a batch with one record: ten such batches fill a segment."""


def open_log(disk: SimulatedDisk, config: TopicConfig = CONFIG, *, recovery_point: int = 0, clean: bool = False) -> Log:
    return Log.open(DIRECTORY, files=disk, config=config, now_ms=0, recovery_point=recovery_point, clean=clean)


def append(log: Log, keys: bytes, *, value_bytes: int = BATCH_BYTES - 61 - 8) -> None:
    """A batch for each key, a byte."""
    for key in keys:
        record = Record(0, 0, bytes([key]), bytes(value_bytes))
        batch = bytes(build_batch([record], base_offset=log.log_end_offset, leader_epoch=0))
        log.append([AppendBatch(batch, read_header(batch))])


def end_of(log: Log, wanted: KeyRange, end: int | None = None) -> int:
    """The end, after all steps that it takes."""
    return end_by_index(log, wanted, log.log_end_offset if end is None else end)


def files_of(disk: SimulatedDisk) -> list[int]:
    """The segments with a key index, by their base offsets."""
    return [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".khx")]


def indexed_log(disk: SimulatedDisk) -> Log:
    """A log of three segments, all of them indexed; the sealed ones have files."""
    log = open_log(disk)
    append(log, b"ab" * 12)
    log.flush()
    assert end_of(log, NEITHER) == 0
    while log.keys.index_on(lambda: 0):
        pass
    assert [segment.base_offset for segment in log.segments.all] == [0, 10, 20]
    log.keys.index_on(lambda: 0)
    assert files_of(disk) == [0, 10]
    return log
