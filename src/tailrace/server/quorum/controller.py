"""The host of the controller: the state machine on the metadata log of a `QuorumHost`.

    following --elected, all before applied, own epoch committed--> active --leadership gone--> following

1. Only an active controller decides, on the latest state, with every appended record (`active_controller`). Images,
   snapshots and answers (refusals included) show the committed state only: each of them waits until the high watermark
   has passed the records that it depends on.
2. On loss of leadership the latest state is dropped, and waiting requests are answered with NOT_CONTROLLER. Records of
   the latest state that are committed later are applied from the log.
3. Listeners of images get a change before its answer leaves. The answer does not wait for their work in later turns of
   the event loop; `when_applied` waits for that work too.

A node that follows, or has not caught up yet, applies committed records from snapshots and log, in slices, and reports
several batches as one change.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.derive import Steps
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.metadata.replay import Replay
from tailrace.metadata.snapshot_image import difference_steps
from tailrace.metadata.stored_partitions import RecordReader
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.raft.effects import RoleChanged
from tailrace.raft.rpc import SnapshotId
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.replication.watchers import OffsetWaiters
from tailrace.server.callbacks import call_safely
from tailrace.server.ports import Clock
from tailrace.server.quorum.active_controller import ActiveController, ImageChange, OnDone
from tailrace.server.quorum.change_log import ChangeLog
from tailrace.server.quorum.duties import LeaderBalanceConfig
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.loading import SnapshotLoading, read_committed
from tailrace.server.quorum.measure import QuorumMeasure, measure_of
from tailrace.server.quorum.queued_work import OnLongWork, StepwiseWork
from tailrace.server.quorum.snapshots import MetadataSnapshots

OnImage = Callable[[ClusterImage, ImageDelta], None]
WhenDurable = Callable[[Callable[[], None]], None]
"""Runs a callback when this node has acted on all received changes."""

_logger = logging.getLogger("tailrace.server")


def notify_each(listeners: Iterable[OnImage], image: ClusterImage, delta: ImageDelta) -> None:
    """Call each listener with a change, one after the other.

    The change is committed, and no fault of a listener undoes it. So a fault, such as a failed log of one partition, is
    logged and does not reach the caller.
    """
    for listener in listeners:
        call_safely("metadata-listener-failed", listener, image, delta)


class _Leadership(NamedTuple):
    """The epoch in which this node leads, and its first offset."""

    epoch: int
    start_offset: int


class QuorumController:
    """The metadata of a cluster on one of its nodes: a `server.ports.Controller`, wherever the active controller is."""

    def __init__(
        self,
        machine: ControllerMachine,
        *,
        host: QuorumHost,
        clock: Clock,
        snapshot_trigger: SnapshotTrigger,
        leader_balance: LeaderBalanceConfig,
        slice_partitions: int,
        on_long_work: OnLongWork,
    ) -> None:
        """`slice_partitions`: the number of changes that listeners get in one turn."""
        self._host = host
        self._clock = clock
        self._snapshots = MetadataSnapshots(host, clock=clock, trigger=snapshot_trigger)
        self._committed = EMPTY_IMAGE
        self._applied = SnapshotId(0, 0)
        self._applied_ms = 0
        self._high_watermark = 0
        self._knows_high_watermark = False
        self._has_loaded = False
        self._leadership: _Leadership | None = None
        self._loading: SnapshotLoading | None = None
        self._slice_partitions = slice_partitions
        self._acted_end_offset = 0
        self._listeners: list[OnImage] = []
        self._when_durable: WhenDurable = _at_once
        self._applying = StepwiseWork(
            self._next_change, later=self._later, clock=clock, on_idle=self._caught_up, on_long_work=on_long_work
        )
        self._awaited = OffsetWaiters()
        self._reader = RecordReader()
        self._change_log = ChangeLog(clock)
        self._active = ActiveController(
            machine,
            host=host,
            clock=clock,
            leader_balance=leader_balance,
            later=self._later,
            on_long_work=on_long_work,
            on_decided=self._applying.advance,
        )

    # server.ports.Controller

    @property
    def image(self) -> ClusterImage:
        """The committed image, for all reads."""
        return self._committed

    @property
    def leader_id(self) -> BrokerId:
        """The active controller, as far as this node knows; -1 if it knows no active controller."""
        return BrokerId(self._host.node.leader_id)

    @property
    def leader_epoch(self) -> int:
        """The newest epoch that this node knows of."""
        return self._host.node.epoch

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller, which decides."""
        return self._active.is_active

    @property
    def applied_end_offset(self) -> int:
        """The end offset of the records in `image`; the listeners may not have acted on all these records yet, see
        `when_applied`."""
        return self._applied.end_offset

    @property
    def has_loaded(self) -> bool:
        """Whether `image` has all records that were committed when this node learnt the high watermark of the quorum
        for the first time since its start."""
        return self._has_loaded

    def when_applied(self, end_offset: int, callback: Callable[[], None]) -> None:
        """Call `callback` once when `image` has every record below `end_offset`, and this node has acted on these
        records (`answer_when`).

        The call may come before `when_applied` returns. It never comes if the controller is closed before.
        """
        self._awaited.add(end_offset, lambda _: self._host.perform(partial(self._when_durable, callback)))
        self._host.perform(self._answer_waiting)

    def _answer_waiting(self) -> None:
        self._awaited.reached(self._acted_end_offset)

    def measure(self) -> QuorumMeasure:
        """This replica in numbers."""
        return measure_of(self._host, self._snapshots.measures, image=self._committed, applied=self._applied)

    def on_image(self, callback: OnImage) -> None:
        """Call this listener with every later change of `image`, before the answer to the command behind the change
        leaves."""
        self._listeners.append(callback)

    def answer_when(self, when_durable: WhenDurable) -> None:
        """Let `when_applied` also wait for the work on this node that follows from the changes."""
        self._when_durable = when_durable

    def submit(self, command: ControllerCommand, on_done: OnDone) -> None:
        """Take a command; `on_done` is called once, when the decision is committed, or with NOT_CONTROLLER.

        After NOT_CONTROLLER or KAFKA_STORAGE_ERROR the command may still take effect.
        """
        if self._host.is_closed:
            on_done(KafkaError(ErrorCode.NOT_CONTROLLER, "the controller has stopped"))
        else:
            self._host.perform(lambda: self._submit(command, on_done))

    # Life

    def start(self) -> None:
        """Load the newest snapshot, and take part in the quorum."""
        snapshots = self._host.log.snapshots
        if snapshots:
            self._begin_loading(snapshots[-1].id)
        self._host.start(self)
        self._host.perform(self._advance)

    def close(self) -> None:
        """Stop: waiting requests are refused. The disk has been stopped before; the log is closed."""
        self._step_down("the controller stops")
        self._applying.drop()
        self._stop_loading()
        self._host.close()

    # Deciding

    def _submit(self, command: ControllerCommand, on_done: OnDone) -> None:
        if self._active.is_active:
            self._active.submit(command, on_done)
        else:
            on_done(self._not_controller())

    def _not_controller(self) -> KafkaError:
        leader_id = self.leader_id
        if leader_id == self._host.node.key.id:
            return KafkaError(ErrorCode.NOT_CONTROLLER, "the controller has not read its log to the end yet")
        active = f"the active controller is {leader_id}" if leader_id >= 0 else "no active controller is known"
        return KafkaError(ErrorCode.NOT_CONTROLLER, active)

    # Callbacks of the quorum, in the middle of its steps

    def committed(self, high_watermark: int) -> None:
        """Note that every record below the high watermark is committed."""
        self._high_watermark = max(self._high_watermark, high_watermark)
        self._knows_high_watermark = True
        self._host.perform(self._advance)

    def role_changed(self, change: RoleChanged) -> None:
        """Begin or end the work of the active controller: this node leads from now on, or no longer leads."""
        start_offset = change.epoch_start_offset
        leadership = None if start_offset is None else _Leadership(change.epoch, start_offset)
        self._host.perform(lambda: self._take_role(leadership))

    def load_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Load this snapshot, which has replaced the log, in place of the applied state."""
        self._begin_loading(snapshot_id)
        self._host.perform(self._advance)

    def _begin_loading(self, snapshot_id: SnapshotId) -> None:
        self._stop_loading()
        self._loading = SnapshotLoading(self._host.log, snapshot_id)
        self._high_watermark = max(self._high_watermark, snapshot_id.end_offset)

    def _stop_loading(self) -> None:
        if self._loading is not None:
            self._loading.close()
            self._loading = None

    def _take_role(self, leadership: _Leadership | None) -> None:
        if self._leadership is not None:
            self._step_down(None)
        self._leadership = leadership
        self._advance()

    def _step_down(self, why: str | None) -> None:
        self._leadership = None
        for on_done in self._active.end():
            refusal = self._not_controller() if why is None else KafkaError(ErrorCode.NOT_CONTROLLER, why)
            self._answer(on_done, refusal)

    # Applying

    def _advance(self) -> None:
        """Apply committed records to the image: one step now, more in later turns."""
        if self._host.failure is None:
            self._applying.advance()

    def _later(self, task: Callable[[], None]) -> None:
        self._clock.call_soon(lambda: self._host.perform(task))

    def _next_change(self) -> Steps[None] | None:
        """The next work on the image, in any role of this node; one work is under way at a time."""
        if self._active.is_active:
            return self._publish() if self._active.has_due(self._high_watermark) else None
        if self._host.failure is not None:
            return None
        if self._loading is not None:
            return self._guarded(self._load(self._loading))
        if self._applied.end_offset < self._high_watermark:
            return self._guarded(self._follow())
        return None

    def _guarded(self, steps: Steps[None]) -> Steps[None]:
        try:
            yield from steps
        except KafkaError as fault:  # damage, a failed disk, or a kind of record of a newer release
            self._host.fail(fault)

    def _caught_up(self) -> None:
        if self._knows_high_watermark and self._applied.end_offset >= self._high_watermark:
            self._has_loaded = True
        self._answer_waiting()
        if self._host.failure is None:
            self._perhaps_become_active()

    def _load(self, loading: SnapshotLoading) -> Steps[None]:
        begun_ms = self._clock.monotonic_ms()
        if not (yield from loading.steps()):
            return
        if loading.id.end_offset <= self._applied.end_offset:
            self._stop_loading()
            return
        image = loading.image()
        delta = yield from difference_steps(self._committed, image)
        if self._loading is loading:
            self._stop_loading()
            self._applied = loading.id
            self._snapshots.loaded(image, loading.id, loading.records_count)
            yield from self._show(image, delta)
            self._snapshots.measures.loaded.add(self._clock.monotonic_ms() - begun_ms)

    def _follow(self) -> Steps[None]:
        """Apply the committed records of one read."""
        read = yield from read_committed(self._host.log, self._applied.end_offset, self._high_watermark, self._reader)
        replay = Replay(self._committed)
        yield from replay.steps(read.records)
        image, delta = yield from replay.finishing()
        yield from self._act_on(ImageChange(image, delta, read.end, read.size_bytes, read.appended_ms))
        if self._applied.end_offset < self._high_watermark:
            yield

    def _act_on(self, change: ImageChange) -> Steps[None]:
        before = self._committed
        self._applied, self._applied_ms = change.id, change.appended_ms
        self._snapshots.appended(change.size_bytes)
        self._snapshots.changed(change.image, change.delta)
        yield from self._show(change.image, change.delta)
        if change.cause is not None:
            yield from self._change_log.steps(before, change.image, change.delta, change.cause)
        self._perhaps_snapshot()

    def _show(self, image: ClusterImage, delta: ImageDelta) -> Steps[None]:
        """Make the image visible at once, and call the listeners with its changes in slices."""
        applied = self._applied
        self._committed = image
        for number, portion in enumerate(delta.pieces(self._slice_partitions)):
            if number:
                yield
            notify_each(self._listeners, image, portion)
        self._acted_end_offset = applied.end_offset
        self._answer_waiting()

    def _perhaps_snapshot(self) -> None:
        if self._snapshots.is_due:
            self.write_snapshot()

    def write_snapshot(self) -> bool:
        """Begin to write a snapshot of the applied image, due or not; returns whether the snapshot may be written. Only
        in a task of the host."""
        return self._loading is None and self._snapshots.begin(self._committed, self._applied, self._applied_ms)

    # Leading

    def _perhaps_become_active(self) -> None:
        leadership = self._leadership
        # Only a committed record of the leader's own epoch shows that no record of an earlier epoch can still be
        # committed.
        if self._active.is_active or leadership is None or self._high_watermark <= leadership.start_offset:
            return
        self._active.begin(leadership.epoch, self._committed, self._applied.end_offset)

    def _publish(self) -> Steps[None]:
        """Act on the changes that the high watermark has passed, and answer their callers, in order."""
        while self._active.has_due(self._high_watermark):
            pending = self._active.take_due()
            if pending.change is not None:
                yield from self._act_on(pending.change)
            self._answer(pending.on_done, pending.answer)

    def _answer(self, on_done: OnDone, answer: ControllerResponse | KafkaError) -> None:
        """Run the callback as a task of its own, so that its exception does not hold back other answers."""
        self._host.perform(partial(on_done, answer))

    def broker_gone(self, broker_id: BrokerId) -> None:
        """Shorten the session of a broker: the connection of its heartbeats was closed."""
        self._host.perform(lambda: self._active.sessions.shorten(broker_id))

    def node_refuses(self, node_id: int) -> None:
        """Shorten the session of the broker on that node, unless the broker has already sent a heartbeat: no process
        listens there."""
        self._host.perform(lambda: self._active.sessions.refused(BrokerId(node_id)))


def _at_once(callback: Callable[[], None]) -> None:
    callback()
