"""The bytes of a snapshot of a replicated log (KIP-630): Kafka's names and Kafka's batches, checked to the last byte.

A snapshot is a run of batches v2 that has nothing to do with the log's own. Rules, which `walk` checks:

1. The first batch is a control batch that begins with SnapshotHeaderRecord; records that name the voters may follow.
   The last batch is a control batch with SnapshotFooterRecord. The batches between hold data.
2. Offsets are contiguous from 0, and every batch has the snapshot's epoch as its leader epoch.
3. The batches tile the file: nothing is between them, nothing behind the footer, and none is larger than Kafka writes.
4. All checksums are right. The checksums do not cover base offset, length, leader epoch and magic: the other rules do.

So a file in which a single byte has changed is no snapshot.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader, check_crc, read_header
from tailrace.protocol.records.control import (
    CheckpointedLog,
    ControlType,
    ControlValue,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    build_control_batch,
    control_type,
    decode_control,
)
from tailrace.protocol.records.record import read_records

SNAPSHOT_SUFFIX: Final = ".checkpoint"
PART_SUFFIX: Final = ".checkpoint.part"
"""The suffix of a file that is not whole, or not known to be whole: it is never read as a snapshot."""
DELETED_SUFFIX: Final = ".checkpoint.deleted"
"""Kafka's suffix for a snapshot that is being deleted; Tailrace makes no such file."""
MAX_BATCH_BYTES: Final = 8 << 20
"""Kafka's limit for a batch of a snapshot."""
MAX_CHECKPOINT_BATCH_BYTES: Final = 64 << 20
"""The limit for a batch of a coordinator's checkpoint: the record of a large group is one batch."""

_OFFSET_DIGITS: Final = 20
_EPOCH_DIGITS: Final = 10
_READ_BYTES: Final = 1 << 20

ReadAt = Callable[[int, int], bytes]
"""Reads up to this many bytes from a position of the file, as `storage.file_system.File.pread`."""
HeaderControl = KRaftVersionRecord | VotersRecord
"""The records that may stand in the first batch behind its header record (KIP-853)."""


class SnapshotHeader(NamedTuple):
    """The content of the first batch."""

    last_contained_ms: int
    """The time when the last record before the snapshot's end was appended, ms since 1970."""
    control: tuple[HeaderControl, ...] = ()
    log: CheckpointedLog | None = None
    """The coordinator's log that the checkpoint is of; None in a snapshot of the metadata."""


class CheckpointRecord(NamedTuple):
    """A record of a checkpoint: a log's record with its key, and the producer if its transaction is open; -1: no
    producer."""

    key: bytes | None
    value: bytes | None
    producer_id: int = -1
    producer_epoch: int = -1


class SnapshotBatch(NamedTuple):
    """A batch that has passed all checks."""

    position: int
    header: BatchHeader
    content: memoryview


def snapshot_name(snapshot_id: OffsetAndEpoch) -> str:
    """The name without suffix: the end offset in 20 digits, the epoch in 10."""
    return f"{snapshot_id.offset:0{_OFFSET_DIGITS}d}-{snapshot_id.epoch:0{_EPOCH_DIGITS}d}"


def parse_snapshot_name(name: str) -> OffsetAndEpoch | None:
    """The id of the snapshot of this file name; None for a name of another kind."""
    offset, dash, epoch = name.removesuffix(SNAPSHOT_SUFFIX).partition("-")
    is_one = name.endswith(SNAPSHOT_SUFFIX) and dash and len(offset) == _OFFSET_DIGITS and len(epoch) == _EPOCH_DIGITS
    if not is_one or not (offset + epoch).isascii() or not (offset + epoch).isdecimal():
        return None
    return OffsetAndEpoch(int(offset), LeaderEpoch(int(epoch)))


def header_batch(header: SnapshotHeader, *, leader_epoch: int) -> bytearray:
    """The first batch."""
    values: list[ControlValue] = [
        SnapshotHeaderRecord(last_contained_log_timestamp=header.last_contained_ms, checkpointed_log=header.log)
    ]
    values += header.control
    return build_control_batch(values, timestamp=header.last_contained_ms, leader_epoch=leader_epoch)


def footer_batch(*, timestamp: int, base_offset: int, leader_epoch: int) -> bytearray:
    """The last batch."""
    footer = [SnapshotFooterRecord()]
    return build_control_batch(footer, timestamp=timestamp, base_offset=base_offset, leader_epoch=leader_epoch)


