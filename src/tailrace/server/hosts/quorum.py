"""Runs one replica of the metadata log: feeds `RaftNode` with messages, time and the disk's news, and obeys it.

1. The effects of a step are carried out in their order before the next step. Whatever happens meanwhile, and whatever
   a state machine wants to do between two steps, is a task that waits for its turn (`perform`).
2. What waits for the disk is begun here and done by `Disk.carry_out`, one after the other: the file `quorum-state`,
   flushes, snapshots that are checked and published. The machine itself keeps back what depends on them.
3. One flush at a time, and none while a snapshot is put in the place of the log.
4. When the disk fails where nothing can be taken back (a write, a read of what was written), this replica says so to
   the machine and never touches its log again: it neither votes nor leads, and tells the others, until it is started
   anew. A failure of a flush ends the process (`server.ports.Disk`).
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.ids import BrokerId
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.node import RaftNode
from tailrace.raft.ports import Jitter, QuorumState, RaftConfig
from tailrace.raft.rpc import FetchResponse, FetchSnapshotResponse, QuorumDescription, Request, Response, SnapshotId
from tailrace.raft.voters import Endpoint, ReplicaKey, VoterSet
from tailrace.server.hosts.metadata_directory import MetadataDirectory
from tailrace.server.hosts.quorum_log import QuorumFlush, QuorumLog
from tailrace.server.hosts.quorum_state import QuorumState as StoredState
from tailrace.server.hosts.raft_wire import oldest_version, request_to_wire, response_from_wire
from tailrace.server.ports import Clock, Disk, Peer, QuorumResponse, Timer
from tailrace.storage.snapshot_writer import Publication

RETIRE_INTERVAL_MS: Final = 10_000
"""How often segments are looked for that lie below the log start."""

Task = Callable[[], None]
OnAnswer = Callable[[Response], None]
OnVotersChanged = Callable[[ErrorCode, str], None]

_logger = logging.getLogger("tailrace.server")


class StateMachine(Protocol):
    """What the log is for. Called in the middle of a step: it may note what it hears, and acts in tasks of its own."""

    def committed(self, high_watermark: int) -> None:
        """All below is committed."""
        ...

    def role_changed(self, change: do.RoleChanged) -> None: ...

    def load_snapshot(self, snapshot_id: SnapshotId) -> None:
        """The log begins here now."""
        ...


def read_quorum_state(directory: MetadataDirectory) -> QuorumState:
    """The promises of this replica. Raises CorruptRecords."""
    stored = directory.read_quorum_state()
    voted = None if stored.voted_id < 0 else ReplicaKey(stored.voted_id, stored.voted_directory_id)
    return QuorumState(stored.leader_epoch, stored.leader_id, voted)


class QuorumHost:
    """One replica, from its start to its end."""

    def __init__(
        self,
        *,
        key: ReplicaKey,
        cluster_id: str | None,
        log: QuorumLog,
        directory: MetadataDirectory,
        initial_voters: VoterSet,
        bootstrap_ids: Sequence[int] = (),
        config: RaftConfig,
        jitter: Jitter,
        clock: Clock,
        disk: Disk,
        peer: Peer,
        listeners: Sequence[Endpoint] = (),
        on_storage_failed: Callable[[KafkaError], None] = lambda _: None,
    ) -> None:
        """`bootstrap_ids` are names below -1 of places that `peer` knows; `listeners` where this replica listens for
        others. Raises CorruptRecords if `quorum-state` is illegible."""
        self.log = log
        log.tell_times_by(wall_ahead_ms=clock.now_ms() - clock.monotonic_ms())
        self.cluster_id = cluster_id
        self.failure: KafkaError | None = None
        """Why this replica has given up its log."""
        self.node = RaftNode(
            key=key,
            cluster_id=cluster_id,
            log=log,
            state=read_quorum_state(directory),
            initial_voters=initial_voters,
            voters_in_log=log.voters_in_log,
            bootstrap_ids=bootstrap_ids,
            config=config,
            jitter=jitter,
            now_ms=clock.monotonic_ms(),
        )
        self._directory = directory
        self._clock = clock
        self._disk = disk
        self._peer = peer
        self._listeners = tuple(listeners)
        self._on_storage_failed = on_storage_failed
        self._machine: StateMachine | None = None
        self._tasks: deque[Task] = deque()
        self._is_busy = False
        self._is_stepping = False
        self._is_closed = False
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._wanted_flush = self._begun_flush = 0
        self._flush_under_way: QuorumFlush | None = None
        self._is_installing = False
        self._refusal: do.AppendRefused | None = None
        self._on_shut_down: list[Callable[[], None]] = []
        self._is_stranger = False

    # Life

    def start(self, machine: StateMachine) -> None:
        """Take part from now on."""
        self._machine = machine
        self._retire_later()
        self.step(events.Tick())

    def shut_down(self, on_done: Callable[[], None]) -> None:
        """Leave in good order, then call `on_done`: somebody else leads, or it does not matter. `close` comes next."""
        self._on_shut_down.append(on_done)
        self.step(events.Shutdown())

    def close(self) -> None:
        """Stop, and close the log. The disk has been stopped before. Raises StorageError."""
        self._is_closed = True
        self._tasks.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self.failure is not None:
            return
        if self._flush_under_way is not None:
            self._flush_under_way.sync()
            self.log.finish_flush(self._flush_under_way)
        self.log.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # Tasks and steps

    def perform(self, task: Task) -> None:
        """Do this between two steps: now, if nothing else is under way, or when all before it is done."""
        if self._is_closed:
            return
        self._tasks.append(task)
        if not self._is_busy:
            self._work()

    def _work(self) -> None:
        if self._is_busy or self._is_closed:
            return
        self._is_busy = True
        try:
            while self._tasks:
                self._tasks.popleft()()
        except BaseException:
            # The fault is the event loop's to report; it must not keep the next ones from their turn.
            if self._tasks:
                self._clock.call_soon(self._work)
            raise
        finally:
            self._is_busy = False
        self._schedule_tick()

    def step(self, event: events.Event) -> None:
        """Let the machine take this event when its turn has come."""
        self.perform(lambda: self._step(event))

    def _step(self, event: events.Event) -> None:
        following: events.Event | None = event
        while following is not None:
            assert not self._is_stepping, "a step within a step"
            self._is_stepping = True
            try:
                following = self._stepped(following)
            finally:
                self._is_stepping = False

    def _stepped(self, event: events.Event) -> events.Event | None:
        """Carry out one step; the event that must come next, if there is one."""
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
        """The log is of no use any more: stop to vote and to lead. For a task of a state machine."""
        if self.failure is None:
            self._fail(fault)
            self._step(events.StorageFailed(fault.detail))

    def _schedule_tick(self) -> None:
        deadline_ms = self.node.next_deadline_ms
        if self._is_closed or deadline_ms is None:
            return
        # At once is the next turn at the soonest: a machine that is never satisfied must not stop the world.
        due_ms = max(deadline_ms, self._clock.monotonic_ms() + 1)
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._clock.call_at(due_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.step(events.Tick())

    # What others ask

    def leader_endpoint(self, listener_name: str) -> Endpoint | None:
        """Where the leader listens, under this name if it has one of that name; None if that is not known."""
        leader = self.node.voters.find(self.node.leader_id)
        if leader is None or not leader.endpoints:
            return None
        return next((one for one in leader.endpoints if one.name == listener_name), leader.endpoints[0])

    def receive(self, request: Request, on_answer: OnAnswer) -> None:
        """A replica asks. It is answered once, now or later; never, if this replica closes before."""
        self.step(events.RequestReceived(on_answer, request))

    def describe(self, on_answer: Callable[[QuorumDescription], None]) -> None:
        """How the replicas stand, if this one leads. Times are of the clock that never jumps."""

        def answer(response: Response) -> None:
            assert isinstance(response, QuorumDescription), f"no description: {response}"
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
        """Have one voter added, removed or described anew, if this replica leads."""
        self.step(events.ChangeVoters(on_done, change, timeout_ms, ack_when_committed))

    # What the state machine asks

    def append(self, epoch: int, values: tuple[bytes, ...]) -> int:
        """Append these records in one batch as leader of this epoch; where they end. Only in a task.

        Raises NOT_CONTROLLER if this replica does not lead in that epoch any more, and StorageError; nothing is
        appended then.
        """
        self._refusal = None
        self._step(events.ClientAppend(None, epoch, values, len(values)))
        if self.failure is not None:
            raise KafkaError(self.failure.code, self.failure.detail)
        if self._refusal is not None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, self._refusal.detail)
        return self.log.end_offset

    def carry_out(self, work: Callable[[], None], task: Task) -> None:
        """Have the disk do this work, and this task done then."""
        self._disk.carry_out(work, lambda: self.perform(task))

    def publish(self, publication: Publication, task: Task) -> None:
        """Have a snapshot checked and given its name, some megabytes at a time, and this task done then."""

        def stepped() -> None:
            if publication.is_over:
                task()
            else:
                self.publish(publication, task)

        self.carry_out(publication.step, stepped)

    # Effects

    def _carry_out(self, effect: do.Effect) -> events.Event | None:
        """Do it; what the machine must be told before anything else. Raises StorageError, CorruptRecords."""
        match effect:
            case do.Persist(number, state):
                self._persist(number, state)
            case do.Flush(number):
                self._wanted_flush = number
                self._flush()
            case do.AppendAsLeader():
                self.log.append_as_leader(effect, now_ms=self._clock.now_ms())
            case do.AppendFetched():
                outcome = self.log.append_fetched(effect)
                if isinstance(outcome, events.AppendRejected):
                    _logger.warning("event=fetched-metadata-refused reason=%s", outcome.detail)
                return outcome
            case do.SendRequest(request_id, destination, request):
                self._send(request_id, destination, request)
            case do.SendResponse(token, response, read):
                _answer(token, response if read is None else self._filled(response, read))
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
                self._is_installing = True
                publication = self.log.begin_install(snapshot_id)
                self.publish(publication, lambda: self._installed(publication))
            case do.LoadSnapshot(snapshot_id):
                self._state_machine.load_snapshot(snapshot_id)
            case _:
                self._carry_out_without_log(effect)

    def _carry_out_without_log(self, effect: do.Effect) -> None:
        """What is left to do for a replica whose log has failed, and what needs no log anyway."""
        match effect:
            case do.Persist(number, state):
                self._persist(number, state)
            case do.SendRequest(request_id, destination, request):
                self._send(request_id, destination, request)
            case do.SendResponse(token, response, read):
                _answer(token, response if read is None else _unreadable(response))
            case do.RoleChanged():
                self._log_role(effect)
                self._state_machine.role_changed(effect)
            case do.AppendRefused():
                self._refusal = effect
            case do.VoterChangeDone(token, error, detail):
                assert callable(token), "who asked for the change is not known"
                token(error, detail)
            case do.ShutdownDone():
                waiting, self._on_shut_down = self._on_shut_down, []
                for on_done in waiting:
                    on_done()
            case _:
                assert self.failure is not None, f"not an effect: {effect}"

    def _log_role(self, change: do.RoleChanged) -> None:
        _logger.info(
            "event=quorum-role node=%d role=%s epoch=%d leader=%d",
            self.node.key.id,
            change.role.lower(),
            change.epoch,
            change.leader_id,
        )

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

    def _flush(self) -> None:
        """Begin the flush that is wanted, unless one is under way: then it comes next."""
        is_wanted = self._begun_flush < self._wanted_flush and self.failure is None
        if not is_wanted or self._flush_under_way is not None or self._is_installing:
            return
        number = self._begun_flush = self._wanted_flush
        flush = self._flush_under_way = self.log.begin_flush()
        self.carry_out(flush.sync, lambda: self._flushed(number, flush))

    def _flushed(self, number: int, flush: QuorumFlush) -> None:
        self._flush_under_way = None
        if self.failure is not None:
            return
        self.log.finish_flush(flush)
        self._flush()
        self._step(events.LogFlushed(number))

    def _installed(self, publication: Publication) -> None:
        self._is_installing = False
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
        self._flush()
        self._step(outcome)

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

    # Messages

    def _send(self, request_id: int, destination: int, request: Request) -> None:
        message = request_to_wire(request, listeners=self._listeners)

        def replied(reply: QuorumResponse | None) -> None:
            self.step(self._outcome(request_id, reply))

        self._peer.send(destination, message, replied, oldest_version=oldest_version(request))

    def _outcome(self, request_id: int, reply: QuorumResponse | None) -> events.Event:
        if reply is None:
            return events.RequestFailed(request_id)
        try:
            response = response_from_wire(reply)
            if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
                self._say_other_cluster()
            return events.ResponseReceived(request_id, response)
        except KafkaError as fault:
            _logger.warning("event=quorum-answer-ignored reason=%s", fault)
            return events.RequestFailed(request_id)

    def _say_other_cluster(self) -> None:
        """Once: it will be said to every request."""
        if not self._is_stranger:
            self._is_stranger = True
            _logger.error(
                "event=other-cluster node=%d cluster=%s: a controller that was asked belongs to another cluster; name"
                " those of this one, or start with an empty directory",
                self.node.key.id,
                self.cluster_id,
            )

    def _filled(self, response: Response, read: do.ReadLog | do.ReadSnapshot) -> Response:
        """The answer with what it shall carry. Raises CorruptRecords, StorageError: then nobody gets any bytes."""
        try:
            if isinstance(read, do.ReadLog):
                assert isinstance(response, FetchResponse), f"records are for a Fetch, not {response}"
                return replace(response, records=b"".join(self.log.read(read.offset, max_bytes=read.max_bytes)))
            assert isinstance(response, FetchSnapshotResponse), f"bytes are for a FetchSnapshot, not {response}"
            data = self.log.read_snapshot(read.snapshot_id, read.position, read.size_bytes)
            return replace(response, data=bytes(data))
        except (CorruptRecords, StorageError):
            raise
        except KafkaError as fault:
            # The answer waited for the disk; what it is about has gone meanwhile.
            return replace(response, error=fault.code)


def _answer(token: object, response: Response) -> None:
    assert callable(token), "who asked is not known"
    token(response)


def _unreadable(response: Response) -> Response:
    return replace(response, error=ErrorCode.KAFKA_STORAGE_ERROR)
