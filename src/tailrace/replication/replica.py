"""This broker's copy of a partition: what the parts of a `Partition` share.

Invariants:
1. log_start_offset <= high_watermark <= log_end_offset, and the high watermark falls only when the log is cut.
2. Under flushed durability the high watermark is at most the flushed end offset: records that were read, or
   acknowledged with acks=all, survive a power cut. Under page-cache durability the high watermark follows the log end,
   as Kafka's does.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import check_crc, iter_batches
from tailrace.protocol.schema import Buffer
from tailrace.replication.outcomes import UNKNOWN_EPOCH, NotLeader, PartitionRead, not_leader
from tailrace.replication.watchers import Change, OffsetWaiters, Waiter, Watchers
from tailrace.storage import Log, ReadLimits

_MOST_NOTES: Final = 1_000
"""The most writes that are remembered apart. Later writes count together, and can be read when the high watermark
reaches the end of the last write."""


class HighWatermark:
    """The high watermark of one partition, its waiters, and the number of bytes that its rise has made readable.

    The high watermark only rises, unless the log is cut. `replication.leadership` decides whether a move is allowed.
    """

    __slots__ = ("_unflushed", "offset", "readable_bytes", "waiters")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """Everything below this offset is committed."""
        self.readable_bytes = 0
        """At most the bytes written below `offset`. Only the difference of two values has a meaning."""
        self._unflushed: deque[tuple[int, int]] | None = None  # (log end offset, bytes written) after each write
        self.waiters: Final = OffsetWaiters()

    def note_write(self, log_end_offset: int, written_bytes: int) -> None:
        """Remember the bytes written up to this log end, until the high watermark reaches this end."""
        if self._unflushed is None:
            self._unflushed = deque()
        elif len(self._unflushed) >= _MOST_NOTES:
            self._unflushed.pop()  # the high watermark may not move for hours, while replicas are away
        self._unflushed.append((log_end_offset, written_bytes))

    def rise(self, offset: int, written_bytes: int | None = None) -> None:
        """Move up, and call the waiters. `written_bytes` is given if no write was noted: then every written byte can be
        read now."""
        self.offset = offset
        if written_bytes is not None:
            self.readable_bytes = written_bytes
            self._unflushed = None
        elif (unflushed := self._unflushed) is not None:
            while unflushed and unflushed[0][0] <= offset:
                self.readable_bytes = unflushed.popleft()[1]
        self.waiters.reached(offset)

    def move_to(self, offset: int) -> None:
        """Set the high watermark after a truncation of the log. No callback runs: a follower's log has no waiters."""
        self.offset = offset
        self._unflushed = None


