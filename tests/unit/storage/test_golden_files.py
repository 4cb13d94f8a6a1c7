"""Every file of a log directory, byte for byte as it has been from the first day: tests/golden/storage_files.txt.

Kafka 4.1's own DumpLogSegments has read files made this way. A change here is a change of the format on disk. To make
one on purpose, run this file as a program and review the diff.
"""

from pathlib import Path

from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import AppendBatch, Log, checkpoints
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch, stored_marker

GOLDEN = Path(__file__).parents[2] / "golden" / "storage_files.txt"
ROOT = "/data"


def files_of_a_log() -> dict[str, bytes]:
    """Two segments, two producers, one open transaction, three epochs, closed cleanly."""
    disk = SimulatedDisk()
    config = TopicConfig(segment_bytes=700, index_interval_bytes=200)
    log = Log.open(f"{ROOT}/orders-0", files=disk, config=config, now_ms=0)
    for number in range(8):
        producer_id = 7 + number % 2
        batch = stored_batch(
            3 * number,
            3,
            leader_epoch=number // 3,
            producer_id=producer_id,
            base_sequence=number // 2 * 3,
            is_transactional=number == 7,
        )
        log.append([batch])
    log.close()
    _write_transactions(disk)
    offsets = {TopicPartition("orders", 0): log.flushed_offset, TopicPartition("a.b", 12): 0}
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS):
        checkpoints.write_offsets(disk, ROOT, name, offsets)
    topic_id = TopicId(bytes(range(16)))
    checkpoints.write_partition_metadata(disk, f"{ROOT}/orders-0", topic_id)
    checkpoints.write_meta_properties(
        disk, ROOT, checkpoints.MetaProperties(cluster_id="Kd3mJ0qTQ1CzZb4v5x6y7w", node_id=1, directory_id=topic_id)
    )
    checkpoints.write_clean_shutdown(disk, ROOT, broker_epoch=5)
    logs = ("orders-0", "payments-0")
    paths = [f"{ROOT}/{name}" for name in disk.list_dir(ROOT) if name not in logs]
    paths += [f"{ROOT}/{log_name}/{name}" for log_name in logs for name in disk.list_dir(f"{ROOT}/{log_name}")]
    return {path.removeprefix(f"{ROOT}/"): disk.read_bytes(path) for path in paths}


def _write_transactions(disk: SimulatedDisk) -> None:
    """Two segments: a committed transaction, two aborted, the longer over both, and an open transaction."""
    log = Log.open(f"{ROOT}/payments-0", files=disk, config=TopicConfig(segment_bytes=500), now_ms=0)
    sequences = {7: 0, 8: 0}

    def write(producer_id: int) -> AppendBatch:
        sequences[producer_id] += 1
        sequence = sequences[producer_id] - 1
        return stored_batch(log.log_end_offset, producer_id=producer_id, base_sequence=sequence, is_transactional=True)

    for producer_id, ending in (
        (7, "w"),
        (7, "c"),
        (8, "w"),
        (7, "w"),
        (7, "a"),
        (7, "w"),
        (8, "w"),
        (8, "a"),
        (8, "w"),
    ):
        if ending == "w":
            log.append([write(producer_id)])
        else:
            marker = stored_marker(
                log.log_end_offset, producer_id=producer_id, is_commit=ending == "c", coordinator_epoch=3
            )
            log.append([marker])
    log.close()


def as_text(files: dict[str, bytes]) -> str:
    lines = []
    for name, content in sorted(files.items()):
        lines.append(f"{name} {len(content)} bytes")
        lines += [f"  {content[at : at + 48].hex()}" for at in range(0, len(content), 48)]
    return "\n".join(lines) + "\n"


def test_files_are_what_they_were_on_the_first_day() -> None:
    assert as_text(files_of_a_log()) == GOLDEN.read_text()


if __name__ == "__main__":
    GOLDEN.write_text(as_text(files_of_a_log()))
