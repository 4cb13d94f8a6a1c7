"""What a leader has taken for its log in this turn, and has not written yet.

1. Batches are staged in the order in which they came and written with one `write_staged` per turn. Nobody is told
   anything about a batch before it is in the log; if the write fails, every batch of that turn gets the error.
2. A staged batch's bytes are the sender's: they are used until `write_staged` returns and never after it.
3. A batch is written in the leader epoch in which it was staged, or not at all.
"""

from collections.abc import Callable

from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, stamp
from tailrace.protocol.records.control import EndTransactionMarker
from tailrace.replication.outcomes import Appended, OnDone
from tailrace.replication.replica import Flusher, Replica
from tailrace.replication.verification import Verifications
from tailrace.storage import AppendBatch, Log


class StagingReplica(Replica):
    """A copy of a partition that batches are staged for."""

    __slots__ = ("_answers", "_batches", "_on_staged", "verifications")

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: TopicId,
        log: Log,
        broker_id: BrokerId,
        config: TopicConfig,
        disk: Flusher,
        on_staged: "Callable[[StagingReplica], None]",
        syncing_disk: Flusher | None = None,
        is_flushed: bool = True,
        high_watermark: int = 0,
    ) -> None:
        """As `Replica`; `on_staged` is told when the first batch of a turn is staged."""
        super().__init__(
            topic_partition,
            topic_id=topic_id,
            log=log,
            broker_id=broker_id,
            config=config,
            disk=disk,
            syncing_disk=syncing_disk,
            is_flushed=is_flushed,
            high_watermark=high_watermark,
        )
        self.verifications = Verifications()
        """Of producers whose transactions have no batch here yet."""
        self._on_staged = on_staged
        self._batches: list[AppendBatch] = []
        self._answers: list[tuple[OnDone, Appended | KafkaError]] = []

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
                self._written()
        for on_done, outcome in answers:
            on_done(outcome)
        if is_to_be_flushed:
            self._flushes_pending += 1
            self._disk.flush(self.log, self._flush_done)

    def _written(self) -> None:
        """What was staged is in the log. What follows from that is the leader's to know."""

    def _stage(
        self,
        batch: memoryview,
        header: BatchHeader,
        log_append_time_ms: int,
        on_done: OnDone,
        marker: EndTransactionMarker | None = None,
    ) -> None:
        batches, log, leader_epoch = self._batches, self.log, self.leader_epoch
        base_offset = batches[-1].header.end_offset if batches else log.log_end_offset
        stamp(batch, 0, base_offset, leader_epoch)
        header.base_offset = base_offset
        header.partition_leader_epoch = leader_epoch
        if header.producer_id >= 0:
            log.producers.stage(header, marker)
            if marker is not None:
                self.verifications.end_by_marker(header.producer_id, header.producer_epoch)
            elif header.is_transactional:
                self.verifications.end(header.producer_id)
        batches.append(AppendBatch(batch, header))
        if not self._answers:
            self._on_staged(self)
        last_offset = base_offset + header.last_offset_delta
        self._answers.append((on_done, Appended(base_offset, last_offset, log_append_time_ms, log.log_start_offset)))

    def _stage_answer(self, on_done: OnDone, outcome: Appended | KafkaError) -> None:
        """Have the outcome told in its turn, behind the batches that were staged before."""
        if not self._answers:
            self._on_staged(self)
        self._answers.append((on_done, outcome))

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

    def _drop_staged(self) -> None:
        """Tell those whose batches are staged, and not written, that they will not be."""
        answers, self._batches, self._answers = self._answers, [], []
        if answers:
            self.log.producers.discard_staged()
            end_offset = self.log.log_end_offset
            for on_done, outcome in answers:
                is_staged = not isinstance(outcome, KafkaError) and outcome.last_offset >= end_offset
                on_done(self._not_leader() if is_staged else outcome)
