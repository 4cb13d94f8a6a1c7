"""Runs the controller on a metadata log that several nodes keep: the state machine of `QuorumHost`.

    following --elected, all before applied, own epoch committed--> active --leadership gone--> following

1. Only an active controller decides, on `latest` (all that it has appended); everybody sees `committed` only: images,
   snapshots, and answers, be they refusals, come out when the high watermark has passed what they were based on.
2. A decision is tried on the image before it is appended: a record that does not fit must never reach the log.
3. A failed append changes nothing: no image, and the one who asked gets the error.
4. On loss of leadership `latest` and the waiting answers are dropped with NOT_CONTROLLER; whatever of it is committed
   later comes back from the log.
5. Whoever listens to images hears of a change before the answer that caused it goes out, and may have it wait.

A node that follows, or has not caught up yet, applies what is committed from snapshots and log, in slices, and reports
several batches as one change.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from tailrace.metadata.broker_commands import FenceSilentBroker, FinalizeMetadataVersion
from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.metadata.image_difference import difference
from tailrace.metadata.records import MetadataRecord, decode_record, encode_record
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import SnapshotLoader
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.ids import BrokerId
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records, record_size_bound
from tailrace.raft.effects import RoleChanged
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.server.hosts.metadata_directory import MAX_BATCH_BYTES, METADATA_PARTITION
from tailrace.server.hosts.quorum import QuorumHost
from tailrace.server.hosts.quorum_snapshots import MetadataSnapshots
from tailrace.server.ports import Clock, Timer
from tailrace.storage.snapshot_store import SnapshotReader

SLICE_BYTES: Final = 128 * 1024
"""What is read and applied at a time: a few milliseconds' worth."""
_BATCH_HEADROOM: Final = 256

OnDone = Callable[[ControllerResponse | KafkaError], None]
OnImage = Callable[[ClusterImage, ImageDelta], None]
WhenSettled = Callable[[Callable[[], None]], None]
"""Calls what it is given when everything has been carried out that this node has heard of so far."""

_logger = logging.getLogger("tailrace.server")


class _Change(NamedTuple):
    """What the records of one batch make of the image."""

    image: ClusterImage
    delta: ImageDelta
    size_bytes: int
    appended_ms: int


class _Pending(NamedTuple):
    """An answer that waits until the high watermark has reached `end_offset`."""

    end_offset: int
    change: _Change | None
    answer: ControllerResponse | KafkaError
    on_done: OnDone


class _Leadership(NamedTuple):
    """This node leads, in this epoch, which begins there."""

    epoch: int
    start_offset: int


class _Loading(NamedTuple):
    """A snapshot that is being read."""

    id: SnapshotId
    reader: SnapshotReader
    batches: Iterator[memoryview]
    loader: SnapshotLoader


