"""A partition that this broker has a replica of: what its leader appends, commits, and wants in sync.

`replication.replica` has the log, the high watermark and the way of a follower, `replication.staging` what waits for
the end of the turn; both have invariants.

A waiter is called once: when the high watermark has passed its offset, or with the error that makes this impossible.
"""

from collections.abc import Callable, Collection, Sequence

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import INTERNAL_TOPICS, PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, read_header, validate_produced
from tailrace.protocol.records.control import EndTransactionMarker, build_marker
from tailrace.protocol.schema import Buffer
from tailrace.replication.admission import Admission, Refusal
from tailrace.replication.coordinator_batches import batch_of, when_committed
from tailrace.replication.in_sync import has_enough_in_sync
from tailrace.replication.leadership import DEFAULT_LAG_MS, AfterAnswer, Horizon, InSyncProposal, Leadership
from tailrace.replication.outcomes import (
    NO_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Appended,
    NotLeader,
    OnDone,
    PartitionRead,
)
from tailrace.replication.replica import Flusher
from tailrace.replication.replica_progress import ReplicaFetch
from tailrace.replication.staging import StagingReplica
from tailrace.replication.verification import UNNAMED, UNVERIFIED, Verification, Verifications
from tailrace.replication.watchers import Change
from tailrace.storage import Log

__all__ = (
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "Appended",
    "NotLeader",
    "OnDone",
    "Partition",
    "PartitionRead",
)

HIGH_WATERMARK = -1
"""In place of an offset: wherever the high watermark is."""


