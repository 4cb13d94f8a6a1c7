"""Batches of the metadata log: prepared from a command in steps (decided, tried on the image, encoded), and read back
in steps when they are committed (pure but for the reads of the log)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.metadata.records import MetadataRecord, encode_record
from tailrace.metadata.stored_partitions import RecordReader, StoredRecord
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records, record_size_bound
from tailrace.raft.rpc import SnapshotId
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import MAX_BATCH_BYTES, METADATA_PARTITION

_BATCH_HEADROOM: Final = 256


class Prepared(NamedTuple):
    """A decision that can be appended at once: the end of the log is the offset that it was made for."""

    response: ControllerResponse
    image: ClusterImage
    delta: ImageDelta
    values: tuple[bytes, ...]
    """Empty for a decision that changes nothing."""
    size_bytes: int


def prepared(machine: ControllerMachine, log: QuorumLog, command: ControllerCommand, now_ms: int) -> Steps[Prepared]:
    """Decide on this command. The machine decides on no other one meanwhile.

    Raises KafkaError if it is refused as a whole: POLICY_VIOLATION if its records do not fit into a batch.
    """
    offset = log.end_offset
    decision = yield from machine.deciding(command, now_ms, next_offset=offset)
    if not decision.records:
        return Prepared(decision.response, machine.image, ImageDelta(), (), 0)
    while True:
        image, delta = yield from machine.trial(decision.records)
        values = yield from _encoded(decision.records)
        if log.end_offset == offset:
            break
        # A control record was appended meanwhile: those do not wait for commands.
        offset = log.end_offset
        decision = machine.at_offset(decision, offset)
    size_bytes = _BATCH_HEADROOM + sum(record_size_bound(None, value) for value in values)
    if size_bytes > MAX_BATCH_BYTES:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"this request makes a batch of {size_bytes} bytes of metadata, more than {MAX_BATCH_BYTES};"
            " ask in several",
        )
    return Prepared(decision.response, image, delta, values, size_bytes)


def _encoded(records: Sequence[MetadataRecord]) -> Steps[tuple[bytes, ...]]:
    values = []
    for index, record in enumerate(records, 1):
        values.append(encode_record(record))
        if index % SLICE == 0:
            yield
    return tuple(values)


SLICE_BYTES: Final = 64 * 1024
"""The bytes of one read; one batch may be more."""


class CommittedRecords(NamedTuple):
    """The records of some committed batches."""

    records: list[StoredRecord]
    end: SnapshotId
    """Their end offset, and the epoch of the last one."""
    appended_ms: int
    size_bytes: int


def read_committed(log: QuorumLog, offset: int, high_watermark: int, reader: RecordReader) -> Steps[CommittedRecords]:
    """The next batches from this offset on. Raises CorruptRecords, StorageError, and what `decode_record` raises."""
    buffers = log.read(offset, max_bytes=SLICE_BYTES, end_offset=high_watermark)
    records: list[StoredRecord] = []
    last = None
    for buffer in buffers:
        for position, header in iter_batches(buffer):
            if header.end_offset <= offset:
                continue
            last = header
            if not header.is_control:
                records += yield from _decoded(buffer, position, reader)
    if last is None:
        raise CorruptRecords(f"{METADATA_PARTITION}: nothing can be read at {offset}, which is committed")
    end = SnapshotId(last.end_offset, last.partition_leader_epoch)
    return CommittedRecords(records, end, last.max_timestamp, sum(map(len, buffers)))


def _decoded(buffer: Buffer, position: int, reader: RecordReader) -> Steps[list[StoredRecord]]:
    decoded = []
    for index, record in enumerate(read_records(buffer, position), 1):
        if record.value is None:
            raise CorruptRecords(f"{METADATA_PARTITION}: the record at {record.offset} has no value")
        decoded.append(reader.read(record.value))
        if index % SLICE == 0:
            yield
    return decoded
