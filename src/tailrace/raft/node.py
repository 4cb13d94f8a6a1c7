"""A replica of a Raft log as a machine: `RaftNode.step(event, now_ms) -> effects`.

The machine uses no Kafka message, no disk, no clock and no source of chance of its own. `events` has its input,
`effects` its output, and `ports` the log that the machine reads. The rules for its host:

1. Carry the effects of a step out in their order, before the next step.
2. Report AppendFetched (LogAppended or AppendRejected) before any other event.
3. Report Persist, Flush and InstallSnapshot when done and durable, not sooner, in any order.
4. A step at `next_deadline_ms`, with a Tick, is enough; time never goes back (use a monotonic clock).
5. After a crash, make a new node of the durable parts: the quorum state, the log, its snapshots.
"""

from collections.abc import Iterable, Sequence

from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.raft import events
from tailrace.raft.effects import DeleteSnapshots, Effect, RaiseLogStart, ShutdownDone
from tailrace.raft.elections import Elections
from tailrace.raft.following import Following
from tailrace.raft.leadership import RaftLeadership
from tailrace.raft.open_requests import OpenRequest
from tailrace.raft.ports import Jitter, LogView, QuorumState, RaftConfig
from tailrace.raft.replica import RaftReplica
from tailrace.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from tailrace.raft.rpc import (
    NO_LEADER,
    BeginEpoch,
    DescribeQuorumReply,
    EndEpoch,
    FetchRecords,
    FetchRecordsReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Request,
    Response,
    SnapshotId,
    Vote,
    VoteReply,
)
from tailrace.raft.serving import Serving
from tailrace.raft.snapshots import (
    follower_log_start,
    leader_log_start,
    recently_served,
    snapshot_fault,
    superfluous_snapshots,
)
from tailrace.raft.voter_changes import VoterChanges
from tailrace.raft.voters import ReplicaKey, VotersAt, VoterSet


