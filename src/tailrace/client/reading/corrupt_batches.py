"""The batches that a reader cannot decode: the reader raises at the first batch, or steps over each batch and logs it.

A producer of another system can have written them to a broker that does not look inside, or bytes were damaged on a
disk or on the way. No batch is left out in silence: a skipped batch has a line in the log `tailrace.client.corrupt`, 20
lines in 30 seconds at most, followed by the number of further batches, and adds to the count.
"""

import logging
from collections.abc import Callable
from typing import Final

from tailrace.model.errors import CorruptRecords
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.corrupt_batch import CorruptBatch

LOGGER: Final = "tailrace.client.corrupt"
_PERIOD_MS: Final = 30_000
_MOST_LINES: Final = 20
_WAYS_OUT: Final = (
    'on_corrupt="skip" steps over it (--on-corrupt skip on the command line, onCorruptRecords=skip in Spark), '
    "as does a start at offset"
)

_logger = logging.getLogger(LOGGER)


class CorruptBatches:
    """The policy of one reader about batches that it cannot decode, and the count of skipped batches."""

    def __init__(self, on_corrupt: str = "raise", *, now_ms: Callable[[], int] = lambda: 0) -> None:
        """`on_corrupt`: raise or skip."""
        self.are_skipped: Final = on_corrupt == "skip"
        self.batches = 0
        """The batches that were stepped over, in total."""
        self.offsets = 0
        """The number of offsets in these batches: the most records that they can have had."""
        self.size_bytes = 0
        self._now_ms = now_ms
        self._period_began_ms: int | None = None
        self._lines = 0
        self._unsaid = 0

    def meet(self, partition: TopicPartition, corrupt: CorruptBatch) -> None:
        """Step over the batch, or raise CorruptRecords with its place and the ways out."""
        last = corrupt.next_offset - 1
        at = f"offset {last}" if last == corrupt.offset else f"offsets {corrupt.offset} to {last}"
        batch = f"{partition}: a batch of {corrupt.size_bytes} bytes at {at}"
        if not self.are_skipped:
            detail = f"{batch} cannot be read: {corrupt.fault.detail}; {_WAYS_OUT} {corrupt.next_offset}"
            raise CorruptRecords(detail, corrupt.fault.code) from None
        self.batches += 1
        self.offsets += corrupt.next_offset - corrupt.offset
        self.size_bytes += corrupt.size_bytes
        self._say(f"{batch} cannot be read and is skipped: {corrupt.fault.detail}")

    def _say(self, line: str) -> None:
        now_ms = self._now_ms()
        if self._period_began_ms is None or now_ms - self._period_began_ms >= _PERIOD_MS:
            self.flush()
            self._period_began_ms, self._lines = now_ms, 0
        if self._lines < _MOST_LINES:
            self._lines += 1
            _logger.warning("%s", line)
        else:
            self._unsaid += 1

    def flush(self) -> None:
        """Log the number of skipped batches that had no log line of their own."""
        if self._unsaid:
            _logger.warning("%d more batches that cannot be read are skipped", self._unsaid)
            self._unsaid = 0
