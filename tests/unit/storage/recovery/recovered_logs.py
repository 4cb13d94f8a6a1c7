"""Logs on a simulated disk that are opened again, and what is left of their files."""

from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log, ReadLimits
from tailrace.storage.flushed_note import FLUSHED_OFFSET
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
COMPACTED = TopicConfig(cleanup_policy=("compact",))
COUNT = 30
SIZE = len(stored_batch(0, producer_id=4).buffer)


def open_log(disk: SimulatedDisk, config: TopicConfig = CONFIG, **options: bool | int) -> Log:
    return Log.open(DIRECTORY, files=disk, config=config, now_ms=0, **options)  # type: ignore[arg-type]


def fill(log: Log, end: int = COUNT) -> None:
    """Append batches of one record up to this offset."""
    for offset in range(log.log_end_offset, end):
        log.append([stored_batch(offset)])


def path_of(base_offset: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base_offset:020d}{suffix}"


def segments(disk: SimulatedDisk) -> list[int]:
    return [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".log")]


def append_raw(disk: SimulatedDisk, base_offset: int, content: bytes) -> None:
    file = disk.open(path_of(base_offset))
    file.writev([content])
    file.sync()


def forget_note(disk: SimulatedDisk) -> None:
    """Remove the log's own note of its flushed end: then only the checkpoints of the node have it."""
    disk.unlink(f"{DIRECTORY}/{FLUSHED_OFFSET}")


def tree(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list_dir(DIRECTORY)}


def log_with_gaps() -> SimulatedDisk:
    """A disk with a compacted log of the offsets 0, 5 and 9."""
    disk = SimulatedDisk()
    log = open_log(disk, COMPACTED)
    log.append([stored_batch(0), stored_batch(5), stored_batch(9)])
    log.flush()
    return disk


def assert_whole(log: Log) -> None:
    """Assert that the log has every offset below its end."""
    offset = 0
    while offset < log.log_end_offset:
        result = log.read(ReadLimits(offset, 1000))
        assert result.size_bytes, "nothing is missing"
        assert result.first_offset == offset, "nothing is missing"
        offset = result.next_offset