class Flusher(Protocol):
    """Makes a log durable, some time after the call; see `server.ports.Disk`."""

    def flush(self, log: Log, on_done: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContext:
    """The values and ports that the partitions of one broker share."""

    broker_id: BrokerId
    disk: Flusher
    """Makes logs durable as log.durability asks: under page-cache durability its `flush` does nothing."""
    syncing_disk: Flusher
    """Makes logs durable whatever log.durability says."""
    on_staged: Callable[[Any], None]
    """Called with a partition's `Staging` at the first batch of a turn; its `write` is due when the turn ends."""
    on_held_back: Callable[[Any, int], None]
    """Called with a partition's `InSyncReplicas` while a replica that joins holds its high watermark back; its
    `look_again` is due at this monotonic time, in ms."""
    is_flushed: bool
    """Whether log.durability is flushed, and not page-cache."""
    monotonic_ms: Callable[[], int]
    """The time by which followers are measured."""
    lag_ms: int
    """replica.lag.time.max.ms"""


class Replica:
    """This broker's copy of a partition."""

    __slots__ = (
        "_flush_waiters",
        "_flushes_pending",
        "_on_abandoned",
        "acknowledged_end",
        "config",
        "context",
        "high_watermark",
        "is_closed",
        "is_leader",
        "leader_epoch",
        "log",
        "on_flushed",
        "state",
        "topic_partition",
        "watchers",
        "written_bytes",
    )

    on_flushed: Callable[[int], None]
    """Called with the flushed offset after each flush of an open partition."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        log: Log,
        config: TopicConfig,
        context: PartitionContext,
        high_watermark: int,
    ) -> None:
        """`high_watermark` is the high watermark in the checkpoint."""
        self.topic_partition = topic_partition
        self.log = log
        self.config = config
        self.context = context
        self.state: PartitionState | None = None
        self.is_leader = False
        self.leader_epoch = LeaderEpoch(UNKNOWN_EPOCH)
        self.is_closed = False
        self.high_watermark = HighWatermark(max(min(high_watermark, log.log_end_offset), log.log_start_offset))
        self.written_bytes = 0
        """Bytes appended since the log was opened; a metric, and the measure of `HighWatermark.readable_bytes`."""
        self.watchers: Watchers[Any] | None = None
        self.acknowledged_end = 0
        """The end of the batches of this leader epoch that were acknowledged before all replicas in sync had them
        (acks=1)."""
        self._flush_waiters: OffsetWaiters | None = None
        self._flushes_pending = 0
        self._on_abandoned: Callable[[], None] | None = None

    # Durability

    @property
    def own_end_offset(self) -> int:
        """The end of the stored log: flushed, or written under page-cache durability."""
        return self.log.flushed_offset if self.context.is_flushed else self.log.log_end_offset

    def flush(self) -> None:
        """Flush the log; `on_flushed` follows."""
        self._flushes_pending += 1
        self.context.disk.flush(self.log, self._flush_done)

    def flush_and(self, on_done: Callable[[], None], *, disk: Flusher) -> None:
        """Flush the log by this disk, as `flush` does; then call `on_done`, also if the log goes offline or is closed
        meanwhile."""

        def done() -> None:
            self._flush_done()
            on_done()

        self._flushes_pending += 1
        disk.flush(self.log, done)

    def sync_by_count(self) -> None:
        """Flush the log after as many records as flush.messages says, under page-cache durability."""
        log = self.log
        if log.log_end_offset - log.flushed_offset >= self.config.flush_messages and not self._flushes_pending:
            self._flushes_pending += 1
            self.context.syncing_disk.flush(log, self._flush_done)

    def _flush_done(self) -> None:
        self._flushes_pending -= 1
        if not self.is_closed:
            self.on_flushed(self.log.flushed_offset)
            if self._flush_waiters is not None:
                self._call_flush_waiters(self._flush_waiters)
        elif self._on_abandoned is not None:
            self.abandon(self._on_abandoned)

    def _call_flush_waiters(self, waiters: OffsetWaiters) -> None:
        if self.log.is_offline:
            waiters.fail(StorageError(f"{self.topic_partition} went offline before it was flushed"))
        else:
            waiters.reached(self.log.flushed_offset)

    def when_flushed(self, offset: int, waiter: Waiter) -> None:
        """Call `waiter(None)` once the stored log of this leader has its end at `offset` or above, after the high
        watermark has risen; or with an error."""
        if self.own_end_offset >= offset:
            waiter(None)
        elif not self.is_leader:
            waiter(self.not_leader())
        else:
            if self._flush_waiters is None:
                self._flush_waiters = OffsetWaiters()
            self._flush_waiters.add(offset, waiter)

    def end_leadership(self) -> None:
        """Answer every request that waits for the high watermark or a flush with the new leader."""
        self.acknowledged_end = 0
        self.high_watermark.waiters.fail(self.not_leader())
        if self._flush_waiters is not None:
            self._flush_waiters.fail(self.not_leader())

    def cancel_wait(self, offset: int, waiter: Waiter) -> None:
        """Remove this waiter of this offset, if it still waits."""
        self.high_watermark.waiters.remove(offset, waiter)
        if self._flush_waiters is not None:
            self._flush_waiters.remove(offset, waiter)

    def abandon(self, on_abandoned: Callable[[], None]) -> None:
        """Close the log when no flush of the log is under way any more, then call `on_abandoned`."""
        if self._flushes_pending:
            self._on_abandoned = on_abandoned
        else:
            self._on_abandoned = None
            self.log.close(clean=False)
            on_abandoned()

    # Offsets

    def notify(self, kinds: int) -> None:
        """Notify the watchers of changes of these kinds."""
        watchers = self.watchers
        if watchers is not None and watchers.wanted & kinds:
            watchers.notify(kinds)

    def rise(self, offset: int, written_bytes: int | None = None) -> None:
        """Move the high watermark up; see `HighWatermark.rise`."""
        watchers, transactions = self.watchers, self.log.producers.transactions
        wants_stable = watchers is not None and watchers.wanted & Change.LAST_STABLE_OFFSET
        stable_before = self.last_stable_offset if wants_stable else 0
        if transactions.ended:
            transactions.forget_replicated(offset)
        self.high_watermark.rise(offset, written_bytes)
        if watchers is not None and watchers.wanted:
            is_stable_changed = wants_stable and self.last_stable_offset != stable_before
            self.notify(Change.HIGH_WATERMARK | (Change.LAST_STABLE_OFFSET if is_stable_changed else 0))

    def advance_log_start(self, offset: int) -> None:
        """Raise a lower log start to this offset."""
        before, stable_before = self.log.log_start_offset, self.last_stable_offset
        self.log.advance_log_start(offset)
        if self.log.log_start_offset != before:
            is_stable_changed = self.last_stable_offset != stable_before
            self.notify(Change.LOG_START | (Change.LAST_STABLE_OFFSET if is_stable_changed else 0))

    @property
    def last_stable_offset(self) -> int:
        """The offset below which read_committed may read: the start of the oldest transaction that is open, or whose
        marker is not committed, and at most the high watermark (KIP-98)."""
        high_watermark = self.high_watermark.offset
        transactions = self.log.producers.transactions
        if transactions.first_open_offset is None and not transactions.ended:
            return high_watermark
        first_offset = transactions.first_unstable_offset(high_watermark)
        if first_offset is None or first_offset >= high_watermark:
            return high_watermark
        return max(first_offset, self.log.log_start_offset)

    @property
    def leader_epoch_start_offset(self) -> int:
        """The start offset of the leader's epoch. While the high watermark is below this offset, the last leader's high
        watermark is not known."""
        starts = (entry.start_offset for entry in self.log.epochs.entries if entry.epoch == self.leader_epoch)
        return next(starts, self.log.log_start_offset)

    def when_high_watermark_reaches(self, offset: int, waiter: Waiter) -> None:
        """Call `waiter(None)` once the high watermark is at `offset` or above, perhaps at once; or with an error."""
        if self.high_watermark.offset >= offset:
            waiter(None)
        elif not self.is_leader:
            waiter(self.not_leader())
        else:
            self.high_watermark.waiters.add(offset, waiter)

    # Reads

    def read(self, limits: ReadLimits, end_offset: int) -> PartitionRead:
        """Read up to this offset, see `Partition.read`."""
        log, offset = self.log, limits.offset
        if log.is_offline:
            log.check_online()
        log_start_offset = log.log_start_offset
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
            next_offset,
            reaches_end,
            self.high_watermark.offset,
            self.last_stable_offset,
            log_start_offset,
        )

    def read_nothing(self, offset: int) -> PartitionRead:
        """The result of a read at the readable end, or at an offset whose record this log does not have yet."""
        return PartitionRead(
            b"",
            0,
            next_offset=offset,
            reaches_end=True,
            high_watermark=self.high_watermark.offset,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self.log.log_start_offset,
        )

    def read_to_log_end(self, limits: ReadLimits) -> PartitionRead:
        """The result of `Partition.read_for_replica`: a read up to the log end."""
        log = self.log
        got = self.read(limits, log.log_end_offset)
        if limits.offset < self.high_watermark.offset:
            view = memoryview(got.records)
            try:
                for position, header in iter_batches(view):
                    check_crc(view, position, header)
            except CorruptRecords as fault:
                log.condemn(fault.detail)
                raise StorageError(fault.detail) from fault
        return got

    # Role

    def check_leader(self, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Raises KafkaError FENCED_LEADER_EPOCH (74), UNKNOWN_LEADER_EPOCH (75) or NotLeader (6), in Kafka's order."""
        self.check_epoch(leader_epoch)
        if not self.is_leader:
            raise self.not_leader()

    def check_epoch(self, leader_epoch: int) -> None:
        """Raises KafkaError FENCED_LEADER_EPOCH (74) or UNKNOWN_LEADER_EPOCH (75). An epoch below 0: the client names
        no epoch."""
        if leader_epoch >= 0 and leader_epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {leader_epoch} is over; now {self.leader_epoch}"
            )
        if leader_epoch >= 0 and leader_epoch > self.leader_epoch:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"leader epoch {leader_epoch} is not known here yet; now {self.leader_epoch}",
            )

    def not_leader(self) -> NotLeader:
        """The error that names the leader, as far as this broker knows."""
        return not_leader(
            self.topic_partition,
            leader=NO_LEADER if self.state is None else self.state.leader,
            leader_epoch=self.leader_epoch,
            broker_id=self.context.broker_id,
        )
