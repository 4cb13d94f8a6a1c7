"""Runs one RaftNode in a simulated world, with a state machine that hashes what is committed.

Its disk may fail: with *EIO* nothing becomes durable any more, on a *full* disk only the quorum state does (a few bytes
that are always reserved). In both cases the node gets the error with the next write, and works again after a restart.
Each node has a clock of its own, which may jump forwards, as after a pause of the whole machine.
"""

from collections.abc import Callable
from dataclasses import dataclass

from simulation.harness.network import Network
from simulation.harness.world import Life, World
from simulation.raft.faults import DiskFault, DiskTimes
from simulation.raft.log import (
    AppendOp,
    EpochRecord,
    MemoryLog,
    RaftDisk,
    RaiseStartOp,
    StoredSnapshot,
    TruncateOp,
    filled_with_bytes,
    filled_with_records,
)
from simulation.raft.state import State, StateMachine, decode_snapshot, encode_snapshot, key_of
from simulation.raft.watcher import Watcher
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.node import RaftNode
from tailrace.raft.ports import QuorumState, RaftConfig, SnapshotFile
from tailrace.raft.rpc import FetchRecordsReply, FetchSnapshotReply, Request, Response, SnapshotId
from tailrace.raft.voters import ReplicaKey, VotersAt, VoterSet


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The client or node that waits for an answer."""

    source: int
    request_id: int
    life: Life
    request: Request


class RaftHost:
    """A node: runs, crashes, comes back with what its disk has."""

    def __init__(
        self,
        world: World,
        network: Network,
        *,
        key: ReplicaKey,
        initial_voters: VoterSet,
        config: RaftConfig,
        times: DiskTimes,
        watcher: "Watcher[RaftHost]",
        find: Callable[[int], "RaftHost | None"],
    ) -> None:
        self.world = world
        self.key = key
        self.disk = RaftDisk()
        self.config = config
        self.times = times
        self.node: RaftNode
        self.log = MemoryLog(self.disk)
        self._machine = StateMachine()
        self.life = Life()
        self.life.is_over = True
        self.acked: list[object] = []
        """Values whose commit this host has told its clients."""
        self.changes: list[do.VoterChangeDone] = []
        self._network = network
        self.initial_voters = initial_voters
        self._watcher = watcher
        self._find = find
        self._parts: dict[SnapshotId, bytearray] = {}
        self._waiting: list[tuple[int, int, object]] = []
        self._next_tick_ms: int | None = None
        self._persisted_number = 0
        self.crash_in_step: float = 0.0
        self.fault: DiskFault | None = None
        self.has_failed = False
        """Whether the node has received StorageFailed."""
        self._is_refused = False
        self.installing: SnapshotId | None = None
        """A snapshot that is being validated."""
        self._clock_ms = world.between(0, 1_000_000, "clock", key.id)
        self._wall_clock_ms = 0

    @property
    def now_ms(self) -> int:
        """The time of this host's monotonic clock."""
        return self.world.now_ms + self._clock_ms

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def node_id(self) -> int:
        return self.key.id

    @property
    def is_up(self) -> bool:
        return not self.life.is_over

    # Life and death

    def start(self) -> None:
        """Come up with what is on the disk."""
        assert not self.is_up
        self.life = Life()
        self.log = MemoryLog(self.disk)
        self.node = RaftNode(
            key=self.key,
            cluster_id="simulated",
            log=self.log,
            state=self.disk.quorum_state,
            initial_voters=self.initial_voters,
            voters_in_log=self.log.voters_in_log(),
            bootstrap_ids=(),
            config=self.config,
            jitter=lambda: self.world.draw("jitter", self.key.id),
            now_ms=self.now_ms,
        )
        newest = self.disk.newest_snapshot()
        self._machine = StateMachine(None if newest is None else decode_snapshot(newest.data)[1])
        self._parts.clear()
        self._waiting.clear()
        self._next_tick_ms = None
        self._persisted_number = 0
        self.fault, self.has_failed, self._is_refused = None, False, False
        self.installing = None
        self.world.note(f"{self.key.id} starts: log {self.log.log_start_offset} to {self.log.end_offset}")
        self._watcher.started(self)
        self._schedule_tick()

    def crash(self) -> None:
        """Lose everything that is not on the disk. A prefix of the operations under way may be on the disk."""
        unflushed = self.log.unflushed
        if unflushed:
            kept = self.world.between(0, unflushed, "kept", self.key.id)
            self.world.sometimes["crash lost unflushed operations"] += kept < unflushed
            self.log.flush_to(self.log.mark() - unflushed + kept)
            self._tear()
        self.life.is_over = True
        self.world.note(f"{self.key.id} crashes: {self.disk.log.start} to {self.disk.log.end} on its disk")

    def _tear(self) -> None:
        count = self.log.tearable
        if count > 1 and self.log.tear(self.world.between(0, count - 1, "torn", self.key.id)):
            self.world.sometimes["a write was torn"] += 1

    def fail_disk(self, fault: DiskFault) -> None:
        """From now on writes fail, until the next start."""
        self.fault = fault
        self.world.note(f"the disk of {self.key.id} {fault.value}")

    def jump(self, milliseconds: int, wall_clock_ms: int) -> None:
        """Move the monotonic clock forwards, and the time of day, which only snapshots have, forwards or back."""
        self._clock_ms += milliseconds
        self._wall_clock_ms += wall_clock_ms
        self._next_tick_ms = None
        self.world.note(f"the clock of {self.key.id} jumps by {milliseconds} ms")
        if self.is_up:
            self.step(Tick())

    def wipe(self) -> None:
        """Lose the disk. The node that comes back under this id is another replica, with another directory."""
        if self.is_up:
            self.crash()
        self._watcher.loses_disk(self)
        directory = self.key.directory_id[-2]
        self.key = key_of(self.key.id, directory + 1)
        self.disk = RaftDisk()
        self.acked.clear()
        self.world.note(f"{self.key.id} loses its disk")

    def _come_back(self) -> None:
        if not self.is_up:
            self.start()

    # Events

    def step(self, event: events.Event) -> None:
        """Give the node this event, and carry out its effects."""
        life, watcher = self.life, self._watcher
        pending = [event]
        while pending and not life.is_over:
            event = pending.pop(0)
            watcher.stepping(self, event)
            for effect in self.node.step(event, self.world.now_ms + self._clock_ms):
                if self.crash_in_step and self.world.chance(self.crash_in_step, "crash in step", self.key.id):
                    self.world.sometimes["crash between two effects"] += 1
                    self.crash()
                    self.world.after(200, self._come_back)
                    return
                follow_up = self._carry_out(effect)
                if follow_up is not None:
                    pending.append(follow_up)
            if self._is_refused and not self.has_failed:
                pending.append(self._storage_failed())
            watcher.stepped(self, event)
        if not life.is_over:
            self._schedule_tick()

    def _storage_failed(self) -> events.Event:
        self.has_failed = True
        assert self.fault is not None
        self.world.sometimes[f"the disk of a {'leader' if self.node.is_leader else 'follower'} {self.fault.value}"] += 1
        return events.StorageFailed(self.fault.value)

    def _schedule_tick(self) -> None:
        deadline_ms = self.node.next_deadline_ms
        if deadline_ms is None or (self._next_tick_ms is not None and self._next_tick_ms <= deadline_ms):
            return
        self._next_tick_ms = max(deadline_ms, self.now_ms + 1)
        due_ms = self._next_tick_ms

        def tick() -> None:
            if self._next_tick_ms == due_ms:
                self._next_tick_ms = None
                self.step(Tick())

        self.world.after(due_ms - self.now_ms, tick, self.life)

    # Effects

    def _carry_out(self, effect: do.Effect) -> events.Event | None:
        """Carry out an effect; returns the event that the node must get before any other event."""
        match effect:
            case do.SendRequest(request_id, destination, request):
                self._send_request(request_id, destination, request)
            case do.SendResponse(token, response, read):
                assert isinstance(token, RequestOrigin)
                self._send_response(token, self._filled(response, read))
            case do.Persist(number, state):
                if self.fault is not DiskFault.EIO:
                    self._slowly(lambda: self._persisted(number, state))
            case do.Flush(number):
                self._flush(number)
            case do.AppendAsLeader():
                self._append_as_leader(effect)
            case do.AppendFetched(base_offset, _, records):
                return self._append_fetched(base_offset, records)
            case do.Truncate(end_offset):
                self._watcher.truncates(self, end_offset)
                self.log.do(TruncateOp(end_offset))
                self.world.sometimes["a log was cut"] += 1
                self.world.note(f"{self.key.id} cuts its log at {end_offset}")
            case do.HighWatermarkMoved(offset):
                self._committed(offset)
            case do.RoleChanged():
                self._waiting.clear()
                self.world.note(f"{self.key.id} is {effect.role} of {effect.epoch}, leader {effect.leader_id}")
                self._watcher.changed_role(self, effect)
            case _:
                self._carry_out_rare(effect)
        return None

    def _carry_out_rare(self, effect: do.Effect) -> None:
        match effect:
            case do.RaiseLogStart(offset):
                self._watcher.raises_log_start(self, offset)
                self.log.do(RaiseStartOp(offset))
                self.world.sometimes["log start raised"] += 1
                self.world.note(f"the log of {self.key.id} starts at {offset}")
            case do.DeleteSnapshots(ids):
                self._watcher.deletes_snapshots(self, ids)
                for removed in ids:
                    del self.disk.snapshots[removed]
            case do.WriteSnapshotPart(snapshot_id, position, data):
                part = bytearray() if position == 0 else self._parts[snapshot_id]
                assert len(part) == position
                self._parts[snapshot_id] = part + data
            case do.DiscardSnapshotPart(snapshot_id):
                self._parts.pop(snapshot_id, None)
                self.world.sometimes["download of a snapshot given up"] += 1
            case do.InstallSnapshot(snapshot_id):
                self._watcher.installs_snapshot(self, snapshot_id, bytes(self._parts[snapshot_id]))
                self.installing = snapshot_id
                delay_ms = self.world.between(0, self.times.max_install_ms, "install", self.key.id)
                self.world.after(delay_ms, lambda: self._install(snapshot_id), self.life)
            case do.LoadSnapshot(snapshot_id):
                self._watcher.loads_snapshot(self, snapshot_id)
                self._machine.state = decode_snapshot(self.disk.snapshots[snapshot_id].data)[1]
            case do.VoterChangeDone(error=error):
                self.changes.append(effect)
                self.world.sometimes[f"change of voters: {error.name}"] += 1
                self.world.note(f"{self.key.id} says of a change of voters: {error.name} {effect.detail}")
            case do.AppendRefused() | do.ShutdownDone():
                pass
            case _:
                raise AssertionError(effect)

    def _slowly(self, action: Callable[[], None]) -> None:
        delay_ms = self.world.between(self.times.min_flush_ms, self.times.max_flush_ms, "flush", self.key.id)
        self.world.after(delay_ms, action, self.life)

    def _persisted(self, number: int, state: QuorumState) -> None:
        if self.fault is DiskFault.EIO:
            return
        if number > self._persisted_number:
            self._persisted_number = number
            self.disk.quorum_state = state
        self.step(events.QuorumStatePersisted(number))

    def _flush(self, number: int) -> None:
        if self.fault is not None:
            self._is_refused = True
            return
        mark = self.log.mark()
        self._slowly(lambda: self._flushed(number, mark))

    def _flushed(self, number: int, mark: int) -> None:
        if self.fault is DiskFault.EIO:
            if not self.has_failed:
                self.step(self._storage_failed())
            return
        self.log.flush_to(mark)
        self.step(events.LogFlushed(number))

    def _append_as_leader(self, batch: do.AppendAsLeader) -> None:
        values = batch.control or batch.records
        assert isinstance(values, tuple)
        if self.fault is not None:
            self._is_refused = True
            return
        assert batch.base_offset == self.log.end_offset, f"{batch.base_offset} is not {self.log.end_offset}"
        entries = tuple(EpochRecord(batch.leader_epoch, value) for value in values)
        self._append(entries)
        if batch.token is not None:
            self._waiting.append((self.log.end_offset, batch.leader_epoch, batch.token))

    def _append_fetched(self, base_offset: int, records: object) -> events.Event:
        assert isinstance(records, tuple)
        if self.fault is not None:
            self._is_refused = True
            return events.AppendRejected(self.fault.value)
        assert base_offset == self.log.end_offset
        self._append(records, is_one_batch=False)
        stated = [
            VotersAt(offset, entry.value.voters)
            for offset, entry in enumerate(records, base_offset)
            if isinstance(entry.value, do.Voters)
        ]
        return events.LogAppended(self.log.end_offset, self.log.last_epoch, tuple(stated))

    def _append(self, entries: tuple[EpochRecord, ...], *, is_one_batch: bool = True) -> None:
        base_offset = self.log.end_offset
        self.log.do(AppendOp(entries, is_one_batch))
        self._watcher.appended(self, base_offset, entries)

    # Messages

    def _send_request(self, request_id: int, destination: int, request: Request) -> None:
        self._watcher.sends_request(self, request)
        origin = RequestOrigin(self.key.id, request_id, self.life, request)

        def deliver() -> None:
            target = self._find(destination)
            if target is not None and target.is_up:
                target.step(events.RequestReceived(origin, request))
            elif self.is_up and self.life is origin.life:
                self.step(events.RequestFailed(request_id))

        self._network.send(self.key.id, destination, deliver)

    def stray(self, request: Request) -> None:
        """Send a request of a node outside of the quorum, or of a node that takes the quorum for another quorum."""
        self.step(events.RequestReceived(RequestOrigin(-1, 0, Life(), request), request))

    def _send_response(self, origin: RequestOrigin, response: Response) -> None:
        self._watcher.sends_response(self, origin.request, response)

        def deliver() -> None:
            source = self._find(origin.source)
            if source is not None and source.life is origin.life and source.is_up:
                source.step(events.ResponseReceived(origin.request_id, response))

        self._network.send(self.key.id, origin.source, deliver)

    def _filled(self, response: Response, read: do.ReadLog | do.ReadSnapshot | None) -> Response:
        if isinstance(read, do.ReadLog) and isinstance(response, FetchRecordsReply):
            return filled_with_records(response, read, self.log)
        if isinstance(read, do.ReadSnapshot) and isinstance(response, FetchSnapshotReply):
            is_damaged = self.world.chance(self.times.damage, "damage", self.key.id)
            return filled_with_bytes(response, read, self.disk, is_damaged=is_damaged)
        return response

    # Commit and snapshots

    def _committed(self, offset: int) -> None:
        self._machine.apply_to(min(offset, self.log.end_offset), self.log.image)
        self._watcher.committed(self, offset)
        done = [waiting for waiting in self._waiting if waiting[0] <= offset]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > offset]
        self.acked += [token for _, epoch, token in done if epoch == self.node.epoch]

    def write_snapshot(self, end_offset: int | None = None) -> bool:
        """Write a snapshot of the state at the present offset, or at this offset, earlier or later. Returns whether the
        node allows the snapshot."""
        state = self.state if end_offset is None else self._machine.at(end_offset, self.log.image)
        entry = None if state is None else self.log.image.at(state.offset - 1)
        if state is None or entry is None or self.fault is not None:
            return False
        snapshot_id = SnapshotId(state.offset, entry.epoch)
        if self.node.snapshot_fault(snapshot_id) is not None:
            self.world.sometimes["snapshot refused: not committed"] += state.offset > self.state.offset
            return False
        voters = self.node.voters_at(snapshot_id.end_offset)
        data = encode_snapshot(snapshot_id, state, voters)
        file = SnapshotFile(snapshot_id, len(data), self.now_ms + self._wall_clock_ms)
        self.disk.snapshots[snapshot_id] = StoredSnapshot(file, data, voters)
        self.world.note(f"{self.key.id} writes a snapshot of {snapshot_id.end_offset}")
        self.step(events.SnapshotWritten(snapshot_id))
        self.world.sometimes["snapshot written"] += 1
        return True

    def _install(self, snapshot_id: SnapshotId) -> None:
        data, self.installing = bytes(self._parts.pop(snapshot_id)), None
        if self.fault is not None:
            self._is_refused = True
            self.step(events.SnapshotRejected(snapshot_id, self.fault.value))
            return
        try:
            stated, _, voters = decode_snapshot(data)
        except ValueError as error:
            self.world.sometimes["damaged snapshot refused"] += 1
            self.step(events.SnapshotRejected(snapshot_id, str(error)))
            return
        assert stated == snapshot_id
        file = SnapshotFile(snapshot_id, len(data), self.now_ms + self._wall_clock_ms)
        self.world.note(f"{self.key.id} takes the snapshot of {snapshot_id.end_offset} in place of its log")
        self.log.install(StoredSnapshot(file, data, voters))
        self.world.sometimes["snapshot installed"] += 1
        self.step(events.SnapshotInstalled(snapshot_id, voters))

    def describe(self) -> str:
        """A line for a failure's message."""
        if not self.is_up:
            return f"{self.node_id}: down"
        node = self.node
        return (
            f"{self.node_id}: {type(node.role).__name__} of {node.epoch}, leader {node.leader_id}, "
            f"log {self.log.log_start_offset} to {node.end_offset} ({self.log.last_epoch}), "
            f"committed {node.high_watermark}, voters {[key.id for key in node.voters.keys]}"
        )
