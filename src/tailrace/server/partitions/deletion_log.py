"""Log lines about deleted records: their number and the reason. Bounded by `BoundedLines`."""

import logging
from collections.abc import Sequence
from typing import Final

from tailrace.replication.partition import Partition
from tailrace.server.bounded_lines import BoundedLines
from tailrace.server.ports import Clock
from tailrace.storage import RetiredSegment
from tailrace.storage.retention import Reason

_SETTINGS: Final = {Reason.TIME: "retention.ms", Reason.SIZE: "retention.bytes"}

_logger = logging.getLogger("tailrace.server")


class DeletionLog:
    """The lines of one node, or of one kind of deletion."""

    def __init__(self, clock: Clock) -> None:
        self._lines = BoundedLines("records-deleted", clock=clock, unit="records")

    def retired(self, partition: Partition, log_start_before: int, segments: Sequence[RetiredSegment]) -> None:
        """Log that retention has removed these segments.

        The records of segments below the log start were deleted before, by DeleteRecords or by the leader.
        """
        if not segments:
            return
        log_start_offset = partition.log.log_start_offset
        settings = sorted({_SETTINGS[segment.reason] for segment in segments if segment.reason in _SETTINGS})
        if not settings:
            _logger.debug("event=segments-removed partition=%s segments=%d", partition.topic_partition, len(segments))
            return
        records = log_start_offset - log_start_before
        self._lines.write(
            "partition=%s why=%s segments=%d records=%d bytes=%d log-start=%d newest-timestamp=%s",
            partition.topic_partition,
            ",".join(settings),
            len(segments),
            records,
            sum(segment.size_bytes for segment in segments),
            log_start_offset,
            _iso(max(segment.newest_timestamp for segment in segments)),
            amount=records,
        )

    def asked_for(self, partition: Partition, log_start_before: int, requested_by: str) -> None:
        """Log a client's DeleteRecords, if the log start has moved."""
        records = partition.log.log_start_offset - log_start_before
        if records:
            self._lines.write(
                "partition=%s why=DeleteRecords records=%d log-start=%d by=%r",
                partition.topic_partition,
                records,
                partition.log.log_start_offset,
                requested_by,
                amount=records,
            )


def _iso(timestamp_ms: int) -> str:
    """The time in ISO 8601, UTC; a time out of range as the number; `none` for -1."""
    if timestamp_ms < 0:
        return "none"
    try:
        from datetime import UTC, datetime  # costs a node half a megabyte, and most nodes delete nothing

        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ImportError, OverflowError, ValueError, OSError):  # without a free descriptor nothing is imported
        return str(timestamp_ms)
