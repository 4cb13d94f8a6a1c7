"""The clean stop of a log directory: each log is closed with a line for the next start, which need not read the log."""

import logging

from tailrace.model.errors import KafkaError
from tailrace.replication.partition import Partition
from tailrace.server.partitions.directory_work import DirectoryWork
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.log_faults import OfflineLogs
from tailrace.server.partitions.partition_checkpoints import PartitionCheckpoints
from tailrace.server.partitions.partition_maps import AwakePartitions, DormantPartitions
from tailrace.server.partitions.removals import Removals
from tailrace.storage import ClosedTopic
from tailrace.storage.checkpoints import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

_logger = logging.getLogger("tailrace.server")


def close_logs(
    directory: LogDirectory,
    work: DirectoryWork,
    checkpoints: PartitionCheckpoints,
    *,
    awake: AwakePartitions,
    dormant: DormantPartitions,
    offline: OfflineLogs,
    removals: Removals,
) -> None:
    """Close every log of a directory. The stop is clean if each log could be opened and closed; otherwise the next
    start recovers all of them."""
    # The next start must read a log that is damaged or has failed.
    is_clean = not offline and not any(partition.log.is_offline for partition in awake)
    unmade = work.close()
    closed = dormant.closed()
    for topic, number in unmade:
        if topic in closed:
            closed[topic].lines.pop(number, None)
    checkpoints.update(HIGH_WATERMARKS)
    for partition in awake:
        try:
            partition.close()
            _note_closed(closed, partition)
        except KafkaError as fault:
            is_clean = False
            _logger.error("event=close-failed partition=%s fault=%s", partition.topic_partition, fault)
    for name in (RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS):
        checkpoints.update(name)
    for topic_partition, gone in removals.items():
        if gone.partition is not None:
            gone.partition.log.close(clean=False)
        if gone.on_renamed is not None:
            is_clean = False  # the log is damaged, and its directory is not renamed yet
            continue
        try:
            directory.rename_if_there(topic_partition, gone.topic_id)
        except KafkaError as fault:  # the next start finds the directory, of which no metadata names the topic
            _logger.error("event=partition-delete-failed partition=%s fault=%s", topic_partition, fault)
    directory.write_checkpoints()
    if is_clean:
        directory.mark_clean(closed)
    awake.clear()


def _note_closed(closed: dict[str, ClosedTopic], partition: Partition) -> None:
    log = partition.log.closed
    if log is not None:
        topic, number = partition.topic_partition
        closed.setdefault(topic, ClosedTopic(partition.topic_id, {})).lines[number] = log.to_line()
