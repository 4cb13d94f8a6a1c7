"""Record batches for tests, in the form of a log."""

from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.control import ControlType, EndTransactionMarker, build_marker
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch

FIRST_TIMESTAMP_MS = 1_700_000_000_000


def stored_batch(
    base_offset: int,
    count: int = 1,
    *,
    leader_epoch: int = 0,
    value_bytes: int = 20,
    text: str = "",
    first_timestamp: int | None = None,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    is_transactional: bool = False,
    is_control: bool = False,
) -> AppendBatch:
    """A batch of `count` records from this offset on, with timestamps 1 ms apart; each value has its offset.

    `text` goes into the values, so that two batches at one offset differ.
    """
    start = FIRST_TIMESTAMP_MS + base_offset if first_timestamp is None else first_timestamp
    records = [
        Record(0, start + at, b"key", f"{text}{base_offset + at}".encode().ljust(value_bytes, b"."))
        for at in range(count)
    ]
    has_producer = producer_id >= 0
    buffer = build_batch(
        records,
        codec=codec,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch if has_producer else -1,
        base_sequence=base_sequence if has_producer and not is_control else -1,
        is_transactional=is_transactional,
        is_control=is_control,
    )
    return AppendBatch(bytes(buffer), read_header(buffer))


def stored_marker(
    base_offset: int,
    *,
    producer_id: int,
    producer_epoch: int = 0,
    is_commit: bool,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
    timestamp: int | None = None,
) -> AppendBatch:
    """The end of a producer's transaction, at this offset."""
    buffer = build_marker(
        EndTransactionMarker(ControlType.COMMIT if is_commit else ControlType.ABORT, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timestamp=FIRST_TIMESTAMP_MS + base_offset if timestamp is None else timestamp,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
    return AppendBatch(bytes(buffer), read_header(buffer))
