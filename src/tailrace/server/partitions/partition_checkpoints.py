"""What the checkpoints of a log directory are to say of the partitions that are awake.

Of the others they say the truth already. To look at 100,000 partitions takes several turns, unless somebody says whose
offsets have changed. Nothing that was promised depends on a checkpoint, but for what somebody waits for, and is told of
when it is durable.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.server.partitions.directory_work import DirectoryWork, OnWritten
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.ports import Clock
from tailrace.server.slices import run_in_slices
from tailrace.storage.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

AT_ONCE: Final = 500
"""So many are looked at before the clock is."""

_logger = logging.getLogger("tailrace.server")


class PartitionCheckpoints:
    """Those of one table."""

    def __init__(
        self, directory: LogDirectory, work: DirectoryWork, *, awake: Callable[[], Iterable[Partition]], clock: Clock
    ) -> None:
        self._directory = directory
        self._work = work
        self._awake = awake
        self._clock = clock

    def note(self, name: str) -> None:
        """Have a checkpoint say the truth when it is written next."""
        self._note(name, self._awake())

    def _note(self, name: str, partitions: Iterable[Partition]) -> None:
        self._directory.checkpoint(name).take(_offsets(name, partitions))

    def _note_open(self, name: str, partitions: Iterable[Partition]) -> None:
        """Of one that was deleted meanwhile no checkpoint may speak any more: the next start would miss its log."""
        self._note(name, (partition for partition in partitions if not partition.is_closed))

    def write_all(self, name: str, on_written: OnWritten | None = None) -> None:
        """Have it written, with what is true of each partition a few milliseconds before; then call `on_written`."""
        run_in_slices(self._writing_all(name, on_written), self._clock)

    def _writing_all(self, name: str, on_written: OnWritten | None) -> Iterator[None]:
        partitions = iter(self._awake())
        while some := list(islice(partitions, AT_ONCE)):
            self._note_open(name, some)
            yield
        self.write(name, on_written, of=())

    def write(self, name: str, on_written: OnWritten | None = None, *, of: Iterable[Partition]) -> None:
        """Have it written, with what is true of these now; then call `on_written`."""
        self._note_open(name, of)

        def written(fault: KafkaError | None) -> None:
            if fault is not None:
                _logger.warning("event=checkpoint-failed name=%s fault=%s", name, fault)
            if on_written is not None:
                on_written(fault)

        self._work.write_checkpoint(name, written)


def _offsets(name: str, partitions: Iterable[Partition]) -> Iterator[tuple[TopicPartition, int]]:
    for partition in partitions:
        log = partition.log
        if name == HIGH_WATERMARKS:
            bound = partition.following.recovery_bound  # about to be cut there
            high_watermark = partition.high_watermark
            yield partition.topic_partition, high_watermark if bound is None else min(high_watermark, bound)
        elif name == RECOVERY_POINTS:
            yield partition.topic_partition, partition.following.recovery_point
        elif name == LOG_STARTS:
            bound = partition.following.recovery_bound  # where the log is about to begin, if that is earlier
            yield partition.topic_partition, log.log_start_offset if bound is None else min(log.log_start_offset, bound)
        else:
            is_known = log.first_dirty_offset > log.log_start_offset
            yield partition.topic_partition, log.first_dirty_offset if is_known else 0
