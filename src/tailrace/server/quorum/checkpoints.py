"""Checkpoints beside a quorum's log: its recovery point, and its log start.

The recovery point is the smaller of what is flushed and the high watermark. A replica never cuts its log below the high
watermark, so no truncation has to take the point back; only a log that a snapshot replaces may be shorter.
"""

from typing import Final, NamedTuple

from tailrace.model.partitions import TopicPartition
from tailrace.storage import FileSystem, FlushTicket
from tailrace.storage.checkpoints import LOG_STARTS, RECOVERY_POINTS, read_offsets, write_offsets

RECOVERY_POINT_INTERVAL: Final = 1_000
"""Records between two writings of the recovery point: damage above the last one would be taken for a torn end."""


class Checkpoints:
    """The two numbers beside the log: how far it is known to be safe, and where it starts."""

    def __init__(self, directory: str, partition: TopicPartition, *, files: FileSystem) -> None:
        self._directory = directory
        self._partition = partition
        self._files = files
        self.recovery_point = read_offsets(files, directory, RECOVERY_POINTS).get(partition, 0)
        """The checkpoints on the disk, or those after the writes that were begun."""
        self.log_start_offset = read_offsets(files, directory, LOG_STARTS).get(partition, 0)

    def write(self, name: str, offset: int) -> None:
        """Durable on return; on any thread."""
        write_offsets(self._files, self._directory, name, {self._partition: offset})

    def due(self, *, log_start_offset: int, recovery_point: int, interval: int) -> tuple[tuple[str, int], ...]:
        """The checkpoints for the flush that begins: the log start if it has risen, the point once in `interval`."""
        offsets = []
        if log_start_offset > self.log_start_offset:
            self.log_start_offset = log_start_offset
            offsets.append((LOG_STARTS, log_start_offset))
        if recovery_point >= self.recovery_point + interval:
            self.recovery_point = recovery_point
            offsets.append((RECOVERY_POINTS, recovery_point))
        return tuple(offsets)

    def forget_recovery_point(self) -> None:
        """Before a log may get shorter."""
        if self.recovery_point:
            self.write(RECOVERY_POINTS, 0)
            self.recovery_point = 0


class QuorumFlush(NamedTuple):
    """One flush on its way to the disk."""

    ticket: FlushTicket
    checkpoints: Checkpoints
    offsets: tuple[tuple[str, int], ...]

    def sync(self) -> None:
        """Return when everything is durable. On any thread. A StorageError is final for the disk."""
        self.ticket.sync()
        for name, offset in self.offsets:
            self.checkpoints.write(name, offset)
