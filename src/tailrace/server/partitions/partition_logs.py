"""The logs behind the partitions of a node: opened when a request names a partition, closed at a clean stop.

A clean stop closes each log with a line for the next start, which then need not read the log.
"""

import logging
from collections.abc import Iterator

from tailrace.model.errors import CorruptRecords, KafkaError, StorageError
from tailrace.model.partitions import INTERNAL_TOPICS, PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.in_sync import InSyncReplicas
from tailrace.replication.partition import Partition
from tailrace.replication.pauses import Pauses
from tailrace.replication.replica import PartitionContext
from tailrace.server.callbacks import Alarm, run_in_slices
from tailrace.server.partitions.directory_work import DirectoryWork
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.log_faults import LogFaults, OfflineLogs
from tailrace.server.partitions.partition_checkpoints import PartitionCheckpoints
from tailrace.server.partitions.partition_maps import AwakePartitions, Dormant, DormantPartitions
from tailrace.server.partitions.removals import Removals
from tailrace.server.ports import Clock
from tailrace.storage import ClosedTopic, Log
from tailrace.storage.checkpoints import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

_logger = logging.getLogger("tailrace.server")


class PartitionLogs:
    """Opens the logs of partitions, which are in use from then on, and closes every log."""

    def __init__(
        self,
        directory: LogDirectory,
        work: DirectoryWork,
        *,
        faults: LogFaults,
        offline: OfflineLogs,
        awake: AwakePartitions,
        context: PartitionContext,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._work = work
        self._faults = faults
        self._offline = offline
        self._awake = awake
        self._context = context
        self._clock = clock
        self._refusal: str | None = None

    def wake(self, topic_partition: TopicPartition, dormant: Dormant) -> Partition | None:
        """Wake a dormant partition: the partition, which has no role yet. None if its log cannot be used."""
        try:
            return self._put(topic_partition, dormant.state, dormant.config, self._reopened(topic_partition, dormant))
        except KafkaError as fault:
            self._faults.report_not_opened(topic_partition, fault)
            _logger.error("event=partition-failed partition=%s fault=%s", topic_partition, fault)
            return None

    def borrow(self, topic_partition: TopicPartition, dormant: Dormant) -> Log:
        """The log of a dormant partition. The caller only reads the log, and closes it with `clean=False`.

        Raises KafkaError if the log differs from the log that was closed.
        """
        try:
            return self._directory.reopen(topic_partition, dormant.log, config=dormant.config)
        except ValueError as fault:
            raise CorruptRecords(f"the note of its clean stop: {fault}") from fault

    def open(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig) -> Partition:
        """Open the log of a partition, or begin a log. The returned partition has no role yet. Raises StorageError or
        CorruptRecords: the partition is offline then."""
        key = (topic_partition.topic, topic_partition.partition)
        if self._offline.is_unmoved(key, state.topic_id):
            raise StorageError(self._offline.why(topic_partition))
        self._offline.forget(key)
        try:
            log = self._directory.open_log(
                topic_partition,
                topic_id=state.topic_id,
                config=config,
                now_ms=self._clock.now_ms(),
                leader_epoch=state.leader_epoch,
            )
            return self._put(topic_partition, state, config, log)
        except KafkaError as fault:
            self._faults.report_not_opened(topic_partition, fault)
            raise

    def _reopened(self, topic_partition: TopicPartition, dormant: Dormant) -> Log:
        is_durable = self._work.ensure_made(topic_partition)
        try:
            return self._directory.reopen(topic_partition, dormant.log, config=dormant.config, is_durable=is_durable)
        except (KafkaError, ValueError) as fault:
            _logger.warning("event=closed-log-ignored partition=%s fault=%s action=open", topic_partition, fault)
        return self._directory.open_log(
            topic_partition,
            topic_id=dormant.state.topic_id,
            config=dormant.config,
            now_ms=self._clock.now_ms(),
            leader_epoch=dormant.state.leader_epoch,
        )

    def _put(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig, log: Log) -> Partition:
        if topic_partition.topic in INTERNAL_TOPICS:
            _keep_checkpoint(topic_partition, log)
        partition = Partition(
            topic_partition,
            topic_id=state.topic_id,
            log=log,
            config=config,
            context=self._context,
            high_watermark=self._directory.high_watermark_of(topic_partition),
        )
        self._faults.watch(partition)
        if self._refusal is not None:
            partition.refuse_produce(self._refusal)
        self._awake.put(partition)
        return partition

    def refuse_produce(self, reason: str | None) -> None:
        """Refuse the batches of producers with this reason, for partitions that are opened later, too; None: accept
        the batches."""
        self._refusal = reason
        for partition in self._awake:
            partition.refuse_produce(reason)

    def close(self, *, dormant: DormantPartitions, checkpoints: PartitionCheckpoints, removals: Removals) -> None:
        """Close every log. The stop is clean if each log could be opened and closed; otherwise the next start recovers
        every log."""

        # A damaged or failed log gets no line, so the next start reads the log.
        is_clean = not self._offline and not any(partition.log.is_offline for partition in self._awake)
        unmade = self._work.close()
        closed = dormant.closed()
        for topic, number in unmade:
            if topic in closed:
                closed[topic].lines.pop(number, None)
        checkpoints.update(HIGH_WATERMARKS)
        for partition in self._awake:
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
                self._directory.renamed.rename_if_there(topic_partition, gone.topic_id)
            except KafkaError as fault:  # the next start finds the directory, whose topic no metadata names any more
                _logger.error("event=partition-delete-failed partition=%s fault=%s", topic_partition, fault)
        self._directory.write_checkpoints()
        if is_clean:
            self._directory.mark_clean(closed)
        self._awake.clear()


def _note_closed(closed: dict[str, ClosedTopic], partition: Partition) -> None:
    log = partition.log.closed
    if log is not None:
        topic, number = partition.topic_partition
        closed.setdefault(topic, ClosedTopic(partition.topic_id, {})).lines[number] = log.to_line()


def _keep_checkpoint(topic_partition: TopicPartition, log: Log) -> None:
    try:
        contradiction = log.keep_checkpoint()
    except StorageError:
        log.close(clean=False)
        raise
    if contradiction:
        _logger.warning("event=checkpoint-dropped partition=%s reason=%s", topic_partition, contradiction)


class HeldHighWatermarks:
    """The high watermarks that a joining replica holds back, until its time is over (`replication.leadership`, rule 2).

    The next fetch of any replica advances the high watermark. The timer, which all high watermarks share, is for the
    case without a fetch: the joining replica has died, and no other replica fetches.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held = Pauses[InSyncReplicas]()
        self._alarm = Alarm(clock, self._look)

    def hold(self, in_sync: InSyncReplicas, until_ms: int) -> None:
        """Let this high watermark advance at `until_ms`. If the high watermark is already held, the earlier time
        stays."""
        if in_sync not in self._held:
            self._held.begin(in_sync, until_ms)
            self._alarm.set(until_ms)

    def close(self) -> None:
        """Cancel the timer."""
        self._alarm.cancel()

    def _look(self) -> None:
        due = self._held.take_due(self._clock.monotonic_ms())
        next_ms = self._held.next_end_ms
        if next_ms is not None:
            self._alarm.set(next_ms)
        run_in_slices(_looking(due), self._clock)


def _looking(due: list[InSyncReplicas]) -> Iterator[None]:
    for in_sync in due:
        in_sync.look_again()
        yield
