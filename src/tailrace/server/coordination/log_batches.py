"""The committed records of a coordinator partition, from its log and from the checkpoint beside the log."""

import logging
from collections.abc import Generator
from typing import Final, Protocol

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.protocol.records.batch import BatchHeader, check_crc, iter_batches
from tailrace.protocol.records.control import CheckpointedLog, EndTransactionMarker, read_marker
from tailrace.protocol.records.record import Record, read_records
from tailrace.protocol.schema import Buffer
from tailrace.replication.outcomes import READ_UNCOMMITTED, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.storage import ReadLimits
from tailrace.storage.log_checkpoint import FORMAT_VERSION, CheckpointReader

_logger = logging.getLogger("tailrace.server")


class Receiver(Protocol):
    """Gets the records and markers of a log, in order."""

    def on_record(self, record: Record, producer_id: int, producer_epoch: int) -> None:
        """Take a record, with the producer in whose transaction it was written; -1: outside of transactions. May raise
        CorruptRecords."""
        ...

    def on_marker(self, producer_id: int, marker: EndTransactionMarker) -> None:
        """Take the end of a producer's transaction."""
        ...


class CommittedBatches:
    """A reading of the log, and its position."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._partition = partition
        self.offset = offset
        """The offset of the next record."""
        self.max_timestamp = -1
        """The timestamp of the last batch that was read, in ms since 1970."""

    def read(self, max_bytes: int, receiver: Receiver) -> None:
        """Pass the next records on, if there are committed records. Raises KafkaError; damage takes this replica
        offline."""
        read = self._read(max_bytes)
        for position, header in iter_batches(read.records):
            _deliver(read.records, position, header, receiver, from_offset=self.offset)
            self.offset, self.max_timestamp = header.end_offset, header.max_timestamp
        if not read.size_bytes and self.offset < read.high_watermark and self._ends_in_a_gap():
            self.offset = min(read.high_watermark, self._partition.log.log_end_offset)

    def _ends_in_a_gap(self) -> bool:
        """Whether no batch follows although the log end is higher: the log was compacted, and then cut where its last
        batches had been."""
        return not self._partition.log.read(ReadLimits(self.offset, 1)).size_bytes

    def _read(self, max_bytes: int) -> PartitionRead:
        """The next batches, with checked CRCs. A damaged batch takes this replica offline, as another replica may be
        undamaged."""
        log = self._partition.log
        try:
            read = self._partition.read(ReadLimits(self.offset, max_bytes, READ_UNCOMMITTED))
            for position, header in iter_batches(read.records):
                check_crc(read.records, position, header)
        except (CorruptRecords, StorageError) as fault:
            if not log.is_offline and not (isinstance(fault, StorageError) and fault.is_shortage):
                reason = f"its coordinator cannot read it at {self.offset}: {fault.detail}"
                log.condemn(reason, offset=self.offset)
            raise
        return read


def _deliver(records: Buffer, position: int, header: BatchHeader, receiver: Receiver, *, from_offset: int = 0) -> None:
    """Pass on the records of one batch, without the records below an offset."""
    if header.is_control:
        marker = read_marker(memoryview(records)[position:], header)
        if marker is not None and header.base_offset >= from_offset:
            receiver.on_marker(header.producer_id, marker)
        return
    producer_id = header.producer_id if header.is_transactional else -1
    for record in read_records(records, position):
        if record.offset >= from_offset:
            receiver.on_record(record, producer_id, header.producer_epoch)


class SavedRecords:
    """The records of a partition's checkpoint, if there is a checkpoint. Call `close` when the log behind the
    checkpoint is read."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._reader: CheckpointReader | None = None
        checkpoint = partition.log.checkpoint
        if checkpoint is not None and checkpoint.id is not None:
            try:
                self._reader = checkpoint.open_reader()
            except StorageError as fault:
                drop_checkpoint(partition, fault.detail)
        self.end_offset: Final = partition.log.log_start_offset if self._reader is None else self._reader.id.offset
        """The offset at which the log goes on; the log's start without a checkpoint."""

    @property
    def are_there(self) -> bool:
        return self._reader is not None

    def read(self, receiver: Receiver) -> Generator[None, None, bool]:
        """Pass the records on, a batch of 64 KiB per step; returns whether there is a whole checkpoint.

        A damaged checkpoint is dropped, and records that were passed on before must not be used.
        """
        if self._reader is None:
            return False
        try:
            for batch in self._reader.batches(log_of_checkpoint(self._partition)):
                _deliver(batch.content, 0, batch.header, receiver)
                yield
        except (CorruptRecords, StorageError) as fault:
            self.close()
            drop_checkpoint(self._partition, fault.detail)
            return False
        return True

    def close(self) -> None:
        """Close the checkpoint's file. A second call does nothing."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def log_of_checkpoint(partition: Partition) -> CheckpointedLog:
    """The name of this partition's log in a checkpoint that can be used."""
    return CheckpointedLog(
        format_version=FORMAT_VERSION,
        topic_id=partition.topic_id,
        partition=partition.topic_partition.partition,
        log_start_offset=partition.log.log_start_offset,
    )


def drop_checkpoint(partition: Partition, reason: str) -> None:
    """Remove the partition's useless checkpoint, and log the reason. The log still has every record."""
    checkpoint = partition.log.checkpoint
    if checkpoint is None or checkpoint.id is None:
        return
    _logger.warning("event=checkpoint-dropped partition=%s reason=%s", partition.topic_partition, reason)
    try:
        checkpoint.drop()
    except StorageError as fault:
        _logger.warning("event=checkpoint-not-removed partition=%s fault=%s", partition.topic_partition, fault)
