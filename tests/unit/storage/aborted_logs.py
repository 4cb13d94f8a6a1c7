"""Logs with aborted transactions on a simulated disk."""

from tailrace.model.topic_config import TopicConfig
from tailrace.storage import AppendBatch, Log, ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch, stored_marker

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=400, retention_ms=-1, file_delete_delay_ms=0)
FIRST_FILE = f"{DIRECTORY}/00000000000000000000.txnindex"


def opened(disk: SimulatedDisk, config: TopicConfig = CONFIG, *, recovery_point: int = 0, clean: bool = False) -> Log:
    return Log.open(DIRECTORY, files=disk, config=config, now_ms=0, recovery_point=recovery_point, clean=clean)


def data(offset: int, producer_id: int = 7, *, sequence: int = 0, value_bytes: int = 20) -> AppendBatch:
    return stored_batch(
        offset, producer_id=producer_id, base_sequence=sequence, is_transactional=True, value_bytes=value_bytes
    )


def abort(offset: int, producer_id: int = 7) -> AppendBatch:
    return stored_marker(offset, producer_id=producer_id, is_commit=False)


def offsets_of(log: Log) -> list[int]:
    """The base offsets of all batches."""
    found, offset = [], log.log_start_offset
    while (result := log.read(ReadLimits(offset, 1))).size_bytes:
        found.append(result.first_offset)
        offset = result.next_offset
    return found
