"""The committed state, read in steps: a snapshot, and the batches of the log behind it."""

from typing import Final, NamedTuple

from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.snapshot_image import SnapshotLoader
from tailrace.metadata.stored_partitions import RecordReader, StoredRecord
from tailrace.model.errors import CorruptRecords
from tailrace.model.partitions import METADATA_PARTITION
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.raft.rpc import SnapshotId
from tailrace.server.quorum.log import QuorumLog


class SnapshotLoading:
    """Reads one snapshot, once. Raises CorruptRecords, StorageError, and what `SnapshotLoader` raises."""

    def __init__(self, log: QuorumLog, snapshot_id: SnapshotId) -> None:
        self.id = snapshot_id
        # The file is opened at once, since the file of a snapshot that is being read is not removed.
        self._reader = log.open_snapshot(snapshot_id)
        self._loader = SnapshotLoader()
        self._is_closed = False

    @property
    def records_count(self) -> int:
        return self._loader.records_count

    def steps(self) -> Steps[bool]:
        """Read the snapshot in steps; returns whether it was read to its end, and not closed before."""
        for batch in self._reader.batches():
            yield from self._loader.steps(batch)
            yield
            if self._is_closed:
                return False
        return True

    def image(self) -> ClusterImage:
        """The image in the snapshot, which has been read to its end."""
        return self._loader.image()

    def close(self) -> None:
        """Close the snapshot's file: it was read, or is not needed any more."""
        self._is_closed = True
        self._reader.close()


SLICE_BYTES: Final = 64 * 1024
"""The bytes of one read; a single batch may have more."""


class CommittedRecords(NamedTuple):
    """The records of some committed batches."""

    records: list[StoredRecord]
    end: SnapshotId
    """The end offset of the records, and the epoch of the last record."""
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