class Partition(StagingReplica):
    """A partition that this broker has a replica of."""

    __slots__ = (
        "_admission",
        "_has_enough_in_sync",
        "_lag_ms",
        "_leadership",
        "_monotonic_ms",
        "is_internal",
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
        on_staged: Callable[[StagingReplica], None],
        syncing_disk: Flusher | None = None,
        is_flushed: bool = True,
        high_watermark: int = 0,
        monotonic_ms: Callable[[], int] = lambda: 0,
        lag_ms: int = DEFAULT_LAG_MS,
    ) -> None:
        """`high_watermark` is the checkpointed one; `on_staged` is told when the first batch of a turn is staged.
        `lag_ms` is replica.lag.time.max.ms, `monotonic_ms` the time by which followers are measured.

        `syncing_disk` makes logs durable also under page-cache durability, where `disk` does nothing.
        """
        super().__init__(
            topic_partition,
            topic_id=topic_id,
            log=log,
            broker_id=broker_id,
            config=config,
            disk=disk,
            on_staged=on_staged,
            syncing_disk=syncing_disk,
            is_flushed=is_flushed,
            high_watermark=high_watermark,
        )
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self._has_enough_in_sync = True
        self._leadership: Leadership | None = None  # of who leads and has others, or something to tell
        self._monotonic_ms = monotonic_ms
        self._lag_ms = lag_ms
        self._admission: Admission | Refusal = Admission(config)

    def become_leader(self, state: PartitionState) -> None:
        """Lead the partition from now on, in the epoch of `state`. A no-op for an epoch that is led already."""
        assert state.leader == self._broker_id, (
            f"{self.topic_partition} is led by {state.leader}, not {self._broker_id}"
        )
        if self.is_leader and self.leader_epoch == state.leader_epoch:
            if self.state is None or state.partition_epoch >= self.state.partition_epoch:
                self._follow_state(state)
                self._advance_high_watermark(self._own_end_offset)
            return
        self._drop_staged()  # a batch of the epoch before must not come behind the start of this one
        self.log.epochs.assign(state.leader_epoch, self.log.log_end_offset)
        self.leader_epoch = self.agreed_epoch = state.leader_epoch
        self.is_leader = True
        self.recovery_bound = self._leadership = None
        self._follow_state(state)
        if self._is_flushed and self.log.flushed_offset < self.log.log_end_offset:
            self._ask_for_flush()  # what recovery found is readable once it is safe
        else:
            self._advance_high_watermark(self._own_end_offset)
        self.tell(Change.ROLE)  # a reader of the epoch before must ask anew

    def step_down(self, state: PartitionState | None = None) -> None:
        """Stop leading: everybody who waits is told, and whoever asks from now on is sent to the new leader."""
        self.is_leader = False
        self.verifications = Verifications()
        self._leadership = None
        if state is None or state.leader_epoch != self.leader_epoch:
            self._forget_leader()
        if state is not None:
            self._follow_state(state)
            self.leader_epoch = state.leader_epoch
            # An epoch in which nothing was written: the next leader's log may have an older one there.
            self.log.epochs.truncate_from_end(self.log.log_end_offset)
        self._drop_staged()
        self._high_watermark.fail(self._not_leader())
        self.tell(Change.ROLE)

    def take_config(self, config: TopicConfig) -> None:
        """Take a topic's changed settings, just before the state that belongs to them."""
        self.config = config
        if not isinstance(self._admission, Refusal):
            self._admission = Admission(config)
        self.log.update_config(config)

    def update_config(self, config: TopicConfig) -> None:
        """Apply a topic's changed settings to all that comes from now on."""
        self.take_config(config)
        if self.state is not None:
            self._follow_state(self.state)
            self._advance_high_watermark(self._own_end_offset)

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
        self._advance_log_start(wanted)
        return self.log.log_start_offset

    def refuse_produce(self, reason: str | None) -> None:
        """Refuse what producers send with KAFKA_STORAGE_ERROR (56) and this reason; None: take it again.

        What brokers write goes on: committed offsets and groups.
        """
        if not self.is_internal:
            self._admission = Admission(self.config) if reason is None else Refusal(reason)

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
        self,
        records: Buffer | None,
        *,
        acks: int,
        produce_version: int,
        now_ms: int,
        on_done: OnDone,
        verification: Verification | None = None,
    ) -> None:
        """Stage the one batch that a producer sent; `on_done` is called when it is in the log, or with why it is not.

        The batch is stamped in place if its buffer can be written. `on_done` does not wait for replicas or the disk:
        whoever promised that (acks=-1) goes on with `when_high_watermark_reaches`. `verification` is what the first
        batch of a transaction needs (`verifications`). Raises KafkaError if the batch is refused at once.
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
        if header.producer_id >= 0 and self._is_retry(header, verification, on_done):
            return
        self._stage(batch, header, now_ms if admission.stamps_append_time else NO_TIMESTAMP, on_done)

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether as many replicas are in sync as acks=all asks for."""
        return self._has_enough_in_sync

    @property
    def has_followers(self) -> bool:
        """Whether this node leads, and others are to have copies."""
        return self._leadership is not None

    def take_replica_fetch(self, replica_id: BrokerId, fetch: ReplicaFetch) -> bool:
        """A follower has all below its fetch offset: the high watermark may advance.

        Gives whether the in-sync replicas should change because of it. Raises KafkaError as `Leadership.take_fetch`
        and `check_leader`.
        """
        self.check_leader()
        if self._leadership is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica_id} is no replica of {self.topic_partition} here"
            )
        wants_change = self._leadership.take_fetch(replica_id, fetch, self._horizon())
        self._advance_high_watermark(self._own_end_offset)
        return wants_change

    def exclude_followers(self, broker_ids: Collection[BrokerId]) -> None:
        """These brokers are fenced, or stop: the high watermark does not wait for them to come in sync."""
        if self._leadership is not None and self._leadership.exclude(broker_ids):
            self._advance_high_watermark(self._own_end_offset)

    def propose_in_sync(self) -> InSyncProposal | None:
        """The in-sync replicas that should be, if others are and nothing is proposed yet; see `in_sync_answered`."""
        if self._leadership is None or self.is_closed:
            return None
        if self.log.is_damaged and self.state is not None and self.state.is_recovering:
            return None  # it has not recovered before the damage is cut
        return self._leadership.propose(self._horizon())

    def in_sync_answered(self, proposal: InSyncProposal, outcome: PartitionState | KafkaError) -> AfterAnswer:
        """The controller's answer to a proposal, and what is to be done now.

        That a replica has left counts when the image says so: the controller may have gone by a higher
        `min.insync.replicas` than this node has heard of, which the image brings first.
        """
        leadership, known = self._leadership, self.state
        if leadership is None or known is None:
            return AfterAnswer.NOTHING
        next_step = leadership.answered(proposal, outcome)
        if isinstance(outcome, PartitionState):
            is_news = outcome.partition_epoch > known.partition_epoch
            keeps_all = set(known.in_sync_replicas) <= set(outcome.in_sync_replicas)
            if is_news and keeps_all and (outcome.leader, outcome.leader_epoch) == (self._broker_id, self.leader_epoch):
                self.become_leader(outcome)
        self._advance_high_watermark(self._own_end_offset)
        return next_step

    def is_proposed(self, proposal: InSyncProposal) -> bool:
        """Whether this proposal is still under way."""
        return self._leadership is not None and self._leadership.pending is proposal

    def _horizon(self) -> Horizon:
        return Horizon(
            high_watermark=self.high_watermark,
            epoch_start_offset=self.leader_epoch_start_offset,
            log_end_offset=self.log.log_end_offset,
            now_ms=self._monotonic_ms(),
            lag_ms=self._lag_ms,
        )

    def append_records(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        now_ms: int,
        on_done: OnDone,
        on_appended: OnDone | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        verification: Verification | None = UNVERIFIED,
    ) -> None:
        """Stage (key, value) records of a coordinator as one batch; `on_done` is called when it is committed, or not.

        Committed: the high watermark has passed it. `on_appended` is called before that, when the batch is in the log.
        Neither is called before this returns, and each is told of an error once. With a producer the batch is part of
        the transaction that this one has open.
        """
        done = when_committed(self, on_done, on_appended)
        try:
            self._check_can_commit()
            batch = batch_of(self, records, now_ms=now_ms, producer_id=producer_id, producer_epoch=producer_epoch)
            header = read_header(batch)
            if producer_id >= 0:
                self._check_in_transaction(header, verification)
                self.log.producers.check_coordinators(header)
        except KafkaError as refusal:
            self._stage_answer(done, KafkaError(refusal.code, refusal.detail))
            return
        self._stage(memoryview(batch), header, NO_TIMESTAMP, done)

    def append_marker(
        self,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
        on_done: OnDone,
        on_appended: OnDone | None = None,
    ) -> None:
        """Stage the end of a producer's transaction; told of as in `append_records`. One too many changes nothing.

        Errors, beside those of a write: INVALID_PRODUCER_EPOCH (47), TRANSACTION_COORDINATOR_FENCED (52),
        NOT_ENOUGH_REPLICAS (19) and those of `check_leader`.
        """
        done = when_committed(self, on_done, on_appended)
        try:
            self._check_can_commit()
            batch = build_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
            header = read_header(batch)
            self.log.producers.check_coordinators(header, marker)
        except KafkaError as refusal:
            self._stage_answer(done, KafkaError(refusal.code, refusal.detail))
            return
        self._stage(memoryview(batch), header, NO_TIMESTAMP, done, marker)

    def _written(self) -> None:
        log, is_flushed = self.log, self._is_flushed
        if is_flushed or self._leadership is not None:
            self._high_watermark.note_write(log.log_end_offset, self.written_bytes)
        if not is_flushed:
            self._advance_high_watermark(log.log_end_offset)
            self._sync_by_count()
        self.tell(Change.LOG_END)

    def _not_enough_in_sync(self) -> KafkaError:
        in_sync = () if self.state is None else self.state.in_sync_replicas
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{self.topic_partition} has {len(in_sync)} in-sync replicas; min.insync.replicas is "
            f"{self.config.min_insync_replicas}",
        )

    def _follow_state(self, state: PartitionState) -> None:
        self.state = state
        is_alone = state.replicas == (self._broker_id,)
        if not self.is_leader or (is_alone and not state.is_recovering):
            self._leadership = None
        elif self._leadership is None:
            self._leadership = Leadership(state, own_id=self._broker_id, now_ms=self._monotonic_ms())
        else:
            self._leadership.take_state(state)
        self._has_enough_in_sync = has_enough_in_sync(
            in_sync=state.in_sync_replicas,
            replicas=state.replicas,
            min_insync_replicas=self.config.min_insync_replicas,
        )

    def _is_retry(self, header: BatchHeader, verification: Verification | None, on_done: OnDone) -> bool:
        """Whether the log has this very batch already; if so, the answer is staged. Raises what `check` raises."""
        producers = self.log.producers
        if header.is_transactional:
            if verification is UNNAMED:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch in a request without a transactional id",
                )
            if not producers.is_duplicate(header):
                self._check_in_transaction(header, verification)
        original = producers.check(header)
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

    def _check_in_transaction(self, header: BatchHeader, verification: Verification | None) -> None:
        producers = self.log.producers
        if not producers.is_in_transaction(header.producer_id, header.producer_epoch):
            self.verifications.check(header, producers, verification)

    def _check_can_commit(self) -> None:
        self.check_leader()
        if not self._has_enough_in_sync:
            raise self._not_enough_in_sync()

    def _advance_high_watermark(self, own_end_offset: int) -> None:
        """Take notice of how far the own log counts: flushed, or written under page-cache durability."""
        leadership, advanced = self._leadership, own_end_offset
        if leadership is not None:
            advanced = leadership.safe_end_offset(
                own_end_offset,
                log_end_offset=self.log.log_end_offset,
                now_ms=self._monotonic_ms(),
                lag_ms=self._lag_ms,
            )
        if advanced <= self.high_watermark or not (self.is_leader and self._has_enough_in_sync):
            return
        is_noted = self._is_flushed or leadership is not None
        self._rise(advanced, None if is_noted else self.written_bytes)
