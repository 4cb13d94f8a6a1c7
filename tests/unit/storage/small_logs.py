"""Logs of small segments on a simulated disk."""

from collections.abc import Iterable

from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.storage import AppendBatch, Log, ReadResult
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch

DIRECTORY = "/data/orders-0"
SMALL = TopicConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
NOW = FIRST_TIMESTAMP_MS


def open_log(disk: SimulatedDisk, config: TopicConfig = SMALL, *, recovery_point: int = 0, clean: bool = False) -> Log:
    return Log.open(DIRECTORY, files=disk, config=config, now_ms=NOW, recovery_point=recovery_point, clean=clean)


def fill(log: Log, batches: int, count: int = 1) -> list[AppendBatch]:
    made = []
    for _ in range(batches):
        made.append(stored_batch(log.log_end_offset, count))
        log.append(made[-1:])
    return made


def offsets(chunks: Iterable[bytes | bytearray | memoryview]) -> list[int]:
    return [header.base_offset for chunk in chunks for _, header in iter_batches(chunk)]


def names(disk: SimulatedDisk, suffix: str) -> list[int]:
    return [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(suffix)]


def fields(result: ReadResult) -> tuple[object, ...]:
    """The fields of a result."""
    return result.records, result.size_bytes, result.first_offset, result.next_offset, result.end_position
