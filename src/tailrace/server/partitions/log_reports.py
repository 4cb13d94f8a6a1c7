"""The log lines about a partition's log when it is opened: records that are gone, and the changes of a recovery."""

import logging

from tailrace.model.partitions import TopicPartition
from tailrace.storage import Log

_logger = logging.getLogger("tailrace.server")


def report_vanished(partition: TopicPartition, known_end: int) -> None:
    """Log that records are gone without a deletion, and the way out."""
    _logger.error(
        "event=partition-vanished partition=%s flushed_up_to=%d action=begin-empty "
        "hint='stop the node and put the directory back, if there is a copy of it'",
        partition,
        known_end,
    )


def report_recovery(partition: TopicPartition, log: Log) -> None:
    """Log the changes that the recovery has made, if it has made any."""
    recovery = log.recovery
    if recovery.bytes_cut or recovery.segments_removed or recovery.lost_acknowledged:
        _logger.log(
            logging.ERROR if recovery.lost_acknowledged else logging.WARNING,
            "event=log-cut partition=%s end_offset=%d bytes=%d segments=%d acknowledged_up_to=%d reason=%s",
            partition,
            log.log_end_offset,
            recovery.bytes_cut,
            recovery.segments_removed,
            recovery.acknowledged_end_offset,
            recovery.cut_reason,
        )
    if (noted := recovery.ignored_log_start) is not None:
        _logger.warning(
            "event=log-start-ignored partition=%s noted=%d end_offset=%d", partition, noted, log.log_end_offset
        )
