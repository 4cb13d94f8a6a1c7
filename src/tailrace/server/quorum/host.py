"""The host of one replica of the metadata log: passes messages, time and finished disk work to `RaftNode`, and carries
its effects out.

1. The effects of a step are carried out in their order before the next step. Events that come during a step, and work
   of the state machine between two steps, are tasks that wait for their turn (`perform`).
2. Work that waits for the disk is begun here and done by `Disk.carry_out`, one after the other: the file
   `quorum-state`, flushes, snapshots that are checked and published. The machine itself keeps back effects that
   depend on such work.
3. One flush at a time, and no flush while a snapshot replaces the log (`server.quorum.flushes`).
4. After a failure of the disk that cannot be undone (of a write, or of a read of written bytes), the host reports
   StorageFailed to the machine and never touches the log again: until its restart the replica neither votes nor leads,
   and its peers learn that. A failed flush ends the process (`server.ports.Disk`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.ids import BrokerId
from tailrace.model.machines import Tick
from tailrace.model.proofs import NO_SECRET
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.node import RaftNode
from tailrace.raft.ports import QuorumState
from tailrace.raft.rpc import DescribeQuorumReply, FetchRecords, Request, Response, SnapshotId
from tailrace.raft.voters import ReplicaKey, VoterListener
from tailrace.server.callbacks import Alarm
from tailrace.server.ports import Clock, Disk, Peer
from tailrace.server.quorum.flushes import QuorumFlushes
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.messages import QuorumRequests, RefusalLines, RoleLines, answer, filled, unreadable
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.server.quorum.metadata_directory import StoredQuorumState as StoredState
from tailrace.server.quorum.queued_work import Task, TaskQueue
from tailrace.storage.snapshots.writer import Publication

RETIRE_INTERVAL_MS: Final = 10_000
"""The interval at which segments below the log start are removed."""
LONGEST_WAIT_MS: Final = 5_000
"""The longest wait of a Fetch here, ten times the wait that Tailrace's replicas ask for: the sender may be gone before
the answer, and cannot cancel the request."""

OnAnswer = Callable[[Response], None]
OnVotersChanged = Callable[[ErrorCode, str], None]

_logger = logging.getLogger("tailrace.server")


class StateMachine(Protocol):
    """The state machine of the log. Its methods are called in the middle of a step: they queue tasks and return."""

    def committed(self, high_watermark: int) -> None:
        """Note that the records below this offset are committed."""
        ...

    def role_changed(self, change: do.RoleChanged) -> None: ...

    def load_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Load this snapshot, which has replaced the log."""
        ...


def read_quorum_state(directory: MetadataDirectory) -> QuorumState:
    """The epoch and the vote of this replica, from its file. Raises CorruptRecords."""
    stored = directory.read_quorum_state()
    voted = None if stored.voted_id < 0 else ReplicaKey(stored.voted_id, stored.voted_directory_id)
    return QuorumState(stored.leader_epoch, stored.leader_id, voted)