def walk(read_at: ReadAt, *, size_bytes: int, leader_epoch: int, path: str) -> Iterator[SnapshotBatch]:
    """Every batch of a snapshot, checked, header and footer too; memory holds at most a chunk of batches.

    Raises CorruptRecords that names file and position at the first fault. Only a read to the end shows that the
    snapshot is whole.
    """
    position, end_offset, is_over = 0, 0, False
    try:
        for batch in _whole_batches(read_at, size_bytes):
            position = batch.position
            if is_over:
                raise CorruptRecords("bytes follow the footer")
            _check_place(batch.header, end_offset=end_offset, leader_epoch=leader_epoch)
            is_over = _is_footer(batch)
            yield batch
            position += batch.header.size_bytes
            end_offset = batch.header.end_offset
        if not is_over:
            raise CorruptRecords("the footer is missing: the snapshot is not whole")
    except CorruptRecords as fault:
        raise CorruptRecords(f"{path}: after position {position}: {fault.detail}") from None


def _whole_batches(read_at: ReadAt, size_bytes: int) -> Iterator[SnapshotBatch]:
    """The batches that tile a file of this size, their checksums right."""
    position = 0
    while position < size_bytes:
        chunk = read_at(min(_READ_BYTES, size_bytes - position), position)
        at = 0
        while header := _header_at(chunk, at, size_bytes - position - at):
            if at + header.size_bytes > len(chunk):
                if at:
                    break
                chunk = read_at(header.size_bytes, position)
            check_crc(chunk, at, header)
            yield SnapshotBatch(position + at, header, memoryview(chunk)[at : at + header.size_bytes])
            at += header.size_bytes
        if not at:
            raise CorruptRecords("the file is shorter than it was")
        position += at


def _header_at(chunk: bytes, at: int, left: int) -> BatchHeader | None:
    """The header at this place of a chunk; None if the chunk has only a part of the header. `left` bytes of the file
    follow."""
    if not left:
        return None
    if left < HEADER_SIZE:
        raise CorruptRecords("the file ends inside a batch header")
    if len(chunk) - at < HEADER_SIZE:
        return None
    header = read_header(chunk, at)
    if header.size_bytes > left:
        raise CorruptRecords("the file ends inside a batch")
    if header.size_bytes > MAX_CHECKPOINT_BATCH_BYTES:
        raise CorruptRecords(f"a batch of {header.size_bytes} bytes; the largest are {MAX_CHECKPOINT_BATCH_BYTES}")
    return header


def _check_place(header: BatchHeader, *, end_offset: int, leader_epoch: int) -> None:
    if header.base_offset != end_offset:
        raise CorruptRecords(f"offset {header.base_offset} stands where {end_offset} should")
    if header.partition_leader_epoch != leader_epoch:
        raise CorruptRecords(f"leader epoch {header.partition_leader_epoch} in a snapshot of epoch {leader_epoch}")
    if header.records_count != header.last_offset_delta + 1:
        raise CorruptRecords(f"{header.records_count} records for {header.last_offset_delta + 1} offsets")
    if header.base_offset == 0 and not header.is_control:
        raise CorruptRecords("the first batch is no header")


def _is_footer(batch: SnapshotBatch) -> bool:
    """Whether this is the footer. Raises CorruptRecords for a misplaced control batch."""
    if not batch.header.is_control:
        return False
    if batch.header.base_offset == 0:
        read_snapshot_header(batch.content)
        return False
    kinds = [control_type(record.key) for record in read_records(batch.content)]
    if kinds != [ControlType.SNAPSHOT_FOOTER]:
        raise CorruptRecords("a control batch between header and footer")
    return True


def read_snapshot_header(content: memoryview) -> SnapshotHeader:
    """The content of the first batch of a snapshot. Raises CorruptRecords if the batch is no header."""
    first, *others = read_records(content)
    value = decode_control(first.key, first.value)
    if not isinstance(value, SnapshotHeaderRecord):
        raise CorruptRecords("the first record is no SnapshotHeaderRecord")
    control = _header_control([decode_control(record.key, record.value) for record in others])
    return SnapshotHeader(value.last_contained_log_timestamp, control, value.checkpointed_log)


def _header_control(values: Sequence[ControlValue | None]) -> tuple[HeaderControl, ...]:
    control: list[HeaderControl] = []
    for value in values:
        if isinstance(value, KRaftVersionRecord | VotersRecord):
            if isinstance(value, VotersRecord) and len({voter.voter_id for voter in value.voters}) < len(value.voters):
                raise CorruptRecords("the header names a voter twice")
            control.append(value)
        elif value is not None:
            raise CorruptRecords(f"a {type(value).__name__} beside the header")
    return tuple(control)
