"""One replica of a partition, as its leader sees it: what is appended, what is safe, what may be read.

Invariants:
1. log_start_offset <= high_watermark <= log_end_offset, and the high watermark never falls while a leader leads.
2. Under flushed durability the high watermark is at most the flushed end offset: what a reader has seen, or a producer
   was told with acks=all, survives a power cut. Under page-cache durability it follows the log end, as Kafka's does.
3. Batches are staged in the order in which they came and written with one `write_staged` per turn. Nobody is told
   anything about a batch before it is in the log; if the write fails, every batch of that turn gets the error.
4. A staged batch's bytes are the sender's: they are used until `write_staged` returns and never after it.

A waiter is called once: when the high watermark has passed its offset, or with the error that makes this impossible.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import INTERNAL_TOPICS, OffsetAndEpoch, PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, read_header, stamp, validate_produced
from tailrace.protocol.records.record import BatchBuilder
from tailrace.protocol.schema import Buffer
from tailrace.replication.admission import Admission, Refusal
from tailrace.replication.high_watermark import HighWatermark
from tailrace.replication.in_sync import advanced_high_watermark, has_enough_in_sync
from tailrace.replication.outcomes import (
    NO_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    UNKNOWN_EPOCH,
    Appended,
    NotLeader,
    PartitionRead,
    TimestampedOffset,
    Traffic,
)
from tailrace.replication.waiting import Waiter
from tailrace.storage import AppendBatch, Log

__all__ = (
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "Appended",
    "NotLeader",
    "OnDone",
    "Partition",
    "PartitionRead",
    "Watcher",
)

HIGH_WATERMARK = -1
"""In place of an offset: wherever the high watermark is."""

OnDone = Callable[[Appended | KafkaError], None]
Watcher = Callable[["Partition"], None]


class Flusher(Protocol):
    """What makes a log durable, later; see `server.ports.Disk`."""

    def flush(self, log: Log, on_done: Callable[[], None]) -> None: ...


class Partition:
    """A partition that this broker has a replica of."""

    __slots__ = (
        "_admission",
        "_answers",
        "_batches",
        "_broker_id",
        "_disk",
        "_flushes_pending",
        "_has_enough_in_sync",
        "_high_watermark",
        "_is_flushed",
        "_is_only_in_sync",
        "_on_abandoned",
        "_on_staged",
        "_opened_at_offset",
        "_syncing_disk",
        "config",
        "is_closed",
        "is_internal",
        "is_leader",
        "leader_epoch",
        "log",
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
        on_staged: "Callable[[Partition], None]",
        syncing_disk: Flusher | None = None,
        is_flushed: bool = True,
        high_watermark: int = 0,
    ) -> None:
        """`high_watermark` is the checkpointed one; `on_staged` is told when the first batch of a turn is staged.

        `syncing_disk` makes logs durable also under page-cache durability, where `disk` does nothing.
        """
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.config = config
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.is_leader = False
        self.leader_epoch = LeaderEpoch(UNKNOWN_EPOCH)
        self.state: PartitionState | None = None
        self._high_watermark = HighWatermark(max(min(high_watermark, log.log_end_offset), log.log_start_offset))
        self.written_bytes = 0
        """Bytes appended since the log was opened; a metric, and the measure of `readable_bytes`."""
        self._opened_at_offset = log.log_end_offset
        self.sent_bytes = 0
        """Bytes of records that readers were sent; they are counted by who sends them."""
        self._broker_id = broker_id
        self._has_enough_in_sync = True
        self._is_only_in_sync = False
        self.is_closed = False
        self._flushes_pending = 0
        self._on_abandoned: Callable[[], None] | None = None
        self._is_flushed = is_flushed
        self._admission: Admission | Refusal = Admission(config)
        self._disk = disk
        self._syncing_disk = disk if syncing_disk is None else syncing_disk
        self._on_staged = on_staged
        self._batches: list[AppendBatch] = []
        self._answers: list[tuple[OnDone, Appended | KafkaError]] = []

    def become_leader(self, state: PartitionState) -> None:
        """Lead the partition from now on, in the epoch of `state`. A no-op for an epoch that is led already."""
        assert state.leader == self._broker_id, (
            f"{self.topic_partition} is led by {state.leader}, not {self._broker_id}"
        )
        self._follow_state(state)
        if self.is_leader and self.leader_epoch == state.leader_epoch:
            return
        self.log.epochs.assign(state.leader_epoch, self.log.log_end_offset)
        self.leader_epoch = state.leader_epoch
        self.is_leader = True
        if self._is_flushed and self.log.flushed_offset < self.log.log_end_offset:
            self._ask_for_flush()  # what recovery found is readable once it is safe
        else:
            self._advance_high_watermark(self.log.log_end_offset)

    def step_down(self, state: PartitionState | None = None) -> None:
        """Stop leading: everybody who waits is told, and whoever asks from now on is sent to the new leader."""
        self.is_leader = False
        if state is not None:
            self._follow_state(state)
            self.leader_epoch = state.leader_epoch
        self._high_watermark.fail(self._not_leader())
        self._high_watermark.wake()

    def update_config(self, config: TopicConfig) -> None:
        """Apply a topic's changed settings to all that comes from now on."""
        self.config = config
        if not isinstance(self._admission, Refusal):
            self._admission = Admission(config)
        self.log.update_config(config)
        if self.state is not None:
            self._follow_state(self.state)

    def delete_records(self, offset: int) -> int:
        """Let the log start at this offset, or at the high watermark for -1; where it starts then (KIP-107).

        Below the log start nothing changes. Raises KafkaError POLICY_VIOLATION (44) if the topic keeps what its keys
        last said and is not to lose old records, OFFSET_OUT_OF_RANGE (1) above the high watermark, and those of
        `check_leader`. Whoever answers a client must have written the log starts down before.
        """
        self.check_leader()
        if "delete" not in self.config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic_partition.topic} is compacted: cleanup.policy must include delete for this",
            )
        wanted = self.high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= wanted <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} can start at {self.high_watermark}, its high watermark, at the latest",
            )
        self.log.advance_log_start(wanted)
        return self.log.log_start_offset

    def refuse_produce(self, reason: str | None) -> None:
        """Refuse what producers send with KAFKA_STORAGE_ERROR (56) and this reason; None: take it again.

        What brokers write goes on: committed offsets and groups.
        """
        if not self.is_internal:
            self._admission = Admission(self.config) if reason is None else Refusal(reason)

    def sync(self, on_done: Callable[[], None]) -> None:
        """Have all that is in the log now made durable, whatever log.durability says; then call `on_done`."""

        def done() -> None:
            self._flush_done()
            on_done()

        self._flushes_pending += 1
        self._syncing_disk.flush(self.log, done)

    def apply_retention(self, now_ms: int) -> None:
        """Let segments go that the topic's settings do not keep. Only a leader does; followers follow its log start."""
        if self.is_leader:
            self.log.apply_retention(now_ms, self.high_watermark)

    def close(self) -> None:
        """Stop leading, make the log durable and close it. For a node that stops: no flush is under way any more."""
        self.is_closed = True
        self.step_down()
        self.log.close(clean=True)

    def abandon(self, on_abandoned: Callable[[], None]) -> None:
        """Stop leading, and close the log, whose records are not wanted any more, when the last flush of it is done.

        Then call `on_abandoned`: only now may its files be moved. The disk may be syncing them, by name, until then.
        """
        self.is_closed = True
        self.step_down()
        self._on_abandoned = on_abandoned
        if not self._flushes_pending:
            self._close_abandoned()

    def append_as_leader(
        self, records: Buffer | None, *, acks: int, produce_version: int, now_ms: int, on_done: OnDone
    ) -> None:
        """Stage the one batch that a producer sent; `on_done` is called when it is in the log, or with why it is not.

        The batch is stamped in place if its buffer can be written. `on_done` does not wait for replicas or the disk:
        whoever promised that (acks=-1) goes on with `when_high_watermark_reaches`. Raises KafkaError if the batch is
        refused at once.
        """
        if not self.is_leader:
            raise self._not_leader()
        if acks == -1 and not self._has_enough_in_sync:
            raise self._not_enough_in_sync()
        if not records:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, "no records; a producer must send exactly one batch per partition"
            )
        header = validate_produced(records, produce_version=produce_version)
        batch = records if type(records) is memoryview else memoryview(records)
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        admission = self._admission
        if admission.must_look_at(header, now_ms):
            batch, header = admission.admit(batch, header, now_ms)
        if header.producer_id >= 0 and self._is_retry(header, on_done):
            return
        self._stage(batch, header, now_ms if admission.stamps_append_time else NO_TIMESTAMP, on_done)

    def append_records(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        now_ms: int,
        on_done: OnDone,
        on_appended: OnDone | None = None,
    ) -> None:
        """Stage (key, value) records of a coordinator as one batch; `on_done` is called when it is committed, or not.

        Committed: the high watermark has passed it. `on_appended` is called before that, when the batch is in the log.
        Neither is called before this returns, and each is told of an error once.
        """

        def appended(outcome: Appended | KafkaError) -> None:
            if on_appended is not None:
                on_appended(outcome)
            if isinstance(outcome, KafkaError):
                on_done(outcome)
            else:
                self.when_high_watermark_reaches(
                    outcome.last_offset + 1, lambda failure: on_done(outcome if failure is None else failure)
                )

        try:
            batch = self._batch_of(records, now_ms)
        except KafkaError as refusal:
            self._stage_answer(appended, KafkaError(refusal.code, refusal.detail))
            return
        view = memoryview(batch)
        self._stage(view, read_header(view), NO_TIMESTAMP, appended)

    def write_staged(self) -> None:
        """Write what this turn has staged, with one append; then tell whoever waits, in order; then ask for a flush."""
        batches, answers = self._batches, self._answers
        self._batches, self._answers = [], []
        is_to_be_flushed = False
        if batches:
            log = self.log
            size_bytes = log.size_bytes
            try:
                log.append(batches)
            except KafkaError as failure:
                log.producers.discard_staged()
                answers = self._failed(answers, failure)
            else:
                self.written_bytes += log.size_bytes - size_bytes
                is_to_be_flushed = self._is_flushed
                if is_to_be_flushed:
                    self._high_watermark.note_write(log.log_end_offset, self.written_bytes)
                else:
                    self._advance_high_watermark(log.log_end_offset)
                    if (
                        log.log_end_offset - log.flushed_offset >= self.config.flush_messages
                        and not self._flushes_pending
                    ):
                        self.sync(_nothing)
        for on_done, outcome in answers:
            on_done(outcome)
        if is_to_be_flushed:
            self._flushes_pending += 1
            self._disk.flush(self.log, self._flush_done)

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
        """`written_bytes` as it was at the high watermark. Only differences mean anything: what a long poll gained."""
        return self._high_watermark.readable_bytes

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is open; at most the high watermark."""
        return self.high_watermark

    def when_high_watermark_reaches(self, offset: int, waiter: Waiter) -> None:
        """Call `waiter(None)` once the high watermark is at `offset` or above, at once if it is; or with an error."""
        if self.high_watermark >= offset:
            waiter(None)
        elif not self.is_leader:
            waiter(self._not_leader())
        else:
            self._high_watermark.wait(offset, waiter)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` once, when the readable end moves or this broker stops leading. Twice the same is once."""
        self._high_watermark.watch(watcher, lambda: watcher(self))

    def unwatch(self, watcher: Watcher) -> None:
        """Forget the watcher, if it is still there."""
        self._high_watermark.unwatch(watcher)

    def readable_end(self, isolation: int) -> int:
        """The offset (exclusive) up to which a consumer of this isolation level may read."""
        return self.last_stable_offset if isolation == READ_COMMITTED else self.high_watermark

    def read(
        self, offset: int, *, max_bytes: int, isolation: int, min_one_message: bool, leader_epoch: int = UNKNOWN_EPOCH
    ) -> PartitionRead:
        """Whole batches from the one that contains `offset` on, at most `max_bytes` of them.

        With `min_one_message` the first batch is given even if it is larger (KIP-74). Nothing at or above the readable
        end is given: an offset between it and the log end reads as empty. Raises KafkaError OFFSET_OUT_OF_RANGE (1) and
        those of `check_leader`.
        """
        if not self.is_leader or (leader_epoch != self.leader_epoch and leader_epoch >= 0):
            self.check_leader(leader_epoch)
        log = self.log
        high_watermark, log_start_offset = self._high_watermark.offset, log.log_start_offset
        end_offset = high_watermark if isolation != READ_COMMITTED else self.last_stable_offset
        records: Buffer = b""
        size_bytes = 0
        reaches_end = True
        if log_start_offset <= offset < end_offset:
            reaches_end = False
            if max_bytes > 0 or min_one_message:
                result = log.read(offset, max_bytes=max_bytes, end_offset=end_offset, min_one_message=min_one_message)
                size_bytes = result.size_bytes
                reaches_end = result.next_offset >= end_offset
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

    def _not_enough_in_sync(self) -> KafkaError:
        in_sync = () if self.state is None else self.state.in_sync_replicas
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{self.topic_partition} has {len(in_sync)} in-sync replicas; min.insync.replicas is "
            f"{self.config.min_insync_replicas}",
        )

    def _follow_state(self, state: PartitionState) -> None:
        self.state = state
        self._is_only_in_sync = tuple(state.in_sync_replicas) == (self._broker_id,)
        self._has_enough_in_sync = has_enough_in_sync(
            in_sync=state.in_sync_replicas,
            replicas=state.replicas,
            min_insync_replicas=self.config.min_insync_replicas,
        )

    def _is_retry(self, header: BatchHeader, on_done: OnDone) -> bool:
        """Whether the log has this very batch already; if so, the answer is staged. Raises what `check` raises."""
        if header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                "the producer has no transaction open here; produce without transactional.id",
            )
        original = self.log.producers.check(header)
        if original is None:
            return False
        self._stage_answer(
            on_done,
            Appended(
                original.base_offset,
                original.last_offset,
                original.timestamp if self._admission.stamps_append_time else NO_TIMESTAMP,
                self.log.log_start_offset,
            ),
        )
        return True

    def _stage(self, batch: memoryview, header: BatchHeader, log_append_time_ms: int, on_done: OnDone) -> None:
        batches, log, leader_epoch = self._batches, self.log, self.leader_epoch
        base_offset = batches[-1].header.end_offset if batches else log.log_end_offset
        stamp(batch, 0, base_offset, leader_epoch)
        header.base_offset = base_offset
        header.partition_leader_epoch = leader_epoch
        if header.producer_id >= 0:
            log.producers.stage(header)
        batches.append(AppendBatch(batch, header))
        if not self._answers:
            self._on_staged(self)
        last_offset = base_offset + header.last_offset_delta
        self._answers.append((on_done, Appended(base_offset, last_offset, log_append_time_ms, log.log_start_offset)))

    def _stage_answer(self, on_done: OnDone, outcome: Appended | KafkaError) -> None:
        if not self._answers:
            self._on_staged(self)
        self._answers.append((on_done, outcome))

    def _batch_of(self, records: Sequence[tuple[bytes | None, bytes | None]], now_ms: int) -> bytearray:
        self.check_leader()
        if not self._has_enough_in_sync:
            raise self._not_enough_in_sync()
        builder = BatchBuilder()
        for key, value in records:
            builder.append(now_ms, key, value)
        batch = builder.build()
        if len(batch) > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{len(batch)} bytes of {len(records)} records; max.message.bytes of {self.topic_partition.topic} is "
                f"{self.config.max_message_bytes}",
            )
        return batch

    def _failed(
        self, answers: list[tuple[OnDone, Appended | KafkaError]], failure: KafkaError
    ) -> list[tuple[OnDone, Appended | KafkaError]]:
        """The answers after a write that failed. A retry of a batch that is in the log since before still succeeds."""
        end_offset = self.log.log_end_offset
        return [
            (on_done, outcome)
            if isinstance(outcome, KafkaError) or outcome.last_offset < end_offset
            else (on_done, KafkaError(failure.code, failure.detail))
            for on_done, outcome in answers
        ]

    def _ask_for_flush(self) -> None:
        self._flushes_pending += 1
        self._disk.flush(self.log, self._flush_done)

    def _flush_done(self) -> None:
        self._flushes_pending -= 1
        if not self.is_closed:
            self._advance_high_watermark(self.log.flushed_offset)
        elif not self._flushes_pending and self._on_abandoned is not None:
            self._close_abandoned()

    def _close_abandoned(self) -> None:
        self.log.close(clean=False)
        on_abandoned, self._on_abandoned = self._on_abandoned, None
        assert on_abandoned is not None
        on_abandoned()

    def _advance_high_watermark(self, own_end_offset: int) -> None:
        """Take notice of how far the own log counts: flushed, or written under page-cache durability."""
        if self._is_only_in_sync:
            advanced = own_end_offset
        else:
            in_sync = () if self.state is None else self.state.in_sync_replicas
            ends = {self._broker_id: own_end_offset}
            advanced = advanced_high_watermark(self.high_watermark, end_offsets=ends, in_sync=in_sync)
        if advanced <= self.high_watermark or not (self.is_leader and self._has_enough_in_sync):
            return
        self._high_watermark.rise(advanced, None if self._is_flushed else self.written_bytes)

    def _found(self, found: tuple[int, int, int] | None) -> TimestampedOffset | None:
        return None if found is None else TimestampedOffset(*found)


def _nothing() -> None:
    pass
