"""The work of the active controller: commands are decided one after the other, in steps, on the latest state.

1. A decision is tried on the image before it is appended: a record that cannot be applied must never reach the log.
2. A failed append changes no image, and the caller gets the error.
3. An answer waits here until the high watermark has passed the records that it depends on.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tailrace.metadata.broker_commands import BrokerHeartbeat, FenceSilentBroker, FinalizeMetadataVersion
from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.metadata.records.kinds import MetadataRecord, encode_record
from tailrace.metadata.senders import is_from_registered_broker
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.record import record_size_bound
from tailrace.raft.rpc import SnapshotId
from tailrace.server.ports import Clock
from tailrace.server.quorum.change_log import Cause
from tailrace.server.quorum.duties import LeaderBalanceConfig, LeaderBalancer, SessionWatch
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import MAX_BATCH_BYTES
from tailrace.server.quorum.queued_work import OnLongWork, StepwiseWork, Task

_BATCH_HEADROOM: Final = 256

OnDone = Callable[[ControllerResponse | KafkaError], None]

_logger = logging.getLogger("tailrace.server")


class ImageChange(NamedTuple):
    """The image after some records."""

    image: ClusterImage
    delta: ImageDelta
    id: SnapshotId
    """The end offset and the epoch of the records."""
    size_bytes: int
    appended_ms: int
    cause: Cause | None = None
    """The cause that the active controller logs; None on other nodes."""


class PendingAnswer(NamedTuple):
    """An answer that waits until the high watermark has reached `end_offset`."""

    end_offset: int
    change: ImageChange | None
    answer: ControllerResponse | KafkaError
    on_done: OnDone


class ActiveController:
    """The commands that this node has received as the active controller, and the answers that wait."""

    def __init__(
        self,
        machine: ControllerMachine,
        *,
        host: QuorumHost,
        clock: Clock,
        leader_balance: LeaderBalanceConfig,
        later: Callable[[Task], None],
        on_long_work: OnLongWork,
        on_decided: Task,
    ) -> None:
        """`later` runs a task of the host in a later turn; `on_decided` is called when an answer begins to wait."""
        self._machine = machine
        self._host = host
        self._clock = clock
        self._on_decided = on_decided
        self.is_active = False
        """Whether this node is the active controller, which decides."""
        self._epoch = 0
        self._latest_end = 0
        self._commands: deque[tuple[ControllerCommand, OnDone]] = deque()
        self._deciding_for: OnDone | None = None
        self._pending: deque[PendingAnswer] = deque()
        self._deciding = StepwiseWork(
            self._next_decision, later=later, clock=clock, on_idle=lambda: None, on_long_work=on_long_work
        )
        self.sessions = SessionWatch(machine.heartbeats, clock=clock, later=host.perform)
        self.sessions.on_silence = lambda: self.submit(FenceSilentBroker(), _log_refusal)
        self._balancer = LeaderBalancer(leader_balance, clock=clock, submit=self.submit, later=host.perform)

    def begin(self, epoch: int, image: ClusterImage, end_offset: int) -> None:
        """Decide from now on, on this image of every committed record."""
        self.is_active = True
        self._epoch = epoch
        self._latest_end = end_offset
        self._machine.adopt(image)
        # Brokers in controlled shutdown are watched too: a broker that dies during its shutdown must be fenced.
        unfenced = (broker.broker_id for broker in image.brokers.values() if not broker.fenced)
        self._machine.heartbeats.restart(unfenced, self._clock.monotonic_ms())
        _logger.info("event=controller-active epoch=%d offset=%d topics=%d", epoch, end_offset, len(image.topics))
        self.sessions.start()
        self._balancer.start()
        self.submit(FinalizeMetadataVersion(), _log_refusal)

    def end(self) -> list[OnDone]:
        """Stop deciding; returns the callbacks of all commands without an answer."""
        self.is_active = False
        self.sessions.stop()
        self._balancer.stop()
        self._deciding.drop()
        waiting = [pending.on_done for pending in self._pending]
        waiting += [self._deciding_for] if self._deciding_for is not None else []
        waiting += [on_done for _, on_done in self._commands]
        self._pending.clear()
        self._commands.clear()
        self._deciding_for = None
        return waiting

    def submit(self, command: ControllerCommand, on_done: OnDone) -> None:
        """Decide on this command, after every earlier command. In a task of the host."""
        if isinstance(command, BrokerHeartbeat) and is_from_registered_broker(self._machine.image, command):
            # A heartbeat counts from its arrival on, since decisions on thousands of partitions may come before its
            # decision.
            self._machine.heartbeats.prolong(command.broker_id, self._clock.monotonic_ms())
        self._commands.append((command, on_done))
        self._deciding.advance()

    def has_due(self, high_watermark: int) -> bool:
        """Whether the first answer need not wait any more."""
        return bool(self._pending) and self._pending[0].end_offset <= high_watermark

    def take_due(self) -> PendingAnswer:
        """Take the first answer, which is due."""
        return self._pending.popleft()

    def _next_decision(self) -> Steps[None] | None:
        if not self.is_active or not self._commands:
            return None
        command, self._deciding_for = self._commands.popleft()
        return self._decide_for(command, self._deciding_for, self._epoch)

    def _decide_for(self, command: ControllerCommand, on_done: OnDone, epoch: int) -> Steps[None]:
        change: ImageChange | None
        answer: ControllerResponse | KafkaError
        try:
            change, answer = yield from self._decide(command, epoch)
        except KafkaError as refusal:
            change, answer = None, refusal
        self._deciding_for = None
        self._pending.append(PendingAnswer(self._latest_end, change, answer, on_done))
        self.sessions.reschedule()
        self._on_decided()

    def _decide(self, command: ControllerCommand, epoch: int) -> Steps[tuple[ImageChange | None, ControllerResponse]]:
        cause = self._cause(command)
        made = yield from prepared(self._machine, self._host.log, command, self._clock.monotonic_ms())
        if not made.values:
            return None, made.response
        self._latest_end = self._host.append(epoch, made.values)
        self._machine.adopt(made.image)
        appended = SnapshotId(self._latest_end, epoch)
        return ImageChange(
            made.image, made.delta, appended, made.size_bytes, self._clock.now_ms(), cause
        ), made.response

    def _cause(self, command: ControllerCommand) -> Cause:
        """The cause of a change. The caller asks for it before the decision, since a decision to fence ends the
        broker's session."""
        now_ms, heartbeats = self._clock.monotonic_ms(), self._machine.heartbeats
        silent = heartbeats.silent(now_ms) if isinstance(command, FenceSilentBroker) else ()
        return Cause(command, silent_ms=heartbeats.silent_for_ms(silent[0], now_ms) if silent else 0)