class QuorumHost:
    """A replica, from its start to its end."""

    def __init__(
        self,
        *,
        node: RaftNode,
        cluster_id: str | None,
        log: QuorumLog,
        directory: MetadataDirectory,
        clock: Clock,
        disk: Disk,
        peer: Peer,
        listeners: Sequence[VoterListener],
        secret: bytes = NO_SECRET,
        on_storage_failed: Callable[[KafkaError], None],
        on_broken_step: Callable[[Exception], None],
    ) -> None:
        """`node`: the machine, over this log. `listeners` are the addresses of this replica for its peers; `secret`
        proves to the peers that this replica is the sender. `on_broken_step` gets an exception that is no fault of the
        log's storage: the state of the machine differs from the state of the log."""
        self.node = node
        self.log = log
        self.cluster_id = cluster_id
        self.secret: Final = secret
        self.failure: KafkaError | None = None
        """The reason why this replica has given up its log."""
        self._directory = directory
        self._clock = clock
        self._disk = disk
        self._refusals = RefusalLines(clock)
        self._requests = QuorumRequests(
            node.key,
            cluster_id,
            peer=peer,
            listeners=listeners,
            secret=secret,
            on_outcome=self.step,
            refusals=self._refusals,
        )
        self._flushes = QuorumFlushes(
            log,
            carry_out=self.carry_out,
            has_failed=self._has_failed,
            on_flushed=self._flushed,
            on_failed=self.fail,
        )
        self._on_storage_failed = on_storage_failed
        self._on_broken_step = on_broken_step
        self._machine: StateMachine | None = None
        self._roles = RoleLines(node.key.id, clock)
        self._tasks = TaskQueue(clock, on_idle=self._schedule_tick)
        self._alarm = Alarm(clock, self._tick)
        self._is_stepping = False
        self._refusal: do.AppendRefused | None = None
        self._on_shut_down: list[Callable[[], None]] = []

    # Life

    def start(self, machine: StateMachine) -> None:
        """Take part from now on."""
        self._machine = machine
        self._retire_later()
        self.step(Tick())

    def shut_down(self, on_done: Callable[[], None]) -> None:
        """Hand the leadership over; call `on_done` when another node leads, or when no other node can lead. Then call
        `close`."""
        self._on_shut_down.append(on_done)
        self.step(events.Shutdown())

    def close(self) -> None:
        """Stop, and close the log. The disk has been stopped before. Raises StorageError."""
        self._tasks.close()
        self._alarm.cancel()
        if self.failure is not None:
            return
        self._flushes.close()
        self.log.close()

    @property
    def is_closed(self) -> bool:
        return self._tasks.is_closed

    # Tasks and steps

    def perform(self, task: Task) -> None:
        """Run this task between two steps: now if nothing else is running, otherwise after all earlier tasks."""
        self._tasks.perform(task)

    def step(self, event: events.Event) -> None:
        """Pass this event to the machine, after all earlier tasks."""
        self.perform(lambda: self._step(event))

    def _step(self, event: events.Event) -> None:
        following: events.Event | None = event
        while following is not None:
            assert not self._is_stepping, "a step within a step"
            self._is_stepping = True
            try:
                following = self._stepped(following)
            except Exception as bug:
                self._on_broken_step(bug)
                raise
            finally:
                self._is_stepping = False

    def _stepped(self, event: events.Event) -> events.Event | None:
        """Carry out one step; returns the event that must come next, or None."""
        following: events.Event | None = None
        for effect in self.node.step(event, self._clock.monotonic_ms()):
            if self.failure is not None:
                self._carry_out_without_log(effect)
                continue
            try:
                following = self._carry_out(effect) or following
            except (StorageError, CorruptRecords) as fault:
                self._fail(fault)
                self._carry_out_without_log(effect)
                following = events.StorageFailed(fault.detail)
        return following

    def _fail(self, fault: KafkaError) -> None:
        self.failure = fault
        _logger.error("event=metadata-log-failed node=%d fault=%s", self.node.key.id, fault)
        self._on_storage_failed(fault)

    def fail(self, fault: KafkaError) -> None:
        """Give the log up: from now on this replica neither votes nor leads. Only in a task."""
        if self.failure is None:
            self._fail(fault)
            self._step(events.StorageFailed(fault.detail))

    def _schedule_tick(self) -> None:
        deadline_ms = self.node.next_deadline_ms
        if not self.is_closed and deadline_ms is not None:
            # Not before the next turn: a machine that is always due must not block the event loop.
            self._alarm.set(max(deadline_ms, self._clock.monotonic_ms() + 1))

    def _tick(self) -> None:
        self.step(Tick())

    # Requests of others

    def leader_endpoint(self, listener_name: str, leader_id: int) -> VoterListener | None:
        """The address of this leader: of its listener with this name, if the leader has such a listener. None if
        unknown.

        `leader_id` is the leader that an answer names: the answer may have waited for the disk, and another replica may
        lead now.
        """
        leader = self.node.voters.find(leader_id)
        if leader is None or not leader.endpoints:
            return None
        return next((endpoint for endpoint in leader.endpoints if endpoint.name == listener_name), leader.endpoints[0])

    def receive(self, request: Request, on_answer: OnAnswer) -> None:
        """Serve a request of another replica: `on_answer` is called once, now or later; never, if this replica closes
        before."""
        if isinstance(request, FetchRecords) and request.max_wait_ms > LONGEST_WAIT_MS:
            request = replace(request, max_wait_ms=LONGEST_WAIT_MS)
        self.step(events.RequestReceived(on_answer, request))

    def describe(self, on_answer: Callable[[DescribeQuorumReply], None]) -> None:
        """Answer with the progress of the replicas, if this replica leads. Times are of the monotonic clock."""

        def answer(response: Response) -> None:
            assert isinstance(response, DescribeQuorumReply), f"no description: {response}"
            on_answer(response)

        self.step(events.DescribeQuorum(answer))

    def change_voters(
        self,
        change: events.VoterChange,
        on_done: OnVotersChanged,
        *,
        timeout_ms: int = 30_000,
        ack_when_committed: bool = True,
    ) -> None:
        """Add or remove one voter, or change its description, if this replica leads."""
        self.step(events.ChangeVoters(on_done, change, timeout_ms, ack_when_committed))

    # Requests of the state machine

    def append(self, epoch: int, values: tuple[bytes, ...]) -> int:
        """Append these records in one batch as leader of this epoch; returns their end offset. Only in a task.

        Raises NOT_CONTROLLER if this replica does not lead in that epoch any more, and StorageError; in both cases no
        record is appended.
        """
        self._refusal = None
        self._step(events.ClientAppend(None, epoch, values, len(values)))
        if self.failure is not None:
            raise KafkaError(self.failure.code, self.failure.detail)
        if self._refusal is not None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, self._refusal.detail)
        return self.log.end_offset

    def carry_out(self, work: Callable[[], None], task: Task) -> None:
        """Run this work on the disk's thread, then this task."""
        self._disk.carry_out(work, lambda: self.perform(task))

    def publish(self, publication: Publication, task: Task) -> None:
        """Check and rename a snapshot, some megabytes at a time, then run this task."""

        def stepped() -> None:
            if publication.is_over:
                task()
            else:
                self.publish(publication, task)

        self.carry_out(publication.step, stepped)

    # Effects

    def _carry_out(self, effect: do.Effect) -> events.Event | None:
        """Carry out an effect; returns the event that the machine must get next, if any. Raises StorageError,
        CorruptRecords."""
        match effect:
            case do.Flush(number):
                self._flushes.request(number)
            case do.AppendAsLeader():
                self.log.append_as_leader(effect, now_ms=self._clock.now_ms())
            case do.AppendFetched():
                outcome = self.log.append_fetched(effect)
                if isinstance(outcome, events.AppendRejected):
                    self._refusals.write("fetched-metadata-refused", outcome.detail)
                return outcome
            case do.SendResponse(token, response, read):
                answer(token, response if read is None else filled(self.log, response, read))
            case do.HighWatermarkMoved(offset):
                self.log.commit(offset)
                self._state_machine.committed(min(offset, self.log.end_offset))
            case _:
                self._carry_out_rare(effect)
        return None

    def _carry_out_rare(self, effect: do.Effect) -> None:
        match effect:
            case do.Truncate(end_offset):
                _logger.info("event=metadata-log-cut end=%d was=%d", end_offset, self.log.end_offset)
                self.log.truncate(end_offset)
            case do.RaiseLogStart(offset):
                self.log.raise_log_start(offset)
                self.log.retire_segments(self._clock.now_ms())
            case do.DeleteSnapshots(ids):
                self.log.delete_snapshots(ids)
                self._remove_files()
            case do.WriteSnapshotPart():
                self.log.write_part(effect)
            case do.DiscardSnapshotPart(snapshot_id):
                self.log.discard_part(snapshot_id)
            case do.InstallSnapshot(snapshot_id):
                self._flushes.hold()
                publication = self.log.begin_install(snapshot_id)
                self.publish(publication, lambda: self._installed(publication))
            case do.LoadSnapshot(snapshot_id):
                self._state_machine.load_snapshot(snapshot_id)
            case _:
                self._carry_out_without_log(effect)

    def _carry_out_without_log(self, effect: do.Effect) -> None:
        """Carry out an effect that needs no log, or any effect after the log has failed."""
        match effect:
            case do.Persist(number, state):
                self._persist(number, state)
            case do.SendRequest(request_id, destination, request):
                self._requests.send(request_id, destination, request)
            case do.SendResponse(token, response, read):
                answer(token, response if read is None else unreadable(response))
            case do.RoleChanged():
                self._roles.write(effect)
                self._state_machine.role_changed(effect)
            case do.AppendRefused():
                self._refusal = effect
            case do.VoterChangeDone(token, error, detail):
                assert callable(token), "the change has no callback"
                token(error, detail)
            case do.ShutdownDone():
                waiting, self._on_shut_down = self._on_shut_down, []
                for on_done in waiting:
                    on_done()
            case _:
                assert self.failure is not None, f"not an effect: {effect}"

    @property
    def _state_machine(self) -> StateMachine:
        assert self._machine is not None, "the replica was not started"
        return self._machine

    # The disk

    def _persist(self, number: int, state: QuorumState) -> None:
        voters = self.node.voters
        voted = state.voted or ReplicaKey(-1)
        stored = StoredState(
            leader_id=BrokerId(state.leader_id),
            leader_epoch=state.epoch,
            voted_id=BrokerId(voted.id),
            voted_directory_id=voted.directory_id if voters.is_dynamic else bytes(16),
            voters=() if voters.is_dynamic else tuple(BrokerId(key.id) for key in voters.keys),
        )
        self.carry_out(
            lambda: self._directory.write_quorum_state(stored),
            lambda: self._step(events.QuorumStatePersisted(number)),
        )

    def _has_failed(self) -> bool:
        return self.failure is not None

    def _flushed(self, number: int) -> None:
        self._step(events.LogFlushed(number))

    def _installed(self, publication: Publication) -> None:
        if self.failure is not None:
            return
        try:
            outcome = self.log.finish_install(publication)
        except StorageError as fault:
            self.fail(fault)
            return
        if isinstance(outcome, events.SnapshotRejected):
            _logger.warning("event=fetched-snapshot-refused id=%s reason=%s", outcome.snapshot_id, outcome.detail)
        else:
            _logger.info("event=snapshot-installed id=%s", outcome.snapshot_id)
        self._step(outcome)  # first: the next flush may fail
        self._flushes.resume()

    def _remove_files(self) -> None:
        removal = self.log.take_removal()
        if removal is not None:
            self.carry_out(removal, lambda: None)

    def _retire_later(self) -> None:
        def retire() -> None:
            if self.failure is None:
                try:
                    self.log.retire_segments(self._clock.now_ms())
                    self._remove_files()
                except StorageError as fault:
                    self.fail(fault)
            self._retire_later()

        self._clock.call_at(self._clock.monotonic_ms() + RETIRE_INTERVAL_MS, lambda: self.perform(retire))
