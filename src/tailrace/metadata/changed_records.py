"""Records of the latest snapshot that are out of date, which decide when the next is due (KIP-630, "When to Snapshot").

A record of the log adds records to the snapshot that would be written next, modifies some or deletes some.
`records.key_of` names a record of a snapshot, so that it can be found again in the next snapshot. These count:

- records of the latest snapshot that have another value in the state now, or are gone. A record whose old value has
  come back is as in the snapshot, and does not count.
- records that were added since and then modified or deleted, whatever has become of them: "If a snapshot record was
  added and then modify or deleted then it counts against the ratio." New ones do not count.
"""

from tailrace.metadata.image import ClusterImage, ImageDelta, RecordKey
from tailrace.metadata.records.kinds import KINDS


class ChangedRecords:
    """Counts the records that are out of date, from one snapshot to the next."""

    def __init__(self, image: ClusterImage, *, snapshot_records: int | None) -> None:
        """`image` is the state in the snapshot, of `snapshot_records` records; None while it is being written."""
        self._image = image
        self.snapshot_records = snapshot_records
        self._keys: set[RecordKey] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Count the changes of this delta, which have led to this image.

        When as many records have changed as the snapshot holds, more make no difference, and take no memory.
        """
        if self.snapshot_records is None or len(self._keys) < self.snapshot_records:
            self._keys |= delta.superseded
        self._keys -= {key for key in delta.stated if self._is_as_in_snapshot(image, key)}

    def _is_as_in_snapshot(self, image: ClusterImage, key: RecordKey) -> bool:
        value = KINDS.by_number[key[0]].value
        if value is None:
            return False
        stated = value(self._image, key)
        return stated is not None and value(image, key) == stated