class Prepared(NamedTuple):
    """A decision that can be appended at once: it was made for the present end of the log."""

    response: ControllerResponse
    image: ClusterImage
    delta: ImageDelta
    values: tuple[bytes, ...]
    """The values of the records; empty for a decision that changes nothing."""
    size_bytes: int


def prepared(machine: ControllerMachine, log: QuorumLog, command: ControllerCommand, now_ms: int) -> Steps[Prepared]:
    """Decide on this command, in steps. The machine decides on no other command between the steps.

    Raises KafkaError if the command is refused as a whole: POLICY_VIOLATION if its records do not fit into a batch.
    """
    offset = log.end_offset
    decision = yield from machine.deciding(command, now_ms, next_offset=offset)
    if not decision.records:
        return Prepared(decision.response, machine.image, ImageDelta(), (), 0)
    while True:
        image, delta = yield from machine.trial(decision.records)
        values = yield from _encoded(decision.records)
        if log.end_offset == offset:
            break
        # A control record was appended meanwhile: control records do not wait for commands.
        offset = log.end_offset
        decision = machine.at_offset(decision, offset)
    size_bytes = _BATCH_HEADROOM + sum(record_size_bound(None, value) for value in values)
    if size_bytes > MAX_BATCH_BYTES:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"this request makes a batch of {size_bytes} bytes of metadata, more than {MAX_BATCH_BYTES};"
            " ask in several",
        )
    return Prepared(decision.response, image, delta, values, size_bytes)


def _encoded(records: Sequence[MetadataRecord]) -> Steps[tuple[bytes, ...]]:
    values = []
    for index, record in enumerate(records, 1):
        values.append(encode_record(record))
        if index % SLICE == 0:
            yield
    return tuple(values)


def _log_refusal(answer: ControllerResponse | KafkaError) -> None:
    if isinstance(answer, KafkaError):
        _logger.info("event=controller-command-refused reason=%s", answer)
