"""The state that all roles share: the replica's key, its promises, the end of its log. Also the changes of roles.

Every change of role goes through `become`, and every promise through `_promise`, which makes the promise durable before
a message that depends on the promise leaves (see `outbox`).
"""

from collections.abc import Callable, Iterable

from tailrace.raft.effects import Flush, HighWatermarkMoved, Outbox, RoleChanged, SendRequest, SendResponse
from tailrace.raft.open_requests import OpenRequests
from tailrace.raft.ports import Jitter, LogView, QuorumState, RaftConfig
from tailrace.raft.roles import Follower, Leader, Role, Unattached, may_follow
from tailrace.raft.rpc import NO_LEADER, LogEnd, Request, Response, SnapshotId
from tailrace.raft.voters import ReplicaKey, VoterHistory, VotersAt, VoterSet


class RaftReplica:
    """A replica of a partition, without the behaviour of its roles."""

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
    ) -> None:
        self.key = key
        self.cluster_id = cluster_id
        self.log = log
        self.state = state
        self.voters = VoterHistory(initial_voters, voters_in_log)
        self.bootstrap_ids = frozenset(bootstrap_ids)
        self.config = config
        self.jitter = jitter
        self.outbox = Outbox()
        self.requests = OpenRequests(config.request_timeout_ms, config.retry_backoff_ms)
        self.role: Role = Unattached(0)
        self.end_offset = log.end_offset
        self.last_epoch = log.last_epoch
        self.flushed_end_offset = log.end_offset
        snapshots = log.snapshots
        self.high_watermark: int | None = snapshots[-1].id.end_offset if snapshots else None
        """None: not known. A snapshot has only committed records, so its end is a first value."""
        self.is_fit = True
        """False after a failure of the disk: such a replica neither votes nor leads."""
        self.is_shutting_down = False
        self.installing: SnapshotId | None = None
        """The snapshot that the host is validating, to replace the log by it. Meanwhile this replica fetches nothing
        and does not stand for election: a leader never loads a snapshot."""
        self.on_left: Callable[[Role], None] = lambda _: None
        """Called with the role that has just been left."""
        self._flushes: dict[int, int] = {}
        self._last_flush = 0

    # This replica and the others

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int:
        return self.state.leader_id

    @property
    def is_voter(self) -> bool:
        """Whether the voters in force include this replica, in this directory."""
        return self.voters.current.has(self.key)

    @property
    def may_stand(self) -> bool:
        """Whether this replica may ask for votes."""
        return self._has_a_say and self.is_fit and not self.is_shutting_down and self.installing is None

    @property
    def _has_a_say(self) -> bool:
        """Whether this replica is a voter, or was a voter until a change that is not known to be committed.

        Such a replica may alone have a log that is long enough for the other voters to elect: a leader of two voters
        that was removing itself (Ongaro's dissertation, 4.2.2).
        """
        if self.is_voter:
            return True
        previous = self.voters.previous
        is_committed = self.high_watermark is not None and self.voters.last.offset < self.high_watermark
        return previous is not None and previous.has(self.key) and not is_committed

    @property
    def is_alone(self) -> bool:
        """Whether this replica is the only voter: then it waits for no answer."""
        return self.is_voter and self.may_stand and len(self.voters.current) == 1

    @property
    def position(self) -> LogEnd:
        """The end of the log or snapshot, for elections: "the latest epoch and end offset for a replica is the latest
        snapshot or replicated log" (KIP-630). An empty log ends at its snapshot. A log that is about to be replaced
        ends at the completely fetched snapshot, if that end is greater."""
        end = LogEnd(self.last_epoch, self.end_offset)
        return end if self.installing is None else max(end, self.installing.position)

    @property
    def other_voters(self) -> tuple[ReplicaKey, ...]:
        return tuple(key for key in self.voters.current.keys if key.id != self.key.id)

    @property
    def places_to_ask(self) -> tuple[int, ...]:
        """The nodes to ask for the leader: also the bootstrap nodes and the initial voters, since all voters that a
        partly fetched log states may be gone."""
        known = {*self.bootstrap_ids, *(key.id for key in (*self.voters.current.keys, *self.voters.initial.keys))}
        return tuple(sorted((known | {self.leader_id}) - {NO_LEADER, self.key.id}))

    def spread(self, from_ms: float, to_ms: float) -> int:
        """A random duration between the two."""
        return round(from_ms + (to_ms - from_ms) * self.jitter())

    def election_timeout_ms(self) -> int:
        return self.spread(self.config.election_timeout_ms, 2 * self.config.election_timeout_ms)

    def fetch_timeout_ms(self) -> int:
        """The fetch timeout, give or take 20 %: otherwise all voters would notice the loss of a leader at once, and
        split the votes."""
        return self.spread(0.8 * self.config.fetch_timeout_ms, 1.2 * self.config.fetch_timeout_ms)

    # Roles

    def become(self, role: Role, epoch: int, leader_id: int = NO_LEADER, voted: ReplicaKey | None = None) -> None:
        """Take this role in this epoch; make the promise of the role durable."""
        assert epoch >= self.epoch, f"epochs never fall: {epoch} after {self.epoch}"
        assert may_follow(self.role, role, epoch > self.epoch), (
            f"{type(self.role).__name__} of epoch {self.epoch} never becomes {type(role).__name__} of {epoch}"
        )
        if epoch == self.epoch:
            assert leader_id == self.leader_id or self.leader_id == NO_LEADER, (
                f"epoch {epoch} has the leaders {self.leader_id} and {leader_id}"
            )
            assert voted == self.state.voted or self.state.voted is None, f"two votes in epoch {epoch}"
        before, self.role = self.role, role
        self.requests.clear()
        self._promise(QuorumState(epoch, leader_id, voted))
        start = role.epoch_start_offset if isinstance(role, Leader) else None
        self.outbox.add(RoleChanged(type(role).__name__, epoch, leader_id, start))
        self.on_left(before)

    def unattached(self, epoch: int, now_ms: int) -> None:
        """Become Unattached: no leader is known in this epoch, or the known leader is of no use."""
        same = epoch == self.epoch
        self.become(
            Unattached(now_ms + (0 if self.is_alone else self.election_timeout_ms())),
            epoch,
            self.leader_id if same else NO_LEADER,
            self.state.voted if same else None,
        )

    def follow(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Become a Follower of the leader `leader_id` in this epoch."""
        voted = self.state.voted if epoch == self.epoch else None
        self.become(Follower(leader_id, now_ms + self.fetch_timeout_ms()), epoch, leader_id, voted)

    def vote_for(self, candidate: ReplicaKey) -> None:
        """Promise the vote of this epoch; the role stays."""
        assert self.state.voted in (None, candidate), f"epoch {self.epoch}: the vote is {self.state.voted}'s"
        self._promise(QuorumState(self.epoch, self.leader_id, candidate))

    def _promise(self, state: QuorumState) -> None:
        if state != self.state:
            self.state = state
            self.outbox.persist(state)

    # The log

    def flush(self) -> None:
        """Request a flush of the present log."""
        self._last_flush += 1
        self._flushes[self._last_flush] = self.end_offset
        self.outbox.add(Flush(self._last_flush))

    def flushed(self, number: int) -> None:
        """Note that this flush and every earlier flush are done."""
        done = [flush for flush in self._flushes if flush <= number]
        ends = [self._flushes.pop(flush) for flush in done]
        self.flushed_end_offset = max([self.flushed_end_offset, *ends])

    @property
    def is_flushed(self) -> bool:
        return self.flushed_end_offset == self.end_offset

    @property
    def may_fetch(self) -> bool:
        """Whether a fetch may name the end of the log: the log is durable, and no snapshot is about to replace it."""
        return self.is_flushed and self.installing is None

    def log_ends_at(self, end_offset: int, last_epoch: int) -> None:
        """Note the end of a log that was cut or replaced: flushes under way cover no more than the present log."""
        self.end_offset = end_offset
        self.last_epoch = last_epoch
        self.flushed_end_offset = min(self.flushed_end_offset, end_offset)
        self._flushes = {number: min(end, end_offset) for number, end in self._flushes.items()}

    def commit(self, offset: int) -> bool:
        """Raise the high watermark to this offset; returns whether the high watermark was lower. The high watermark
        never falls."""
        if self.high_watermark is not None and offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.outbox.add(HighWatermarkMoved(offset))
        return True

    # Messages

    def ask(self, node_id: int, request: Request, now_ms: int) -> None:
        """Send a request to a peer for which `is_ready` is true."""
        request_id = self.requests.open(node_id, request, now_ms)
        self.outbox.send(SendRequest(request_id, node_id, request))

    def answer(self, token: object, response: Response) -> None:
        self.outbox.send(SendResponse(token, response))
