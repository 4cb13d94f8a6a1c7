"""Snapshots of the metadata: a snapshot is written in slices when it is due (KIP-630).

A snapshot is written from an image that never changes. Between two slices the event loop does other work; the disk's
thread checks, syncs and names the file.
"""

import logging
from itertools import islice
from typing import Final

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.metadata.snapshot_image import ChangedRecords, snapshot_values
from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.server.ports import Clock
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.measure import SnapshotMeasures
from tailrace.storage.snapshots.writer import Publication, SnapshotWriter

_SLICE_RECORDS: Final = 200

_logger = logging.getLogger("tailrace.server")


class _Baseline:
    """The latest snapshot, and the changes since."""

    def __init__(
        self, image: ClusterImage = EMPTY_IMAGE, *, records_count: int | None = 0, size_bytes: int = 0
    ) -> None:
        """`records_count`: the number of the snapshot's records; None: the snapshot is being written."""
        self.size_bytes = size_bytes
        self.log_bytes = 0
        self.changed = ChangedRecords(image, snapshot_records=records_count)

    @property
    def records_count(self) -> int:
        return self.changed.snapshot_records or 0


class MetadataSnapshots:
    """The snapshots that a replica writes."""

    def __init__(self, host: QuorumHost, *, clock: Clock, trigger: SnapshotTrigger) -> None:
        self._host = host
        self._clock = clock
        self._trigger = trigger
        self._baseline = _Baseline()
        self._writer: SnapshotWriter | None = None
        self.measures = SnapshotMeasures()

    def appended(self, size_bytes: int) -> None:
        """Count the bytes of batches that were committed and applied."""
        self._baseline.log_bytes += size_bytes

    def changed(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Count the changes of records that were committed and applied; `image` is the image afterwards."""
        self._baseline.changed.add(image, delta)

    def loaded(self, image: ClusterImage, snapshot_id: SnapshotId, records_count: int) -> None:
        """Begin anew: the image was loaded from this snapshot."""
        sizes = {snapshot.id: snapshot.size_bytes for snapshot in self._host.log.snapshots}
        self._baseline = _Baseline(image, records_count=records_count, size_bytes=sizes.get(snapshot_id, 0))

    @property
    def is_due(self) -> bool:
        """Whether another snapshot is due (KIP-630, "When to Snapshot")."""
        base = self._baseline
        return self._writer is None and self._trigger.is_due(
            changed_records=len(base.changed),
            snapshot_records=base.records_count,
            snapshot_bytes=base.size_bytes,
            log_bytes=base.log_bytes,
            has_snapshot=bool(self._host.log.snapshots),
        )

    def begin(self, image: ClusterImage, snapshot_id: SnapshotId, last_contained_ms: int) -> bool:
        """Begin to write this image as the snapshot with this id; returns whether the snapshot may be written. Only in
        a task of the host."""
        if self._writer is not None or self._host.failure is not None or image.open_transaction is not None:
            return False
        if self._host.node.snapshot_fault(snapshot_id) is not None:
            return False
        voters = self._host.node.voters_at(snapshot_id.end_offset)
        try:
            writer = self._host.log.begin_snapshot(snapshot_id, last_contained_ms=last_contained_ms, voters=voters)
        except StorageError as fault:
            self._host.fail(fault)
            return False
        self._writer = writer
        begun_ms = self._clock.monotonic_ms()
        # Changes from now on count for the next snapshot; the records of this snapshot are counted during the writing.
        # A snapshot that is loaded meanwhile has a baseline of its own.
        baseline = self._baseline = _Baseline(image, records_count=None)
        values = snapshot_values(image)

        def write_slice() -> None:
            if self._host.failure is not None:
                return
            before = writer.records_count
            try:
                writer.append(islice(values, _SLICE_RECORDS))
                if writer.records_count - before == _SLICE_RECORDS:
                    self._clock.call_soon(lambda: self._host.perform(write_slice))
                    return
                writer.seal()
            except StorageError as fault:
                self._host.log.abandon_snapshot(writer)
                self._host.fail(fault)
                return
            publication = Publication(writer.part)
            self._host.publish(publication, lambda: self._written(writer, publication, baseline, begun_ms))

        write_slice()
        return True

    def _written(self, writer: SnapshotWriter, publication: Publication, baseline: _Baseline, begun_ms: int) -> None:
        self._writer = None
        if self._host.failure is not None:
            return
        try:
            written = self._host.log.finish_snapshot(publication)
        except CorruptRecords as fault:
            self._host.fail(fault)
            return
        baseline.changed.snapshot_records = writer.records_count
        baseline.size_bytes = writer.part.size_bytes
        self.measures.generated.add(self._clock.monotonic_ms() - begun_ms)
        _logger.info(
            "event=snapshot-written id=%d-%d records=%d bytes=%d",
            written.snapshot_id.end_offset,
            written.snapshot_id.epoch,
            writer.records_count,
            writer.part.size_bytes,
        )
        self._host.step(written)
