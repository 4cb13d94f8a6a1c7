"""A snapshot of this node on its way to an image."""

from tailrace.metadata.derive import Steps
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.snapshot_image import SnapshotLoader
from tailrace.raft.rpc import SnapshotId
from tailrace.server.quorum.log import QuorumLog


class SnapshotLoading:
    """Reads one snapshot, once. Raises CorruptRecords, StorageError, and what `SnapshotLoader` raises."""

    def __init__(self, log: QuorumLog, snapshot_id: SnapshotId) -> None:
        self.id = snapshot_id
        # Opened at once: a snapshot that is being read does not vanish.
        self._reader = log.open_snapshot(snapshot_id)
        self._loader = SnapshotLoader()
        self._is_closed = False

    @property
    def records_count(self) -> int:
        return self._loader.records_count

    def steps(self) -> Steps[bool]:
        """Read it in steps; whether it was read to its end, and not closed before."""
        for batch in self._reader.batches():
            yield from self._loader.steps(batch)
            yield
            if self._is_closed:
                return False
        return True

    def image(self) -> ClusterImage:
        """The image in it, when it has been read to its end."""
        return self._loader.image()

    def close(self) -> None:
        """It is read, or of no use any more."""
        self._is_closed = True
        self._reader.close()