class LogCleanup:
    """Raises the log start and deletes snapshots, after a change and at an interval."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica
        self._next_ms: int | None = 0

    def look_again(self) -> None:
        """Note a change: `poll` checks the log start and the snapshots at the end of this step."""
        self._next_ms = 0

    def poll(self, now_ms: int) -> None:
        """Raise the log start as far as allowed, and delete the snapshots that are not needed."""
        if self._next_ms is None or self._next_ms > now_ms:
            return
        replica = self._replica
        role, snapshots = replica.role, replica.log.snapshots
        if isinstance(role, Leader):
            self._forget_silent(role, now_ms)
        elif not snapshots or replica.installing is not None:
            self._next_ms = None  # until there is a snapshot
            return
        self._next_ms = now_ms + replica.config.cleanup_interval_ms
        if not snapshots:
            return
        start = self._log_start(now_ms)
        if start > replica.log.log_start_offset:
            replica.outbox.add(RaiseLogStart(start))
            replica.voters.trim(start)
        served = role.served if isinstance(role, Leader) else ()
        if superfluous := superfluous_snapshots(snapshots, start, served):
            replica.outbox.add(DeleteSnapshots(superfluous))

    def _forget_silent(self, leader: Leader, now_ms: int) -> None:
        """Forget observers that are silent, and fetches of snapshots that have ended."""
        config = self._replica.config
        leader.replicas.drop_silent(self._replica.voters.current.keys, now_ms, config.live_replica_ms)
        leader.served = recently_served(leader.served, now_ms, config.served_snapshot_ms)

    def _log_start(self, now_ms: int) -> int:
        replica = self._replica
        config, role = replica.config, replica.role
        start = replica.log.log_start_offset
        match role:
            case Leader():
                live = role.replicas.live(now_ms, config.live_replica_ms)
                return leader_log_start(
                    replica.log.snapshots, start, live, role.served, now_ms, config.start_offset_lag_ms
                )
            case Follower():
                return follower_log_start(replica.log.snapshots, start, role.leader_log_start_offset)
            case _:
                return start

    def next_deadline_ms(self) -> int | None:
        return self._next_ms


class RaftNode:
    """A voter or an observer, from its start to its end. A `model.machines.Machine`."""

    def __init__(
        self,
        *,
        key: ReplicaKey,
        cluster_id: str | None,
        log: LogView,
        state: QuorumState,
        initial_voters: VoterSet,
        voters_in_log: Iterable[VotersAt],
        bootstrap_ids: Iterable[int],
        config: RaftConfig,
        jitter: Jitter,
        now_ms: int,
    ) -> None:
        """`initial_voters` are in force until the log states a set; `voters_in_log` are the sets in the log and in its
        newest snapshot, by ascending offset (a snapshot's set at its end offset - 1).

        `bootstrap_ids` are asked for the leader besides the voters: ids of nodes, or, below -1, the host's own names
        for addresses whose node ids are not known.
        """
        self._replica = RaftReplica(
            key=key,
            cluster_id=cluster_id,
            log=log,
            state=state,
            initial_voters=initial_voters,
            voters_in_log=voters_in_log,
            bootstrap_ids=bootstrap_ids,
            config=config,
            jitter=jitter,
        )
        self._leadership = RaftLeadership(self._replica)
        self._elections = Elections(self._replica, self._leadership.elected)
        self._following = Following(self._replica, self._elections)
        self._serving = Serving(self._replica, self._leadership)
        self._changes = VoterChanges(self._replica, self._leadership)
        self._cleanup = LogCleanup(self._replica)
        self._replica.on_left = self._left
        self._shutdown_epoch: int | None = None
        self._start(now_ms)

    def _start(self, now_ms: int) -> None:
        replica = self._replica
        if replica.last_epoch > replica.epoch:
            replica.state = QuorumState(replica.last_epoch)  # the log is ahead of the quorum state file
        timeout_ms = now_ms + replica.election_timeout_ms()
        others = {key.id for key in replica.other_voters}
        if replica.leader_id == replica.key.id:
            replica.role = Resigned(now_ms if replica.is_alone else timeout_ms, (), others)
        elif replica.leader_id != NO_LEADER:
            replica.role = Follower(replica.leader_id, now_ms + replica.fetch_timeout_ms())
        else:
            replica.role = Unattached(now_ms if replica.is_alone or self._stands_first() else timeout_ms)

    def _stands_first(self) -> bool:
        """Whether the quorum is new and this replica is the voter with the lowest id, which stands for election at
        once."""
        replica = self._replica
        is_new = replica.epoch == 0 and replica.end_offset == 0 and replica.state.voted is None
        return is_new and replica.is_voter and replica.voters.current.keys[0].id == replica.key.id

    # State

    @property
    def key(self) -> ReplicaKey:
        return self._replica.key

    @property
    def role(self) -> Role:
        return self._replica.role

    @property
    def epoch(self) -> int:
        return self._replica.epoch

    @property
    def leader_id(self) -> int:
        """The id of the leader; -1 if no leader is known."""
        return self._replica.leader_id

    @property
    def is_leader(self) -> bool:
        return isinstance(self._replica.role, Leader)

    @property
    def quorum_state(self) -> QuorumState:
        return self._replica.state

    @property
    def high_watermark(self) -> int | None:
        """The high watermark; None: not known yet."""
        return self._replica.high_watermark

    @property
    def end_offset(self) -> int:
        return self._replica.end_offset

    @property
    def flushed_end_offset(self) -> int:
        return self._replica.flushed_end_offset

    @property
    def voters(self) -> VoterSet:
        """The voters in force: the newest set in the log, committed or not."""
        return self._replica.voters.current

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """The voters that a snapshot of this end offset must state in its header; None: none (kraft.version 0)."""
        return self._replica.voters.at(end_offset)

    def snapshot_fault(self, snapshot_id: SnapshotId) -> str | None:
        """The reason why the state machine may not write this snapshot, or None."""
        return snapshot_fault(snapshot_id, self._replica.log, self._replica.high_watermark)

    def snapshot_shares(self, positions: Sequence[tuple[SnapshotId, int]], max_bytes: int) -> list[int]:
        """The bytes of one answer that each snapshot, from its position on, may have (KIP-630).

        All shares together have at most `max_bytes` and at most `RaftConfig.snapshot_max_bytes`; a snapshot that is not
        here has the share 0.
        """
        return self._serving.shares(positions, max_bytes)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which a Tick is due; a time in the past: at once."""
        replica = self._replica
        due = [self._cleanup.next_deadline_ms(), self._elections.next_deadline_ms()]
        match replica.role:
            case Follower() as role:
                due.append(self._following.next_deadline_ms(role))
            case Leader() as role:
                due += [self._leadership.next_deadline_ms(role), self._serving.next_deadline_ms(role)]
                due.append(role.pending.deadline_ms if role.pending is not None else None)
            case _:
                pass
        return min((deadline_ms for deadline_ms in due if deadline_ms is not None), default=None)

    # Steps

    def step(self, event: events.Event, now_ms: int) -> Sequence[Effect]:
        """Take one event; returns the effects that the host must carry out, in order."""
        replica = self._replica
        before = replica.role, replica.end_offset, replica.high_watermark
        self._take(event, now_ms)
        self._poll(now_ms)
        self._tell_followers(*before, now_ms)
        self._cleanup.poll(now_ms)
        return replica.outbox.drain()

    def _take(self, event: events.Event, now_ms: int) -> None:
        replica = self._replica
        match event:
            case Tick():
                pass
            case events.RequestReceived(token, request):
                self._answer(token, request, now_ms)
            case events.ResponseReceived(request_id, response):
                opened = replica.requests.close(request_id)
                if opened is not None:
                    self._respond(opened, response, now_ms)
            case events.RequestFailed(request_id):
                opened = replica.requests.close(request_id)
                if opened is not None:
                    replica.requests.back_off(opened.destination, now_ms)
            case events.QuorumStatePersisted(number):
                replica.outbox.persisted(number)
            case events.LogFlushed(number):
                replica.flushed(number)
                if isinstance(replica.role, Leader):
                    self._leadership.advance(replica.role)
            case events.ClientAppend():
                self._leadership.append(event)
            case _:
                self._take_rare(event, now_ms)

    def _take_rare(self, event: events.Event, now_ms: int) -> None:
        replica = self._replica
        match event:
            case events.LogAppended():
                self._following.appended(event)
            case events.AppendRejected():
                self._following.rejected(event, now_ms)
            case events.SnapshotWritten():
                self._cleanup.look_again()
            case events.SnapshotInstalled():
                self._following.installed(event, now_ms)
                self._cleanup.look_again()
            case events.SnapshotRejected():
                self._following.refused(event, now_ms)
            case events.ChangeVoters():
                self._changes.begin(event, now_ms)
            case events.DescribeQuorum(token):
                self._leadership.describe(token, now_ms)
            case events.Resign(epoch):
                if isinstance(replica.role, Leader) and epoch == replica.epoch:
                    self._leadership.resign(replica.role, now_ms)
            case events.Shutdown():
                self._shut_down(now_ms)
            case events.StorageFailed():
                replica.is_fit = False
                if isinstance(replica.role, Leader):
                    self._leadership.resign(replica.role, now_ms)
            case _:
                raise AssertionError(f"not an event: {event}")

    def _answer(self, token: object, request: Request, now_ms: int) -> None:
        match request:
            case FetchRecords():
                self._serving.answer_fetch(token, request, now_ms)
            case FetchSnapshot():
                self._serving.answer_fetch_snapshot(token, request, now_ms)
            case Vote():
                self._elections.answer_vote(token, request, now_ms)
            case BeginEpoch():
                self._elections.answer_begin(token, request, now_ms)
            case EndEpoch():
                self._elections.answer_end(token, request, now_ms)

    def _respond(self, opened: OpenRequest, response: Response, now_ms: int) -> None:
        """Take the answer of a peer: first its epoch and leader, then its content."""
        replica = self._replica
        before = replica.role
        is_foreign = isinstance(response, DescribeQuorumReply) or response.error is ErrorCode.INCONSISTENT_CLUSTER_ID
        if is_foreign or response.leader_epoch < replica.epoch:
            replica.requests.back_off(opened.destination, now_ms)
        else:
            is_current = response.leader_epoch == replica.epoch
            # A leader that answers a Vote may no longer serve fetches, so its answer does not end a candidacy.
            says_leader = isinstance(before, Unattached) and response.leader_id == opened.destination
            self._elections.learn(response.leader_epoch, response.leader_id, now_ms, from_leader=says_leader)
            if is_current and replica.role is before:
                self._use(opened, response, now_ms)
        if isinstance(opened.request, EndEpoch) and isinstance(replica.role, Resigned):
            replica.role.unacknowledged.discard(opened.destination)

    def _use(self, opened: OpenRequest, response: Response, now_ms: int) -> None:
        role = self._replica.role
        match opened.request, response:
            case Vote() as request, VoteReply():
                self._elections.voted(opened.destination, request, response, now_ms)
            case FetchRecords() as request, FetchRecordsReply() if isinstance(role, Follower):
                self._following.fetched(role, request, response, now_ms)
                self._cleanup.look_again()
            case FetchSnapshot() as request, FetchSnapshotReply() if isinstance(role, Follower):
                self._following.fetched_snapshot(role, request, response, now_ms)
            case FetchRecords(), _:
                # The peer does not know the leader either: pause before the next request.
                self._replica.requests.back_off(
                    opened.destination, now_ms, self._replica.config.election_timeout_ms // 10
                )
            case _:
                self._replica.requests.back_off(opened.destination, now_ms)

    def _poll(self, now_ms: int) -> None:
        """Carry out the steps that are due in the present role, and in the roles that follow from it."""
        replica = self._replica
        replica.requests.expire(now_ms)
        for _ in range(8):
            role = replica.role
            match role:
                case Unattached() | Prospective() | Candidate() | Resigned():
                    self._elections.poll(now_ms)
                case Follower():
                    self._following.poll(role, now_ms)
                case Leader():
                    self._serving.poll(role, now_ms)
                    self._changes.poll(role, now_ms)
                    self._leadership.poll(role, now_ms)
            if replica.role is role:
                break
        else:
            raise AssertionError(f"no end of changes of roles in one step: {replica.role}")
        self._finish_shutdown()

    def _tell_followers(self, role: Role, end_offset: int, high_watermark: int | None, now_ms: int) -> None:
        """Answer the fetches and changes of voters that wait for a longer log or a higher high watermark."""
        replica = self._replica
        if replica.role is not role or not isinstance(role, Leader):
            return
        if high_watermark != replica.high_watermark:
            self._changes.committed(role, now_ms)
        if replica.role is role and (end_offset, high_watermark) != (replica.end_offset, replica.high_watermark):
            self._serving.answer_parked(role)
            self._cleanup.look_again()

    def _left(self, before: Role) -> None:
        if isinstance(before, Leader):
            self._leadership.stepped_down(before)
        self._following.left(before)

    # The end

    def _shut_down(self, now_ms: int) -> None:
        replica = self._replica
        replica.is_shutting_down = True
        self._shutdown_epoch = replica.epoch
        if isinstance(replica.role, Leader):
            self._leadership.resign(replica.role, now_ms)

    def _finish_shutdown(self) -> None:
        """End the shutdown when all voters have acknowledged the resignation, or when no acknowledgement is needed."""
        replica = self._replica
        if self._shutdown_epoch is None:
            return
        role = replica.role
        if isinstance(role, Resigned) and role.unacknowledged and replica.epoch == self._shutdown_epoch:
            return
        self._shutdown_epoch = None
        replica.outbox.add(ShutdownDone())
