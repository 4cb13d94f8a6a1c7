"""One copy of a partition: its log, how far that is safe, what may be read of it, and how it follows a leader.

Invariants:
1. log_start_offset <= high_watermark <= log_end_offset, and the high watermark never falls but where the log is cut.
2. Under flushed durability the high watermark is at most the flushed end offset: what a reader has seen, or a producer
   was told with acks=all, survives a power cut. Under page-cache durability it follows the log end, as Kafka's does.

What a leader does besides is in `replication.partition`.
"""

from collections.abc import Callable
from typing import Final, Protocol

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import OffsetAndEpoch, PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import check_crc, iter_batches
from tailrace.protocol.schema import Buffer
from tailrace.replication.high_watermark import HighWatermark
from tailrace.replication.outcomes import (
    READ_COMMITTED,
    UNKNOWN_EPOCH,
    NotLeader,
    PartitionRead,
    TimestampedOffset,
    Traffic,
)
from tailrace.replication.replicated_batches import MissingOffsets, replicated_batches
from tailrace.replication.waiting import Waiter
from tailrace.replication.watchers import Change, Watcher, Watchers
from tailrace.storage import AppendBatch, Log, ReadLimits, RetiredSegment

_CUT: Final = Change.LOG_END | Change.HIGH_WATERMARK | Change.LAST_STABLE_OFFSET

OnFlushed = Callable[[KafkaError | None], None]
"""Told once that a flush is done, or why it is not."""


class Flusher(Protocol):
    """What makes a log durable, later; see `server.ports.Disk`."""

    def flush(self, log: Log, on_done: Callable[[], None]) -> None: ...


