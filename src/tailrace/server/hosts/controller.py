"""Runs the controller on a metadata log of its own, with this node as the only voter.

1. Nobody is told of a decision, be it a refusal, before everything it was based on is durable: decisions are made on
   `latest` (all that was appended), and images and answers come out when the high watermark passes them.
2. A decision is tried on the image before it is appended: a record that does not fit must never reach the log.
3. A failed append changes nothing: no image, and the one who asked gets the error.
4. Each start is a new leader epoch, durable in `quorum-state` before the first batch of that epoch is written.
5. Whoever listens to images hears of a change before the answer that caused it goes out, and may have it wait.

The disk given to the host must really flush, whatever `log.durability` says of topics: Kafka flushes this log too.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from tailrace.metadata.broker_commands import (
    FinalizeMetadataVersion,
)
from tailrace.metadata.commands import (
    ControllerCommand,
    ControllerResponse,
)
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.metadata.records import MetadataRecord, decode_record, encode_record
from tailrace.metadata.replay import apply_all
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.protocol.records.batch import iter_batches, read_header
from tailrace.protocol.records.control import LeaderChangeMessage, LeaderChangeVoter, build_control_batch
from tailrace.protocol.records.record import BatchBuilder, read_records
from tailrace.server.hosts.metadata_directory import MAX_BATCH_BYTES, METADATA_PARTITION, MetadataDirectory
from tailrace.server.hosts.quorum_state import QuorumState
from tailrace.server.ports import Clock, Disk
from tailrace.storage import AppendBatch, Log

RECOVERY_POINT_INTERVAL: Final = 1_000
"""Records between two checkpoints of what is on disk: damage above the last one would be taken for a torn end."""
_REPLAY_BYTES = 4 * 1024 * 1024

OnDone = Callable[[ControllerResponse | KafkaError], None]
OnImage = Callable[[ClusterImage, ImageDelta], None]
WhenSettled = Callable[[Callable[[], None]], None]
"""Calls what it is given when everything has been carried out that this broker has heard of so far."""

_logger = logging.getLogger("tailrace.server")


class _Change(NamedTuple):
    """What the records of one batch make of the image."""

    image: ClusterImage
    delta: ImageDelta


class _Pending(NamedTuple):
    """An answer that waits until the high watermark has reached `end_offset`."""

    end_offset: int
    change: _Change | None
    answer: ControllerResponse | KafkaError
    on_done: OnDone


class ControllerHost:
    """The controller of a cluster whose metadata has one voter."""

    def __init__(
        self,
        machine: ControllerMachine,
        *,
        log: Log,
        disk: Disk,
        clock: Clock,
        node_id: BrokerId,
        directory: MetadataDirectory,
    ) -> None:
        self._machine = machine
        self._log = log
        self._disk = disk
        self._clock = clock
        self._node_id = node_id
        self._directory = directory
        self._committed = EMPTY_IMAGE
        self._listeners: list[OnImage] = []
        self._when_settled: WhenSettled = _at_once
        self._pending: deque[_Pending] = deque()
        self._is_leader = False
        self._recovery_point = 0
        self.leader_epoch = 0
        self.high_watermark = 0
        """Everything below it is durable, and only that is visible."""

    @property
    def image(self) -> ClusterImage:
        """The committed image: all reads are from it."""
        return self._committed

    @property
    def leader_id(self) -> BrokerId:
        """The active controller."""
        return self._node_id

    @property
    def log_end_offset(self) -> int:
        """Where the next record will be."""
        return self._log.log_end_offset

    def on_image(self, callback: OnImage) -> None:
        """Have every later change of `image` reported, batch by batch, before its answer goes out."""
        self._listeners.append(callback)

    def answer_when(self, settled: WhenSettled) -> None:
        """Have the answers to later changes wait for what the changes lead to on this broker."""
        self._when_settled = settled

    def start(self, on_ready: Callable[[], None]) -> None:
        """Replay the log, take the lead in a new epoch, and call `on_ready` when all of it is committed.

        Raises KafkaError if the log holds what this release cannot read; nothing is applied then.
        """
        last = self._directory.read_quorum_state()
        self.leader_epoch = max(last.leader_epoch, self._log.epochs.latest_epoch, 0) + 1
        self._machine.apply_all(self._replayed())
        self._directory.write_quorum_state(
            QuorumState(
                leader_id=self._node_id,
                leader_epoch=self.leader_epoch,
                voted_id=self._node_id,
                voters=(self._node_id,),
            )
        )
        self._append_leader_change()
        self._disk.flush(self._log, lambda: self._take_the_lead(on_ready))

    def submit(self, command: ControllerCommand, on_done: OnDone) -> None:
        """Have the command decided; `on_done` is called when the decision is committed, perhaps before this returns."""
        if not self._is_leader:
            on_done(KafkaError(ErrorCode.NOT_CONTROLLER, "the controller has not read its log to the end yet"))
            return
        change: _Change | None
        answer: ControllerResponse | KafkaError
        try:
            change, answer = self._carry_out(command)
        except KafkaError as refusal:
            change, answer = None, refusal
        end_offset = self._log.log_end_offset
        self._pending.append(_Pending(end_offset, change, answer, on_done))
        if change is not None:
            self._disk.flush(self._log, lambda: self._advance(end_offset))
        else:
            self._publish()

    def close(self) -> None:
        """Stop: whoever still waits is refused. The disk has been stopped before; the log is closed."""
        self._is_leader = False
        while self._pending:
            self._pending.popleft().on_done(KafkaError(ErrorCode.NOT_CONTROLLER, "the controller stops"))
        self._log.close(clean=True)
        self._directory.write_recovery_point(self._log.flushed_offset)

    def _carry_out(self, command: ControllerCommand) -> tuple[_Change | None, ControllerResponse]:
        decision = self._machine.decide(command, self._clock.now_ms(), next_offset=self._log.log_end_offset)
        if not decision.records:
            return None, decision.response
        change = _Change(*apply_all(self._machine.image, decision.records))
        self._append(decision.records)
        self._machine.adopt(change.image)
        return change, decision.response

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        now_ms = self._clock.now_ms()
        builder = BatchBuilder(base_offset=self._log.log_end_offset, leader_epoch=self.leader_epoch)
        for record in records:
            builder.append(now_ms, None, encode_record(record))
        if builder.size_bytes > MAX_BATCH_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"this request makes a batch of {builder.size_bytes} bytes of metadata, more than {MAX_BATCH_BYTES};"
                " ask in several",
            )
        self._append_batch(builder.build())

    def _append_leader_change(self) -> None:
        voter = LeaderChangeVoter(voter_id=self._node_id)
        message = LeaderChangeMessage(leader_id=self._node_id, voters=(voter,), granting_voters=(voter,))
        batch = build_control_batch(
            (message,),
            timestamp=self._clock.now_ms(),
            base_offset=self._log.log_end_offset,
            leader_epoch=self.leader_epoch,
        )
        self._append_batch(batch)

    def _append_batch(self, batch: bytearray) -> None:
        self._log.append((AppendBatch(batch, read_header(batch)),))

    def _take_the_lead(self, on_ready: Callable[[], None]) -> None:
        self.high_watermark = self._log.log_end_offset
        self._write_recovery_point()
        self._committed = self._machine.image
        self._is_leader = True
        _logger.info(
            "event=controller-ready epoch=%d offset=%d topics=%d",
            self.leader_epoch,
            self.high_watermark,
            len(self._committed.topics),
        )

        def finalized(answer: ControllerResponse | KafkaError) -> None:
            if isinstance(answer, KafkaError):
                raise answer
            on_ready()

        self.submit(FinalizeMetadataVersion(), finalized)

    def _advance(self, end_offset: int) -> None:
        self.high_watermark = max(self.high_watermark, end_offset)
        if self.high_watermark - self._recovery_point >= RECOVERY_POINT_INTERVAL:
            self._write_recovery_point()
        self._publish()

    def _write_recovery_point(self) -> None:
        self._recovery_point = self.high_watermark
        self._directory.write_recovery_point(self.high_watermark)

    def _publish(self) -> None:
        """Make visible, in order, what the high watermark has passed."""
        while self._pending and self._pending[0].end_offset <= self.high_watermark:
            pending = self._pending.popleft()
            if pending.change is not None:
                self._committed = pending.change.image
                for listener in self._listeners:
                    listener(*pending.change)
            try:
                if pending.change is None:
                    pending.on_done(pending.answer)
                else:
                    self._when_settled(partial(pending.on_done, pending.answer))
            except BaseException:
                # The fault is the event loop's to report; it must not keep the next ones from their answers.
                self._clock.call_soon(self._publish)
                raise

    def _replayed(self) -> Iterator[MetadataRecord]:
        """Every record of the log, in order."""
        offset, end_offset = self._log.log_start_offset, self._log.log_end_offset
        while offset < end_offset:
            chunk = self._log.read(offset, max_bytes=_REPLAY_BYTES, end_offset=end_offset, min_one_message=True)
            before = offset
            for buffer in chunk.records:
                for position, header in iter_batches(buffer):
                    offset = header.end_offset
                    if header.is_control:
                        continue
                    for record in read_records(buffer, position):
                        if record.value is None:
                            raise CorruptRecords(f"{METADATA_PARTITION}: the record at {record.offset} has no value")
                        yield decode_record(record.value)
            if offset == before:
                raise CorruptRecords(
                    f"{METADATA_PARTITION}: nothing can be read at {offset}, below the end {end_offset}"
                )


def _at_once(callback: Callable[[], None]) -> None:
    callback()
