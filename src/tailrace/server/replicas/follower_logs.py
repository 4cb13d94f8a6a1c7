"""The logs of the replicas that follow one leader: the effects of a `replication.replica_fetcher` machine on logs.

An effect of an older leader epoch is dropped: before the disk work of an effect ends, the partition may have got
another leader, become the leader, or been deleted.
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.replication.fetcher_events import (
    Cut,
    PartitionKey,
    Position,
    ReportRefusal,
    Restart,
    Store,
    Stored,
    StoreFailed,
)
from tailrace.replication.follower_replica import cut_offset, may_cut
from tailrace.replication.partition import Partition
from tailrace.server.bounded_lines import BoundedLines
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock

_UNKNOWN: Final = -1
_REPORTS_PER_MS: Final = 60_000
_MOST_REPORTS: Final = 20
"""The most refused replicas of one leader that get a line of their own within that time; further refused replicas are
counted."""

_logger = logging.getLogger("tailrace.server")


class _LoggedFault(NamedTuple):
    """The last line about a replica that could not store records."""

    text: str
    at_ms: int


class FollowerLogs:
    """Appends to logs, cuts and restarts logs, and reports replicas that the leader refuses."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        table: PartitionTable,
        clock: Clock,
        on_done: Callable[[Stored | StoreFailed], None],
    ) -> None:
        """`on_done` gets the outcome of each `Store`, `Cut` and `Restart` whose leader epoch is still the
        present epoch."""
        self._leader = leader
        self._table = table
        self._clock = clock
        self._on_done = on_done
        self._partitions: dict[PartitionKey, Partition] = {}
        self._cuts: dict[PartitionKey, Cut | Restart] = {}  # the latest cut of each partition, which may be complete
        self._reports_since_ms = clock.monotonic_ms()
        self._reports = 0
        self._logged_faults: dict[PartitionKey, _LoggedFault] = {}
        self._failures = BoundedLines("replica-failed", clock=clock, level=logging.WARNING)
        self._final_failures = BoundedLines("replica-failed", clock=clock, level=logging.ERROR)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._partitions

    def topic_partition(self, key: PartitionKey) -> TopicPartition | None:
        """The name of a partition that follows the leader."""
        partition = self._partitions.get(key)
        return None if partition is None else partition.topic_partition

    def add(self, key: PartitionKey, partition: Partition) -> None:
        """Add a partition that follows the leader from now on."""
        self._partitions[key] = partition

    def remove(self, key: PartitionKey) -> None:
        """Remove a partition that does not follow the leader any more."""
        self._partitions.pop(key, None)
        self._cuts.pop(key, None)
        self._logged_faults.pop(key, None)

    def close(self) -> None:
        """Drop the cuts that wait for a recovery point."""
        self._cuts.clear()

    def carry_out(self, effect: Store | Cut | Restart | ReportRefusal) -> None:
        """Carry an effect out, unless the partition has a new role by now: the machine is informed of that role,
        too."""
        partition = self._partitions.get(effect.key)
        if partition is None or not _follows(partition, effect.leader_epoch):
            return
        try:
            match effect:
                case Store():
                    self._store(effect, partition)
                case Cut() | Restart():
                    self._cut(effect, partition)
                case ReportRefusal():
                    self._report_refusal(effect, partition)
        except KafkaError as fault:
            assert not isinstance(effect, ReportRefusal)
            self._failed(effect, fault)

    def _store(self, effect: Store, partition: Partition) -> None:
        answer = effect.answer
        if len(answer.records):
            partition.following.append(answer.records, checked_from=answer.checked_from)

        def flushed(fault: KafkaError | None) -> None:
            if not _follows(partition, effect.leader_epoch):
                return
            if fault is not None:
                self._failed(effect, fault)
            else:
                if answer.deleted_keys:
                    partition.log.keys.take_note(answer.deleted_keys)
                partition.following.take_leader_offsets(
                    high_watermark=answer.high_watermark, log_start_offset=answer.log_start_offset
                )
                self._stored(effect, partition)

        answer = answer._replace(records=b"")  # the bytes are valid during this call only
        partition.following.flush(flushed)

    def _cut(self, effect: Cut | Restart, partition: Partition) -> None:
        log = partition.log
        if isinstance(effect, Cut):
            offset = cut_offset(log.epochs, log.log_end_offset, effect.diverging)
            why = f"epoch-{effect.diverging.epoch}-ends-at-{effect.diverging.offset}"
        else:
            offset, why = effect.log_start_offset, "the-leaders-log-begins-there"
        if not self._may_cut(effect, partition, offset):
            self._on_done(StoreFailed(key=effect.key, leader_epoch=effect.leader_epoch, is_final=True))
            return
        self._note_cut(partition, offset, why)
        if isinstance(effect, Restart) or offset < log.log_start_offset:
            self._when_cuttable(effect, partition, 0, lambda: partition.following.restart_at(offset))
        else:
            self._when_cuttable(effect, partition, offset, lambda: partition.following.truncate_to(offset))

    def _may_cut(self, effect: Cut | Restart, partition: Partition, offset: int) -> bool:
        """Whether the log may be cut at this offset. If not, the partition is not fetched until it has another
        leader."""
        position = position_of(partition)
        agreed_epoch = max(partition.following.agreed_epoch, position.last_epoch)
        unclean_epoch = _UNKNOWN if partition.state is None else partition.state.unclean_epoch
        high_watermark = position.high_watermark
        if may_cut(offset, high_watermark=high_watermark, agreed_epoch=agreed_epoch, unclean_epoch=unclean_epoch):
            return True
        if position.last_epoch > effect.leader_epoch:
            # No leader has begun this epoch, so the records of the epoch are damaged, and the log is fetched again.
            partition.log.condemn(
                f"leader epoch {position.last_epoch}, in which its last batch says to be, never began",
                offset=partition.log.log_end_offset,
            )
            return False
        topic, number = partition.topic_partition
        _logger.error(
            "event=replica-stopped partition=%s leader=%d leader_epoch=%d agreed_epoch=%d unclean_epoch=%d"
            " high_watermark=%d end_offset=%d cut_asked_at=%d reason='the leader lacks committed records that are here'"
            " hint='stop broker %d so that a replica that has them leads; if none does then, choose this replica:"
            " tailrace topics elect %s --partition %d --unclean --force --replica %d'",
            partition.topic_partition,
            self._leader,
            effect.leader_epoch,
            agreed_epoch,
            unclean_epoch,
            high_watermark,
            position.end_offset,
            offset,
            self._leader,
            topic,
            number,
            partition.broker_id,
        )
        return False

    def _when_cuttable(self, effect: Cut | Restart, partition: Partition, offset: int, cut: Callable[[], None]) -> None:
        """Cut the log when no recovery point on the disk is above the new end: such a recovery point would make the log
        count as damaged.

        `offset` is the lowest end that a crash meanwhile may leave: 0 for a log that is dropped whole.
        """

        self._cuts[effect.key] = effect

        def is_current() -> bool:
            # Meanwhile the partition may have been removed and added again in the same epoch, with another cut.
            return self._cuts.get(effect.key) is effect and _follows(partition, effect.leader_epoch)

        def lowered(fault: KafkaError | None) -> None:
            if not is_current():
                return
            try:
                if fault is not None:
                    raise fault
                assert partition.following.recovery_bound is not None, (
                    f"{partition.topic_partition}: a recovery point has risen"
                )
                cut()
            except KafkaError as failure:
                self._failed(effect, failure)
            else:
                partition.following.flush(flushed)

        def flushed(fault: KafkaError | None) -> None:
            if not is_current():
                return
            if fault is not None:
                self._failed(effect, fault)
            else:
                self._stored(effect, partition)

        self._table.checkpoints.lower_recovery_point(partition, min(offset, partition.log.log_start_offset), lowered)

    def _stored(self, effect: Store | Cut | Restart, partition: Partition) -> None:
        self._on_done(Stored(key=effect.key, leader_epoch=effect.leader_epoch, position=position_of(partition)))

    def _failed(self, effect: Store | Cut | Restart, fault: KafkaError) -> None:
        partition = self._partitions.get(effect.key)
        if partition is None:
            return
        is_final = partition.log.is_offline  # a log that is not offline may have met a full disk, which has space later
        self._report_failure(effect.key, partition, fault, is_final=is_final)
        self._on_done(StoreFailed(key=effect.key, leader_epoch=effect.leader_epoch, is_final=is_final))

    def _report_refusal(self, effect: ReportRefusal, partition: Partition) -> None:
        """Log one line, unless this minute has had many lines: a leader may refuse all its partitions."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._reports_since_ms >= _REPORTS_PER_MS:
            if self._reports > _MOST_REPORTS:
                _logger.warning(
                    "event=replicas-stalled leader=%d partitions=%d", self._leader, self._reports - _MOST_REPORTS
                )
            self._reports_since_ms, self._reports = now_ms, 0
        self._reports += 1
        if self._reports <= _MOST_REPORTS:
            position = position_of(partition)
            _logger.warning(
                "event=replica-stalled partition=%s leader=%d leader_epoch=%d error=%s for_ms=%d log_start_offset=%d"
                " end_offset=%d last_epoch=%d",
                partition.topic_partition,
                self._leader,
                effect.leader_epoch,
                effect.error.name,
                effect.for_ms,
                position.log_start_offset,
                position.end_offset,
                position.last_epoch,
            )

    def _report_failure(self, key: PartitionKey, partition: Partition, fault: KafkaError, *, is_final: bool) -> None:
        """Log one line. As fetches go on, the same fault of the partition has no further line within a minute."""
        text, now_ms = str(fault), self._clock.monotonic_ms()
        logged = self._logged_faults.get(key)
        if logged is not None and logged.text == text and now_ms - logged.at_ms < _REPORTS_PER_MS:
            return
        self._logged_faults[key] = _LoggedFault(text, now_ms)
        lines = self._final_failures if is_final else self._failures
        lines.write("partition=%s leader=%d fault=%s", partition.topic_partition, self._leader, text)

    def _note_cut(self, partition: Partition, offset: int, why: str) -> None:
        is_loss = offset < partition.high_watermark
        _logger.log(
            # Records are lost after an unclean election, or when a log lags behind its leader's retention.
            logging.WARNING if is_loss else logging.INFO,
            "event=log-cut partition=%s end_offset=%d at=%d high_watermark=%d leader=%d reason=%s",
            partition.topic_partition,
            partition.log.log_end_offset,
            offset,
            partition.high_watermark,
            self._leader,
            why,
        )


def _follows(partition: Partition, leader_epoch: int) -> bool:
    """Whether the partition is here and still follows the leader of this epoch."""
    return not partition.is_closed and not partition.is_leader and partition.leader_epoch == leader_epoch


def position_of(partition: Partition) -> Position:
    """The position from which this partition is fetched."""
    log = partition.log
    return Position(
        log.log_end_offset,
        log.epochs.epoch_of(log.log_end_offset - 1) if log.log_end_offset > log.log_start_offset else _UNKNOWN,
        log.log_start_offset,
        partition.high_watermark,
    )