class Replica:
    """A copy of a partition that this broker has."""

    __slots__ = (
        "_broker_id",
        "_disk",
        "_doubted_offset",
        "_flushes_pending",
        "_high_watermark",
        "_is_flushed",
        "_leader_has_gaps",
        "_on_abandoned",
        "_opened_at_offset",
        "_syncing_disk",
        "_watchers",
        "agreed_epoch",
        "config",
        "is_closed",
        "is_leader",
        "leader_epoch",
        "log",
        "recovery_bound",
        "sent_bytes",
        "state",
        "topic_id",
        "topic_partition",
        "written_bytes",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: TopicId,
        log: Log,
        broker_id: BrokerId,
        config: TopicConfig,
        disk: Flusher,
        syncing_disk: Flusher | None = None,
        is_flushed: bool = True,
        high_watermark: int = 0,
    ) -> None:
        """`high_watermark` is the checkpointed one.

        `syncing_disk` makes logs durable also under page-cache durability, where `disk` does nothing.
        """
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.config = config
        self.is_leader = False
        self.leader_epoch = LeaderEpoch(UNKNOWN_EPOCH)
        self.agreed_epoch = UNKNOWN_EPOCH
        """The newest leader epoch in which this log went on from its leader's, since it was opened."""
        self.state: PartitionState | None = None
        self._high_watermark = HighWatermark(max(min(high_watermark, log.log_end_offset), log.log_start_offset))
        self.written_bytes = 0
        """Bytes appended since the log was opened; a metric, and the measure of `readable_bytes`."""
        self._opened_at_offset = log.log_end_offset
        self.sent_bytes = 0
        """Bytes of records that readers were sent; they are counted by who sends them."""
        self.recovery_bound: int | None = None
        """Where the log is about to be cut: no recovery point may be above that any more."""
        self.is_closed = False
        self._broker_id = broker_id
        self._flushes_pending = 0
        self._on_abandoned: Callable[[], None] | None = None
        self._is_flushed = is_flushed
        self._leader_has_gaps = False
        self._doubted_offset = -1
        self._watchers: Watchers[Replica] | None = None
        self._disk = disk
        self._syncing_disk = disk if syncing_disk is None else syncing_disk

    def watch(self, watcher: Watcher, kinds: int) -> None:
        """Tell `watcher` of every change of these kinds (`Change`), until `unwatch`. Twice the same is once."""
        if self._watchers is None:
            self._watchers = Watchers()
        self._watchers.add(watcher, kinds)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell the watcher nothing any more, if it is here."""
        if self._watchers is not None:
            self._watchers.remove(watcher)

    def tell(self, kinds: int) -> None:
        """Tell the watchers of these kinds that they have changed."""
        watchers = self._watchers
        if watchers is not None and watchers.wanted & kinds:
            watchers.tell(self, kinds)

    def _rise(self, offset: int, written_bytes: int | None = None) -> None:
        """Move the high watermark up; see `HighWatermark.rise`."""
        watchers = self._watchers
        wants_stable = watchers is not None and watchers.wanted & Change.LAST_STABLE_OFFSET
        stable_before = self.last_stable_offset if wants_stable else 0
        self.log.producers.transactions.forget_replicated(offset)
        self._high_watermark.rise(offset, written_bytes)
        if watchers is not None and watchers.wanted:
            is_stable_changed = wants_stable and self.last_stable_offset != stable_before
            self.tell(Change.HIGH_WATERMARK | (Change.LAST_STABLE_OFFSET if is_stable_changed else 0))

    def _advance_log_start(self, offset: int) -> None:
        before, stable_before = self.log.log_start_offset, self.last_stable_offset
        self.log.advance_log_start(offset)
        if self.log.log_start_offset != before:
            is_stable_changed = self.last_stable_offset != stable_before
            self.tell(Change.LOG_START | (Change.LAST_STABLE_OFFSET if is_stable_changed else 0))

    def sync(self, on_done: Callable[[], None]) -> None:
        """Have all that is in the log now made durable, whatever log.durability says; then call `on_done`.

        It is called too if the log goes offline meanwhile, and then no more is durable than `log.flushed_offset` says.
        """

        def done() -> None:
            self._flush_done()
            on_done()

        self._flushes_pending += 1
        self._syncing_disk.flush(self.log, done)

    def _ask_for_flush(self) -> None:
        self._flushes_pending += 1
        self._disk.flush(self.log, self._flush_done)

    def _flush_done(self) -> None:
        self._flushes_pending -= 1
        if not self.is_closed:
            self._advance_high_watermark(self.log.flushed_offset)
        elif not self._flushes_pending and self._on_abandoned is not None:
            self._close_abandoned()

    def _advance_high_watermark(self, own_end_offset: int) -> None:
        """Take notice of how far the own log counts: flushed, or written under page-cache durability.

        What follows from that is the leader's to know.
        """

    def _close_abandoned(self) -> None:
        self.log.close(clean=False)
        on_abandoned, self._on_abandoned = self._on_abandoned, None
        assert on_abandoned is not None
        on_abandoned()

    @property
    def broker_id(self) -> BrokerId:
        """Of the broker that has this replica."""
        return self._broker_id

    @property
    def _own_end_offset(self) -> int:
        """How far the own log counts."""
        return self.log.flushed_offset if self._is_flushed else self.log.log_end_offset

    def apply_retention(self, now_ms: int) -> list[RetiredSegment]:
        """Let segments go that the topic's settings do not keep; on a follower, those below its leader's log start."""
        before = self.log.log_start_offset
        retired = self.log.apply_retention(now_ms, self.high_watermark, only_below_log_start=not self.is_leader)
        if self.log.log_start_offset != before:
            self.tell(Change.LOG_START)
        return retired

    def append_as_follower(self, records: Buffer) -> None:
        """Write what the leader has sent, as it is. It counts for nothing before `flush_as_follower`.

        Offsets may be missing in a topic that is compacted. In another they may too, if it was compacted once: that is
        believed when the leader has said it twice, since where a batch stands is not below its checksum.

        A log that was begun anew where DeleteRecords has let the leader's start may start within its first batch.

        Raises CorruptRecords for what does not continue this log, and StorageError.
        """
        assert not self.is_leader, f"{self.topic_partition} is led here"
        log = self.log
        may_have_gaps = self._leader_has_gaps or self.config.is_compacted
        try:
            batches = self._sent_by_leader(records, may_have_gaps=may_have_gaps)
        except MissingOffsets as gap:
            if gap.base_offset != self._doubted_offset:
                self._doubted_offset = gap.base_offset
                raise
            self._leader_has_gaps = may_have_gaps = True
            batches = self._sent_by_leader(records, may_have_gaps=True)
        if batches:
            size_bytes = log.size_bytes
            if batches[0].header.base_offset < log.log_end_offset:
                log.begin_within(batches.pop(0))
            log.append(batches, may_have_gaps=may_have_gaps)
            self._doubted_offset = -1
            self.written_bytes += log.size_bytes - size_bytes
            self._high_watermark.note_write(log.log_end_offset, self.written_bytes)
            self.tell(Change.LOG_END)

    def _forget_leader(self) -> None:
        """What is to be cut is so by the word of one leader, and offsets are missing from the log of one."""
        self.recovery_bound = None
        self._leader_has_gaps = False
        self._doubted_offset = -1

    def _sent_by_leader(self, records: Buffer, *, may_have_gaps: bool) -> list[AppendBatch]:
        return replicated_batches(
            records,
            end_offset=self.log.log_end_offset,
            latest_epoch=self.log.epochs.latest_epoch,
            leader_epoch=self.leader_epoch,
            may_have_gaps=may_have_gaps,
            is_empty=self.log.is_empty,
        )

    def flush_as_follower(self, on_flushed: OnFlushed) -> None:
        """Call `on_flushed` once: with None when all that was appended counts, at once if it does; else with the fault.

        Faults: KAFKA_STORAGE_ERROR (56) when the log is offline or goes offline before the flush is done, and
        NOT_LEADER_OR_FOLLOWER (6) when the partition is closed meanwhile.

        Under page-cache durability what is written counts.
        """
        if self.log.is_offline:
            on_flushed(self._not_flushed())
            return
        if not self._is_flushed:
            self._sync_by_count()
        if not self._is_flushed or self.log.is_flushed:
            on_flushed(None)
            return

        def done() -> None:
            self._flush_done()
            on_flushed(self._not_flushed() if self.is_closed or self.log.is_offline else None)

        self._flushes_pending += 1
        self._disk.flush(self.log, done)

    def _not_flushed(self) -> KafkaError:
        if self.is_closed:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is closed here")
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {self.log.failure}")

    def follow_leader(self, *, high_watermark: int, log_start_offset: int) -> None:
        """Take over what the leader has said of its own high watermark and log start, as far as this log reaches."""
        self.agreed_epoch = self.leader_epoch
        advanced = min(high_watermark, self._own_end_offset)
        if advanced > self.high_watermark:
            self._rise(advanced)
        self._advance_log_start(min(log_start_offset, self.high_watermark))

    def truncate_to(self, offset: int) -> None:
        """Cut off what the leader does not have. `recovery_bound` must have been made durable before.

        Raises StorageError; the log is offline then.
        """
        assert not self.is_leader, f"{self.topic_partition} is led here"
        log = self.log
        log.truncate_to(offset)
        log.epochs.truncate_from_end(log.log_end_offset)
        self._high_watermark.move_to(min(self.high_watermark, log.log_end_offset))
        self.recovery_bound = None
        self.tell(_CUT)

    def restart_at(self, offset: int) -> None:
        """Drop everything and begin here, where the leader's log begins. `recovery_bound` must have been 0, durably.

        Raises StorageError as `truncate_to`.
        """
        assert not self.is_leader, f"{self.topic_partition} is led here"
        self.log.truncate_fully_and_start_at(offset)
        self._high_watermark.move_to(offset)
        self.recovery_bound = None
        self.tell(_CUT | Change.LOG_START)

    @property
    def recovery_point(self) -> int:
        """Up to where the log is durable, and stays; not above damage: a start looks no further back than this."""
        log = self.log
        offset = min(log.flushed_offset, log.good_end_offset) if log.is_damaged else log.flushed_offset
        return offset if self.recovery_bound is None else min(offset, self.recovery_bound)

    def _sync_by_count(self) -> None:
        """flush.messages, under page-cache durability."""
        log = self.log
        if log.log_end_offset - log.flushed_offset >= self.config.flush_messages and not self._flushes_pending:
            self.sync(_nothing)

    @property
    def traffic(self) -> Traffic:
        """What has gone in and out, for the metrics."""
        records_in = max(0, self.log.log_end_offset - self._opened_at_offset)
        return Traffic(records_in, self.written_bytes, self.sent_bytes)

    @property
    def high_watermark(self) -> int:
        """Below it everything is safe, and can be read."""
        return self._high_watermark.offset

    @property
    def readable_bytes(self) -> int:
        """`written_bytes` as it was at the high watermark, or less. Only differences mean anything: what a long poll
        gained."""
        return self._high_watermark.readable_bytes

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is open, and no marker of one above the high watermark; at most that (KIP-98)."""
        high_watermark = self._high_watermark.offset
        transactions = self.log.producers.transactions
        if not transactions:
            return high_watermark
        first_offset = transactions.first_unstable_offset(high_watermark)
        if first_offset is None or first_offset >= high_watermark:
            return high_watermark
        return max(first_offset, self.log.log_start_offset)

    def when_high_watermark_reaches(self, offset: int, waiter: Waiter) -> None:
        """Call `waiter(None)` once the high watermark is at `offset` or above, at once if it is; or with an error."""
        if self.high_watermark >= offset:
            waiter(None)
        elif not self.is_leader:
            waiter(self._not_leader())
        else:
            self._high_watermark.wait(offset, waiter)

    def wait_no_more(self, offset: int, waiter: Waiter) -> None:
        """Do not call who waits for the high watermark to be here."""
        self._high_watermark.wait_no_more(offset, waiter)

    def readable_end(self, isolation: int) -> int:
        """The offset (exclusive) up to which a consumer of this isolation level may read."""
        return self.last_stable_offset if isolation == READ_COMMITTED else self.high_watermark

    def read(self, limits: ReadLimits) -> PartitionRead:
        """Whole batches from the one that contains the offset on, within these limits.

        Nothing at or above the readable end is given: an offset between it and the log end reads as empty. Raises
        KafkaError OFFSET_OUT_OF_RANGE (1) and those of `check_leader`.
        """
        leader_epoch, isolation = limits.leader_epoch, limits.isolation
        if not self.is_leader or (leader_epoch != self.leader_epoch and leader_epoch >= 0):
            self.check_leader(leader_epoch)
        end_offset = self._high_watermark.offset if isolation != READ_COMMITTED else self.last_stable_offset
        read = self._read(limits, end_offset)
        if isolation == READ_COMMITTED and read.size_bytes:
            read.aborted = self.log.aborted_transactions(limits.offset, read.next_offset)
        return read

    def read_for_replica(self, limits: ReadLimits) -> PartitionRead:
        """As `read`, for a follower: up to the log end, flushed or not. Both disks may then be busy at once.

        Below the high watermark, where no replica in sync reads, checksums are checked too: a follower would refuse a
        damaged batch and ask for it again, without an end. Damage puts the log offline: StorageError.
        """
        self.check_leader()
        got = self._read(limits, self.log.log_end_offset)
        if limits.offset < self._high_watermark.offset:
            self._check_sums(got.records)
        return got

    def _check_sums(self, records: Buffer) -> None:
        view = memoryview(records)
        try:
            for position, header in iter_batches(view):
                check_crc(view, position, header)
        except CorruptRecords as fault:
            self.log.condemn(fault.detail)
            raise StorageError(fault.detail) from fault

    def _read(self, limits: ReadLimits, end_offset: int) -> PartitionRead:
        log, offset = self.log, limits.offset
        if log.is_offline:
            log.refuse()
        high_watermark, log_start_offset = self._high_watermark.offset, log.log_start_offset
        records: Buffer = b""
        size_bytes, next_offset = 0, offset
        reaches_end = True
        if log_start_offset <= offset < end_offset:
            reaches_end = False
            if limits.max_bytes > 0 or limits.min_one_message:
                result = log.read(limits, end_offset)
                size_bytes, next_offset = result.size_bytes, result.next_offset
                reaches_end = next_offset >= end_offset
                chunks = result.records
                records = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        elif not log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has offsets {log_start_offset} to {log.log_end_offset}, not {offset}",
            )
        return PartitionRead(
            records,
            size_bytes,
            next_offset=next_offset,
            reaches_end=reaches_end,
            high_watermark=high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=log_start_offset,
        )

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record with this timestamp (ms since 1970) or a later one, wherever the readable end is."""
        return self._found(self.log.offset_for_timestamp(timestamp))

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """The record with the largest timestamp, the first of them if there are several; None in an empty log."""
        return self._found(self.log.max_timestamp_offset())

    def _found(self, found: tuple[int, int, int] | None) -> TimestampedOffset | None:
        return None if found is None else TimestampedOffset(*found)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Where `epoch` ends in this log, with the epoch that the answer is about; (-1, -1): not known (KIP-320)."""
        return self.log.epochs.end_offset_for(epoch, log_end_offset=self.log.log_end_offset)

    @property
    def leader_epoch_start_offset(self) -> int:
        """Where the leader's epoch starts. Below it a new leader does not know yet what its predecessor committed."""
        starts = (entry.start_offset for entry in self.log.epochs.entries if entry.epoch == self.leader_epoch)
        return next(starts, self.log.log_start_offset)

    def check_leader(self, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Raises KafkaError FENCED_LEADER_EPOCH (74), UNKNOWN_LEADER_EPOCH (75) or NotLeader (6), in Kafka's order."""
        if leader_epoch >= 0 and leader_epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {leader_epoch} is over; now {self.leader_epoch}"
            )
        if leader_epoch >= 0 and leader_epoch > self.leader_epoch:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"leader epoch {leader_epoch} is not known here yet; now {self.leader_epoch}",
            )
        if not self.is_leader:
            raise self._not_leader()

    def _not_leader(self) -> NotLeader:
        leader = NO_LEADER if self.state is None else self.state.leader
        if leader == self._broker_id:
            leader = NO_LEADER  # this broker is about to give it up, and does not know to whom
        where = "nobody" if leader == NO_LEADER else f"broker {leader}"
        return NotLeader(
            f"{self.topic_partition} is led by {where} as far as broker {self._broker_id} knows",
            leader=leader,
            leader_epoch=self.leader_epoch,
        )


def _nothing() -> None:
    pass
