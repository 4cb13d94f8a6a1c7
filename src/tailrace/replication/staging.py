"""Batches that a leader has taken for its log in this turn, and has not written yet.

1. Batches are staged in the order in which they came and written with one `write` per turn. No callback of a
   batch runs before the batch is in the log; if the write fails, every batch of that turn gets the error.
2. A staged batch's bytes belong to the sender: the log does not use the bytes after `write` has returned.
3. A batch is written in the leader epoch in which it was staged, or never.
4. When a write fails, an idempotent producer may have sent later batches. Until the producer has sent the first
   unwritten batch again, later batches get the error of that write, not OUT_OF_ORDER_SEQUENCE_NUMBER (45). After error
   45 librdkafka raises its epoch and sends every unanswered batch again under new sequences: a batch that is stored,
   and waits for its replicas at a leader that is about to resign, would be stored twice. Kafka never gives error 45 in
   this case: a failed write takes its whole log directory offline.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.batch import BatchHeader, read_header, stamp
from tailrace.protocol.records.control import EndTransactionMarker, build_marker
from tailrace.protocol.records.record import BatchBuilder
from tailrace.replication.in_sync import InSyncReplicas
from tailrace.replication.outcomes import NO_TIMESTAMP, Appended, OnDone
from tailrace.replication.replica import Replica
from tailrace.replication.verification import UNNAMED, Verification, Verifications
from tailrace.replication.watchers import Change
from tailrace.storage import AppendBatch

LARGEST_OWN_BATCH: Final = 64 << 20
"""The most bytes of a batch that the node itself writes: max.message.bytes is for clients, and the record of a large
group is one batch."""
MOST_UNWRITTEN: Final = 1_000
"""The most producers of a partition whose unwritten batches are remembered; beyond this number the oldest are
forgotten."""
_SEQUENCES: Final = 1 << 31
"""The number of sequence numbers: after the largest, sequence numbers begin again at 0."""


class _Unwritten(NamedTuple):
    """The first batch of a producer that a failed write did not write, and that the producer has not sent again yet."""

    producer_epoch: int
    base_sequence: int
    code: ErrorCode
    detail: str

    def is_before(self, header: BatchHeader) -> bool:
        """Whether the batch with this header follows the unwritten batch in the same producer epoch."""
        distance = (header.base_sequence - self.base_sequence) % _SEQUENCES
        return header.producer_epoch == self.producer_epoch and 0 < distance < _SEQUENCES // 2


class Staging:
    """The batches of a partition that wait for the end of the turn."""

    __slots__ = ("_answers", "_batches", "_in_sync", "_replica", "_unwritten", "verifications")

    def __init__(self, replica: Replica, in_sync: InSyncReplicas) -> None:
        self._replica = replica
        self._in_sync = in_sync
        self.verifications = Verifications()
        """The verifications of producers whose transactions have no batch here yet."""
        self._batches: list[AppendBatch] = []
        self._answers: list[tuple[OnDone, Appended | KafkaError]] = []
        self._unwritten: dict[int, _Unwritten] = {}
        """The unwritten batches by producer id."""

    def write(self) -> None:
        """Write what this turn has staged, with one append; then call back, in order; then ask for a flush."""
        batches, answers = self._batches, self._answers
        self._batches, self._answers = [], []
        replica = self._replica
        is_to_be_flushed = False
        if batches:
            log = replica.log
            try:
                log.append(batches, checked_from=0)
            except KafkaError as failure:
                log.producers.discard_staged()
                self._note_unwritten(batches, failure)
                answers = self._failed(answers, failure)
            else:
                for batch in batches:
                    replica.written_bytes += len(batch.buffer)
                is_to_be_flushed = replica.context.is_flushed
                if is_to_be_flushed or self._in_sync.leadership is not None:
                    replica.high_watermark.note_write(log.log_end_offset, replica.written_bytes)
                if not is_to_be_flushed:
                    self._in_sync.advance_high_watermark(log.log_end_offset)
                    replica.sync_by_count()
                if replica.watchers is not None:
                    replica.notify(Change.LOG_END)
        for on_done, outcome in answers:
            on_done(outcome)
        if is_to_be_flushed:
            replica.flush()

    def stage(
        self,
        batch: memoryview,
        header: BatchHeader,
        log_append_time_ms: int,
        on_done: OnDone,
        marker: EndTransactionMarker | None = None,
    ) -> None:
        """Stage the checked batch behind the staged batches; `on_done` is called once the batch is in the log."""
        batches, log, leader_epoch = self._batches, self._replica.log, self._replica.leader_epoch
        base_offset = batches[-1].header.end_offset if batches else log.log_end_offset
        stamp(batch, 0, base_offset, leader_epoch)
        header.base_offset = base_offset
        header.partition_leader_epoch = leader_epoch
        if header.producer_id >= 0:
            unwritten = self._unwritten.get(header.producer_id)
            if unwritten is not None and header.producer_epoch >= unwritten.producer_epoch:
                del self._unwritten[header.producer_id]
            log.producers.stage(header, marker)
            if marker is not None:
                self.verifications.end_by_marker(header.producer_id, header.producer_epoch)
            elif header.is_transactional:
                self.verifications.end(header.producer_id)
        batches.append(AppendBatch(batch, header))
        if not self._answers:
            self._replica.context.on_staged(self)
        last_offset = base_offset + header.last_offset_delta
        self._answers.append((on_done, Appended(base_offset, last_offset, log_append_time_ms, log.log_start_offset)))

    def stage_answer(self, on_done: OnDone, outcome: Appended | KafkaError) -> None:
        """Call `on_done` with this outcome in its turn, behind the batches that were staged before."""
        if not self._answers:
            self._replica.context.on_staged(self)
        self._answers.append((on_done, outcome))

    def stage_end(self, on_done: OnDone) -> None:
        """Call `on_done` in its turn with the last staged offset or, without staged batches, with the last offset in
        the log."""
        log = self._replica.log
        last_offset = (self._batches[-1].header.end_offset if self._batches else log.log_end_offset) - 1
        self.stage_answer(on_done, Appended(last_offset, last_offset, NO_TIMESTAMP, log.log_start_offset))

    def _failed(
        self, answers: list[tuple[OnDone, Appended | KafkaError]], failure: KafkaError
    ) -> list[tuple[OnDone, Appended | KafkaError]]:
        """The answers after a write that failed. The retry of a batch that an earlier write has put into the log still
        succeeds."""
        end_offset = self._replica.log.log_end_offset
        return [
            (on_done, outcome)
            if isinstance(outcome, KafkaError) or outcome.last_offset < end_offset
            else (on_done, KafkaError(failure.code, failure.detail))
            for on_done, outcome in answers
        ]

    def _note_unwritten(self, batches: Sequence[AppendBatch], failure: KafkaError) -> None:
        """Note the first batch of each producer, without the failure itself: its stack frames would keep the senders'
        buffers."""
        unwritten = self._unwritten
        for batch in batches:
            header = batch.header
            if header.producer_id < 0 or header.is_control:
                continue
            known = unwritten.get(header.producer_id)
            if known is None or known.producer_epoch < header.producer_epoch:
                unwritten[header.producer_id] = _Unwritten(
                    header.producer_epoch, header.base_sequence, failure.code, failure.detail
                )
        while len(unwritten) > MOST_UNWRITTEN:
            del unwritten[next(iter(unwritten))]

    def drop(self) -> None:
        """Drop the staged batches, and call their callbacks with the error: this broker does not lead any more."""
        answers, self._batches, self._answers = self._answers, [], []
        self._unwritten.clear()
        if answers:
            log = self._replica.log
            log.producers.discard_staged()
            for on_done, outcome in answers:
                is_staged = not isinstance(outcome, KafkaError) and outcome.last_offset >= log.log_end_offset
                on_done(self._replica.not_leader() if is_staged else outcome)

    # Producers

    def is_retry(
        self, header: BatchHeader, verification: Verification | None, on_done: OnDone, *, stamps_append_time: bool
    ) -> bool:
        """Whether the log already has this batch; if the log has it, the answer is staged.

        Raises what `ProducerState.check` and `check_in_transaction` raise.
        """
        producers = self._replica.log.producers
        if self._unwritten and not producers.is_duplicate(header):
            self._check_behind_unwritten(header)
        if header.is_transactional:
            if verification is UNNAMED:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch in a request without a transactional id",
                )
            if not producers.is_duplicate(header):
                self.check_in_transaction(header, verification)
        original = producers.check(header)
        if original is None:
            return False
        timestamp = original.timestamp if stamps_append_time else NO_TIMESTAMP
        log_start_offset = self._replica.log.log_start_offset
        self.stage_answer(on_done, Appended(original.base_offset, original.last_offset, timestamp, log_start_offset))
        return True

    def _check_behind_unwritten(self, header: BatchHeader) -> None:
        """Raises KafkaError if an earlier batch of the producer was not written, and the producer has to send that
        batch again first."""
        first = self._unwritten.get(header.producer_id)
        if first is not None and first.is_before(header):
            detail = f"the batch with sequence {first.base_sequence} was not written, and comes first"
            raise KafkaError(first.code, f"{detail}: {first.detail}")

    def check_in_transaction(self, header: BatchHeader, verification: Verification | None) -> None:
        """Raises KafkaError, see `Verifications.check`, unless the producer's transaction is open here or may begin."""
        producers = self._replica.log.producers
        if not producers.is_in_transaction(header.producer_id, header.producer_epoch):
            self.verifications.check(header, producers, verification)

    # The node's own batches

    def append_records(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        now_ms: int,
        on_done: OnDone,
        producer_id: int,
        producer_epoch: int,
        verification: Verification | None,
    ) -> None:
        """Stage (key, value) records of a coordinator as one batch; `on_done` is called with the outcome: committed, or
        a fault.

        Committed means that the high watermark has passed the batch. `on_done` is not called before `append_records`
        returns. With a producer id (-1: none) the batch is part of the open transaction of this producer.
        """
        done = self._when_committed(on_done)
        try:
            self._check_can_commit()
            batch = self._batch_of(records, now_ms=now_ms, producer_id=producer_id, producer_epoch=producer_epoch)
            header = read_header(batch)
            if producer_id >= 0:
                self.check_in_transaction(header, verification)
                self._replica.log.producers.check_offsets(header)
        except KafkaError as refusal:
            self.stage_answer(done, KafkaError(refusal.code, refusal.detail))
            return
        self.stage(memoryview(batch), header, NO_TIMESTAMP, done)

    def append_marker(
        self,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int = 0,
        now_ms: int,
        on_done: OnDone,
    ) -> None:
        """Stage the end of a producer's transaction, with `on_done` as in `append_records`.

        A repeated marker is not written again, since the log has the marker: the outcome is the end of the log. Beside
        the errors of a write, there are the errors of `ProducerState.is_repeated` and `check_leader`, and
        NOT_ENOUGH_REPLICAS (19).
        """
        done = self._when_committed(on_done)
        try:
            self._check_can_commit()
            batch = build_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
            header = read_header(batch)
            is_repeated = self._replica.log.producers.is_repeated(
                header, marker, transaction_version=transaction_version
            )
        except KafkaError as refusal:
            self.stage_answer(done, KafkaError(refusal.code, refusal.detail))
            return
        if is_repeated:
            self.stage_end(done)
        else:
            self.stage(memoryview(batch), header, NO_TIMESTAMP, done, marker)

    def _check_can_commit(self) -> None:
        self._replica.check_leader()
        self._in_sync.check_enough()

    def _batch_of(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        now_ms: int,
        producer_id: int,
        producer_epoch: int,
    ) -> bytearray:
        """(Key, value) records as a batch, of a transaction if there is a producer. Raises KafkaError MESSAGE_TOO_LARGE
        (10)."""
        is_transactional = producer_id >= 0
        builder = BatchBuilder(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=0 if is_transactional else -1,
            is_transactional=is_transactional,
        )
        for key, value in records:
            builder.append(now_ms, key, value)
        batch = builder.build()
        if len(batch) > LARGEST_OWN_BATCH:
            where = f"{len(records)} records for {self._replica.topic_partition}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{len(batch)} bytes of {where}; at most {LARGEST_OWN_BATCH}")
        return batch

    def _when_committed(self, on_done: OnDone) -> OnDone:
        """A callback that calls `on_done` when the high watermark has passed the batch, or with a fault."""

        def appended(outcome: Appended | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                on_done(outcome)
            else:
                self._replica.when_high_watermark_reaches(
                    outcome.last_offset + 1, lambda failure: on_done(outcome if failure is None else failure)
                )

        return appended
