"""A partition that this broker has a replica of: its role, its settings, and what producers and readers do with it.

The parts of a partition share `replica`, this broker's copy, with its waiters: `staging` has the batches that wait for
the end of the turn, also batches of coordinators; `in_sync` is the leading side, `following` the following side.
"""

from collections.abc import Callable

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import INTERNAL_TOPICS, OffsetAndEpoch, PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import validate_produced
from tailrace.protocol.schema import Buffer
from tailrace.replication.admission import Admission, Refusal, Unfolded
from tailrace.replication.follower_replica import FollowerReplica
from tailrace.replication.in_sync import InSyncReplicas
from tailrace.replication.outcomes import (
    NO_TIMESTAMP,
    READ_COMMITTED,
    UNKNOWN_EPOCH,
    OnDone,
    PartitionRead,
    Traffic,
)
from tailrace.replication.replica import PartitionContext, Replica
from tailrace.replication.staging import Staging
from tailrace.replication.verification import Verification, Verifications
from tailrace.replication.watchers import Change, Watcher, Watchers
from tailrace.storage import Log, ReadLimits, RetiredSegment

HIGH_WATERMARK = -1
"""The value in place of an offset: the high watermark."""


class Partition:
    """A partition that this broker has a replica of."""

    __slots__ = (
        "_admission",
        "_opened_at_offset",
        "following",
        "in_sync",
        "is_closed",
        "is_internal",
        "log",
        "replica",
        "sent_bytes",
        "staging",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: TopicId,
        log: Log,
        config: TopicConfig,
        context: PartitionContext,
        high_watermark: int = 0,
    ) -> None:
        """`high_watermark` is the high watermark in the checkpoint."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.is_closed = False
        """Whether this object is closed for good: the table may have another object for the partition."""
        self.sent_bytes = 0
        """Bytes of records that readers were sent; counted by the code that sends them."""
        self._opened_at_offset = log.log_end_offset
        self.replica = Replica(topic_partition, log=log, config=config, context=context, high_watermark=high_watermark)
        self.in_sync = InSyncReplicas(self.replica)
        self.replica.on_flushed = self.in_sync.advance_high_watermark
        self.following = FollowerReplica(self.replica)
        self.staging = Staging(self.replica, self.in_sync)
        self._admission: Admission | Refusal = Admission(config)

    # Role

    @property
    def state(self) -> PartitionState | None:
        """The latest state that came from the controller; None before the first role."""
        return self.replica.state

    @property
    def is_leader(self) -> bool:
        return self.replica.is_leader

    @property
    def leader_epoch(self) -> int:
        return self.replica.leader_epoch

    @property
    def leader_epoch_start_offset(self) -> int:
        """The start offset of the leader's epoch. While the high watermark is below this offset, the last leader's high
        watermark is not known."""
        return self.replica.leader_epoch_start_offset

    @property
    def broker_id(self) -> BrokerId:
        """The broker that has this replica."""
        return self.replica.context.broker_id

    def leads_in(self, leader_epoch: int) -> bool:
        """Whether `check_leader` would pass, in one call: each partition of each fetch needs the check."""
        replica = self.replica
        return replica.is_leader and (leader_epoch < 0 or leader_epoch == replica.leader_epoch)

    def check_leader(self, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Raises KafkaError FENCED_LEADER_EPOCH (74), UNKNOWN_LEADER_EPOCH (75) or NotLeader (6), in Kafka's order."""
        self.replica.check_leader(leader_epoch)

    def check_replica(self, leader_epoch: int) -> None:
        """Check the epoch of a request that followers carry out too. Raises what `check_leader` raises, but NotLeader
        (6) only if this broker neither leads nor follows."""
        replica = self.replica
        replica.check_epoch(leader_epoch)
        if replica.is_closed or replica.state is None:
            raise replica.not_leader()

    def become_leader(self, state: PartitionState) -> None:
        """Lead the partition from now on, in the epoch of `state`. Does nothing if this broker already leads in that
        epoch."""
        replica, log = self.replica, self.log
        assert state.leader == self.broker_id, f"{self.topic_partition} is led by {state.leader}, not {self.broker_id}"
        if replica.is_leader and replica.leader_epoch == state.leader_epoch:
            if replica.state is None or state.partition_epoch >= replica.state.partition_epoch:
                self.in_sync.take_state(state)
                self.in_sync.advance_high_watermark(replica.own_end_offset)
            return
        self.staging.drop()  # a batch of the old epoch must not come behind the start of the new epoch
        log.epochs.assign(state.leader_epoch, log.log_end_offset)
        replica.leader_epoch = state.leader_epoch
        replica.is_leader = True
        replica.acknowledged_end = 0
        self.following.agreed_epoch = state.leader_epoch
        self.following.recovery_bound = self.in_sync.leadership = None
        self.in_sync.take_state(state)
        if replica.context.is_flushed and log.flushed_offset < log.log_end_offset:
            replica.flush()  # the records that recovery found can be read when they are flushed
        else:
            self.in_sync.advance_high_watermark(replica.own_end_offset)
        replica.notify(Change.ROLE)  # readers of the epoch before must fetch again

    def step_down(self, state: PartitionState | None = None) -> None:
        """Stop leading: waiting requests and all later ones are answered with the new leader."""
        replica, log = self.replica, self.log
        replica.is_leader = False
        self.staging.verifications = Verifications()
        self.in_sync.leadership = None
        if state is None or state.leader_epoch != replica.leader_epoch:
            self.following.forget_leader()
        if state is not None:
            self.in_sync.take_state(state)
            replica.leader_epoch = state.leader_epoch
            # An epoch in which nothing was written: the next leader's log may have an older epoch at this offset.
            log.epochs.truncate_from_end(log.log_end_offset)
        self.staging.drop()
        replica.end_leadership()
        replica.notify(Change.ROLE)

    # Settings

    @property
    def config(self) -> TopicConfig:
        return self.replica.config

    def take_config(self, config: TopicConfig) -> None:
        """Take a topic's changed settings, just before the state that belongs to them."""
        self.replica.config = config
        if not isinstance(self._admission, Refusal):
            self._admission = Admission(config)
        self.log.update_config(config)
        self.replica.notify(Change.SETTINGS)

    def update_config(self, config: TopicConfig) -> None:
        """Apply a topic's changed settings from now on."""
        self.take_config(config)
        if self.state is not None:
            self.in_sync.take_state(self.state)
            self.in_sync.advance_high_watermark(self.replica.own_end_offset)

    def refuse_produce(self, reason: str | None) -> None:
        """Refuse batches of producers, with KAFKA_STORAGE_ERROR (56) and this reason; None: accept batches of producers
        again.

        Writes of brokers go on: committed offsets and groups.
        """
        if not self.is_internal:
            self._admission = Admission(self.config) if reason is None else Refusal(reason)

    # End

    def close(self) -> None:
        """Stop leading, make the log durable and close it. Only for a node that stops, when no flush is under way any
        more."""
        self.is_closed = self.replica.is_closed = True
        self.step_down()
        self.log.close(clean=True)

    def abandon(self, on_abandoned: Callable[[], None]) -> None:
        """Stop leading, and close the log when its last flush is done: its records are not needed any more.

        Then call `on_abandoned`: from now on the files of the log may be moved. A flush under way may sync the files by
        name.
        """
        self.is_closed = self.replica.is_closed = True
        self.step_down()
        self.replica.abandon(on_abandoned)

    # Appends

    def append_as_leader(
        self,
        records: Buffer | None,
        *,
        acks: int,
        produce_version: int,
        now_ms: int,
        on_done: OnDone,
        verification: Verification | None = None,
        unfolded: Unfolded | None = None,
    ) -> None:
        """Stage the one batch that a producer sent; `on_done` is called when the batch is in the log, or with the
        error.

        The batch is stamped in place if its buffer can be written. `on_done` does not wait for replicas or the disk:
        for acks=-1 `Replica.when_high_watermark_reaches` comes next. `verification` is for a transaction's first batch.
        Raises KafkaError if the batch is refused at once. Raises LargeBatch, whose steps give the `unfolded` of the
        next call.
        """
        if not self.replica.is_leader:
            raise self.replica.not_leader()
        if acks == -1 and not self.in_sync.has_enough:
            self.in_sync.check_enough()
        if not records:
            detail = "no records; a producer must send exactly one batch per partition"
            raise KafkaError(ErrorCode.INVALID_RECORD, detail)
        header = validate_produced(records, produce_version=produce_version)
        batch = records if type(records) is memoryview else memoryview(records)
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        admission = self._admission
        if admission.must_look_at(batch, header, now_ms):
            batch, header = admission.admit(batch, header, now_ms, unfolded)
        stamps_append_time = admission.stamps_append_time
        if header.producer_id >= 0 and self.staging.is_retry(
            header, verification, on_done, stamps_append_time=stamps_append_time
        ):
            return
        self.staging.stage(batch, header, now_ms if stamps_append_time else NO_TIMESTAMP, on_done)

    def note_acknowledged(self, end_offset: int) -> None:
        """Note that records up to this offset were acknowledged to a producer (acks=1). The records may not be readable
        yet."""
        self.replica.acknowledged_end = max(self.replica.acknowledged_end, end_offset)

    @property
    def awaited_end(self) -> int | None:
        """The end of the acknowledged records above the high watermark: the high watermark rises there soon. None
        without such records, and while too few replicas are in sync."""
        end_offset = self.replica.acknowledged_end
        return end_offset if end_offset > self.high_watermark and self.in_sync.has_enough else None

    def sync(self, on_done: Callable[[], None]) -> None:
        """Flush the present log to the disk, whatever log.durability says; then call `on_done`.

        `on_done` is called too if the log goes offline meanwhile: then only records below `log.flushed_offset` are
        durable.
        """
        self.replica.flush_and(on_done, disk=self.replica.context.syncing_disk)

    # Removal

    def delete_records(self, offset: int) -> int:
        """Let the log start at this offset, or at the high watermark for -1; the new log start (KIP-107).

        An offset below the log start changes nothing. Raises KafkaError POLICY_VIOLATION (44) if the topic keeps the
        last values of its keys and must not lose old records, OFFSET_OUT_OF_RANGE (1) above the high watermark, and the
        errors of `check_leader`. The caller writes the log starts to the disk before a client gets the answer.
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
        self.replica.advance_log_start(wanted)
        return self.log.log_start_offset

    def apply_retention(self, now_ms: int, *, frees_all: bool = False) -> list[RetiredSegment]:
        """Remove the segments that the topic's settings do not keep; on a follower, only segments below its leader's
        log start. `frees_all`: the active segment too."""
        before, below_start = self.log.log_start_offset, not self.is_leader
        retired = self.log.retention.apply(
            now_ms, self.high_watermark, only_below_log_start=below_start, frees_all=frees_all
        )
        if self.log.log_start_offset != before:
            self.notify(Change.LOG_START)
        return retired

    # Watchers

    def watch(self, watcher: Watcher, kinds: int) -> None:
        """Notify `watcher` of every change of these kinds (`Change`) until `unwatch`. Another call replaces the
        kinds."""
        watchers = self.replica.watchers
        if watchers is None:
            watchers = self.replica.watchers = Watchers(self)
        watchers.add(watcher, kinds)

    def unwatch(self, watcher: Watcher) -> None:
        """Remove the watcher, if it is registered."""
        if self.replica.watchers is not None:
            self.replica.watchers.remove(watcher)

    def notify(self, kinds: int) -> None:
        """Notify the watchers of changes of these kinds."""
        self.replica.notify(kinds)

    # Reads

    @property
    def high_watermark(self) -> int:
        """The high watermark: every record below it is committed, and can be read."""
        return self.replica.high_watermark.offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which read_committed may read: the start of the oldest transaction that is open, or whose
        marker is not committed, and at most the high watermark (KIP-98)."""
        return self.replica.last_stable_offset

    @property
    def readable_bytes(self) -> int:
        """At most the bytes written below the high watermark. Only the difference of two values has a meaning: the
        bytes that a long poll has gained."""
        return self.replica.high_watermark.readable_bytes

    def readable_end(self, isolation: int) -> int:
        """The offset (exclusive) up to which a consumer of this isolation level may read."""
        return self.last_stable_offset if isolation == READ_COMMITTED else self.high_watermark

    def read(self, limits: ReadLimits) -> PartitionRead:
        """Whole batches, from the batch that has the offset on, within these limits. Leaders and followers both can be
        read.

        The result has no record at or above the readable end. A read between the readable end and the log end is empty;
        on a follower, also a read above the log end, where records may follow. Raises KafkaError OFFSET_OUT_OF_RANGE
        (1) and the errors of `check_replica`. For a reader that must not read from a follower, call `check_leader`
        before.
        """
        replica, leader_epoch, isolation = self.replica, limits.leader_epoch, limits.isolation
        if not replica.is_leader or (leader_epoch != replica.leader_epoch and leader_epoch >= 0):
            self.check_replica(leader_epoch)
        end_offset = replica.high_watermark.offset if isolation != READ_COMMITTED else replica.last_stable_offset
        read = replica.read(limits, end_offset) if replica.is_leader else self.following.read(limits, end_offset)
        if isolation == READ_COMMITTED and read.size_bytes:
            read.aborted = self.log.aborted_transactions(limits.offset, read.next_offset)
        return read

    def is_read_up_to(self, offset: int, isolation: int, leader_epoch: int) -> bool:
        """Whether this broker leads in that epoch, and the offset is the readable end, so that `read` would give
        nothing.

        Cheaper than `read`, for a reader that has just read up to the end.
        """
        replica = self.replica
        if not replica.is_leader or (leader_epoch != replica.leader_epoch and leader_epoch >= 0) or self.log.is_offline:
            return False
        return offset == (replica.high_watermark.offset if isolation != READ_COMMITTED else replica.last_stable_offset)

    def unavailable(self, offset: int) -> KafkaError:
        """The error of a consumer that has waited for an offset above the high watermark (KIP-392).

        OFFSET_NOT_AVAILABLE (78) if the offset is in the log, or below the leader's high watermark: the record exists,
        but is not known to be committed, or has not arrived yet. Otherwise OFFSET_OUT_OF_RANGE (1), which only a
        follower answers here: its leader may have the record.
        """
        high_watermark = self.high_watermark
        if self.is_leader or offset <= max(self.log.log_end_offset, self.following.leader_high_watermark):
            return KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"offset {offset} of {self.topic_partition} is above the high watermark {high_watermark}",
            )
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{self.topic_partition} has offsets {self.log.log_start_offset} to {self.log.log_end_offset} on this"
            f" follower, not {offset}",
        )

    def read_for_replica(self, limits: ReadLimits) -> PartitionRead:
        """Read for a follower that fetches: up to the log end, flushed or not, so that both disks flush at the same
        time.

        Below the high watermark, where no replica in sync reads, checksums are checked too: a follower would refuse a
        damaged batch and fetch the batch again without end. Damage puts the log offline: StorageError.
        """
        self.replica.check_leader()
        return self.replica.read_to_log_end(limits)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The end of the largest epoch up to `epoch` in this log, with that epoch; (-1, -1): not known (KIP-320)."""
        return self.log.epochs.end_offset_for(epoch, log_end_offset=self.log.log_end_offset)

    @property
    def traffic(self) -> Traffic:
        """The bytes and records of this partition since the log was opened, for the metrics."""
        records_in = max(0, self.log.log_end_offset - self._opened_at_offset)
        return Traffic(records_in, self.replica.written_bytes, self.sent_bytes)