class QuorumController:
    """The metadata of a cluster on one of its nodes: a `server.ports.Controller`, wherever the active one is."""

    def __init__(
        self,
        machine: ControllerMachine,
        *,
        host: QuorumHost,
        clock: Clock,
        snapshot_trigger: SnapshotTrigger | None = None,
    ) -> None:
        self._machine = machine
        self._host = host
        self._clock = clock
        self._snapshots = MetadataSnapshots(host, clock=clock, trigger=snapshot_trigger or SnapshotTrigger())
        self._committed = EMPTY_IMAGE
        self._applied = SnapshotId(0, 0)
        self._applied_ms = 0
        self._high_watermark = 0
        self._leadership: _Leadership | None = None
        self._is_active = False
        self._loading: _Loading | None = None
        self._is_going_on = False
        self._latest_end = 0
        self._listeners: list[OnImage] = []
        self._when_settled: WhenSettled = _at_once
        self._pending: deque[_Pending] = deque()
        self._session_timer: Timer | None = None
        self._session_timer_ms = 0

    # server.ports.Controller

    @property
    def image(self) -> ClusterImage:
        """The committed image: all reads are from it."""
        return self._committed

    @property
    def leader_id(self) -> BrokerId:
        """The active controller, as far as this node knows; -1 if it does not."""
        return BrokerId(self._host.node.leader_id)

    @property
    def is_active(self) -> bool:
        """Whether decisions are made here."""
        return self._is_active

    @property
    def is_loading(self) -> bool:
        """Whether a snapshot is being read; `image` is older meanwhile."""
        return self._loading is not None

    @property
    def applied_end_offset(self) -> int:
        """Everything below is in `image`."""
        return self._applied.end_offset

    def on_image(self, callback: OnImage) -> None:
        """Have every later change of `image` reported, before the answer to whoever caused it goes out."""
        self._listeners.append(callback)

    def answer_when(self, settled: WhenSettled) -> None:
        """Have the answers to later changes wait for what the changes lead to on this node."""
        self._when_settled = settled

    def submit(self, command: ControllerCommand, on_done: OnDone) -> None:
        """Have the command decided; `on_done` is called once, when the decision is committed, or with NOT_CONTROLLER.

        After NOT_CONTROLLER or KAFKA_STORAGE_ERROR the command may still take effect.
        """
        if self._host.is_closed:
            on_done(KafkaError(ErrorCode.NOT_CONTROLLER, "the controller has stopped"))
        else:
            self._host.perform(lambda: self._submit(command, on_done))

    # Life

    def start(self) -> None:
        """Begin with the newest snapshot, and take part."""
        snapshots = self._host.log.snapshots
        if snapshots:
            self._begin_loading(snapshots[-1].id)
        self._host.start(self)
        self._host.perform(self._advance)

    def close(self) -> None:
        """Stop: whoever still waits is refused. The disk has been stopped before; the log is closed."""
        self._step_down("the controller stops")
        self._stop_loading()
        self._host.close()

    # Deciding

    def _submit(self, command: ControllerCommand, on_done: OnDone) -> None:
        leadership = self._leadership
        if leadership is None or not self._is_active:
            on_done(self._not_controller())
            return
        change: _Change | None
        answer: ControllerResponse | KafkaError
        try:
            change, answer = self._decide(command, leadership)
        except KafkaError as refusal:
            change, answer = None, refusal
        self._pending.append(_Pending(self._latest_end, change, answer, on_done))
        self._watch_sessions()
        self._publish()

    def _not_controller(self) -> KafkaError:
        leader_id = self.leader_id
        if leader_id == self._host.node.key.id:
            return KafkaError(ErrorCode.NOT_CONTROLLER, "the controller has not read its log to the end yet")
        active = f"the active controller is {leader_id}" if leader_id >= 0 else "no active controller is known"
        return KafkaError(ErrorCode.NOT_CONTROLLER, active)

    def _decide(self, command: ControllerCommand, leadership: _Leadership) -> tuple[_Change | None, ControllerResponse]:
        decision = self._machine.decide(command, self._clock.monotonic_ms(), next_offset=self._host.log.end_offset)
        if not decision.records:
            return None, decision.response
        image, delta = apply_all(self._machine.image, decision.records)
        values = tuple(map(encode_record, decision.records))
        size_bytes = _BATCH_HEADROOM + sum(record_size_bound(None, value) for value in values)
        if size_bytes > MAX_BATCH_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"this request makes a batch of {size_bytes} bytes of metadata, more than {MAX_BATCH_BYTES};"
                " ask in several",
            )
        self._latest_end = self._host.append(leadership.epoch, values)
        self._machine.adopt(image)
        return _Change(image, delta, size_bytes, self._clock.now_ms()), decision.response

    # What the quorum says, in the middle of its steps

    def committed(self, high_watermark: int) -> None:
        """All below is committed."""
        self._high_watermark = max(self._high_watermark, high_watermark)
        self._host.perform(self._advance)

    def role_changed(self, change: RoleChanged) -> None:
        """This node leads from now on, or does not any more."""
        start_offset = change.epoch_start_offset
        leadership = None if start_offset is None else _Leadership(change.epoch, start_offset)
        self._host.perform(lambda: self._take_role(leadership))

    def load_snapshot(self, snapshot_id: SnapshotId) -> None:
        """The log begins here now: all that was applied gives way to the snapshot."""
        self._begin_loading(snapshot_id)
        self._host.perform(self._advance)

    def _begin_loading(self, snapshot_id: SnapshotId) -> None:
        self._stop_loading()
        # Opened at once: a snapshot that is being read does not vanish.
        reader = self._host.log.open_snapshot(snapshot_id)
        self._loading = _Loading(snapshot_id, reader, reader.batches(), SnapshotLoader())
        self._high_watermark = max(self._high_watermark, snapshot_id.end_offset)

    def _stop_loading(self) -> None:
        if self._loading is not None:
            self._loading.reader.close()
            self._loading = None

    def _take_role(self, leadership: _Leadership | None) -> None:
        if self._leadership is not None:
            self._step_down(None)
        self._leadership = leadership
        self._advance()

    def _step_down(self, why: str | None) -> None:
        self._leadership = None
        self._is_active = False
        if self._session_timer is not None:
            self._session_timer.cancel()
            self._session_timer = None
        waiting, self._pending = self._pending, deque()
        for pending in waiting:
            refusal = self._not_controller() if why is None else KafkaError(ErrorCode.NOT_CONTROLLER, why)
            self._tell(pending.on_done, refusal)

    # Applying

    def _advance(self) -> None:
        """Bring the image nearer to the high watermark, by one slice; more in a later turn."""
        if self._host.failure is not None:
            return
        try:
            if self._loading is not None:
                self._load_slice(self._loading)
            elif self._is_active:
                self._publish()
                return
            elif self._applied.end_offset < self._high_watermark:
                self._apply_slice()
        except (CorruptRecords, StorageError) as fault:
            self._host.fail(fault)
            return
        if self._loading is not None or self._applied.end_offset < self._high_watermark:
            self._go_on_later()
        else:
            self._perhaps_become_active()

    def _go_on_later(self) -> None:
        def go_on() -> None:
            self._is_going_on = False
            self._advance()

        if not self._is_going_on:
            self._is_going_on = True
            self._clock.call_soon(lambda: self._host.perform(go_on))

    def _load_slice(self, loading: _Loading) -> None:
        batch = next(loading.batches, None)
        if batch is not None:
            loading.loader.load(batch)
            return
        self._stop_loading()
        if loading.id.end_offset <= self._applied.end_offset:
            return
        image = loading.loader.image()
        delta = difference(self._committed, image)
        self._applied = loading.id
        self._snapshots.loaded(image, loading.id, loading.loader.records_count)
        self._show(image, delta)

    def _apply_slice(self) -> None:
        log, offset = self._host.log, self._applied.end_offset
        buffers = log.read(offset, max_bytes=SLICE_BYTES, end_offset=self._high_watermark)
        records: list[MetadataRecord] = []
        for buffer in buffers:
            for position, header in iter_batches(buffer):
                if header.end_offset <= offset:
                    continue
                self._applied = SnapshotId(header.end_offset, header.partition_leader_epoch)
                self._applied_ms = header.max_timestamp
                if not header.is_control:
                    records += _decoded(buffer, position)
        if self._applied.end_offset == offset:
            raise CorruptRecords(f"{METADATA_PARTITION}: nothing can be read at {offset}, which is committed")
        image, delta = apply_all(self._committed, records)
        self._snapshots.applied(delta, sum(map(len, buffers)))
        if records:
            self._show(image, delta)
        self._perhaps_snapshot()

    def _show(self, image: ClusterImage, delta: ImageDelta) -> None:
        self._committed = image
        for listener in self._listeners:
            listener(image, delta)

    def _perhaps_snapshot(self) -> None:
        if self._snapshots.is_due:
            self.write_snapshot()

    def write_snapshot(self) -> bool:
        """Begin to write a snapshot of what is applied, due or not. Whether it may be written. In a task."""
        return self._loading is None and self._snapshots.begin(self._committed, self._applied, self._applied_ms)

    # Leading

    def _perhaps_become_active(self) -> None:
        leadership = self._leadership
        # Only when a record of the own epoch is committed nothing of earlier epochs can still turn up.
        if self._is_active or leadership is None or self._high_watermark <= leadership.start_offset:
            return
        self._is_active = True
        self._latest_end = self._applied.end_offset
        self._machine.adopt(self._committed)
        alive = (broker.broker_id for broker in self._committed.alive_brokers())
        self._machine.heartbeats.restart(alive, self._clock.monotonic_ms())
        _logger.info(
            "event=controller-active epoch=%d offset=%d topics=%d",
            leadership.epoch,
            self._applied.end_offset,
            len(self._committed.topics),
        )
        self._watch_sessions()
        self._submit(FinalizeMetadataVersion(), _log_refusal)

    def _publish(self) -> None:
        """Make visible, in order, what the high watermark has passed."""
        leadership = self._leadership
        while self._pending and self._pending[0].end_offset <= self._high_watermark:
            pending = self._pending.popleft()
            change = pending.change
            if change is None:
                self._tell(pending.on_done, pending.answer)
                continue
            assert leadership is not None, "only who leads has changes of its own"
            self._applied = SnapshotId(pending.end_offset, leadership.epoch)
            self._applied_ms = change.appended_ms
            self._snapshots.applied(change.delta, change.size_bytes)
            self._show(change.image, change.delta)
            self._tell(partial(self._settled, pending.on_done), pending.answer)
            self._perhaps_snapshot()

    def _settled(self, on_done: OnDone, answer: ControllerResponse | KafkaError) -> None:
        self._when_settled(partial(on_done, answer))

    def _tell(self, on_done: OnDone, answer: ControllerResponse | KafkaError) -> None:
        """A task of its own: whoever cannot take an answer keeps nobody else from theirs."""
        self._host.perform(partial(on_done, answer))

    # Sessions of brokers

    def _watch_sessions(self) -> None:
        deadline_ms = self._machine.heartbeats.next_deadline_ms
        if deadline_ms is None or not self._is_active:
            return
        if self._session_timer is not None:
            if self._session_timer_ms <= deadline_ms:
                return
            self._session_timer.cancel()
        self._session_timer_ms = deadline_ms
        self._session_timer = self._clock.call_at(deadline_ms, lambda: self._host.perform(self._end_sessions))

    def _end_sessions(self) -> None:
        self._session_timer = None
        if not self._is_active:
            return
        if self._machine.heartbeats.silent(self._clock.monotonic_ms()):
            self._submit(FenceSilentBroker(), _log_refusal)
        self._watch_sessions()


def _decoded(buffer: Buffer, position: int) -> Sequence[MetadataRecord]:
    found = []
    for record in read_records(buffer, position):
        if record.value is None:
            raise CorruptRecords(f"{METADATA_PARTITION}: the record at {record.offset} has no value")
        found.append(decode_record(record.value))
    return found


def _log_refusal(answer: ControllerResponse | KafkaError) -> None:
    if isinstance(answer, KafkaError):
        _logger.info("event=controller-command-refused reason=%s", answer)


def _at_once(callback: Callable[[], None]) -> None:
    callback()
