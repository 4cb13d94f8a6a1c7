"""A RaftNode on a bench: the test plays all other nodes. The test delivers events, and sees the node's effects."""

from collections.abc import Sequence
from typing import TypeVar

from simulation.raft.log import (
    AppendOp,
    EpochRecord,
    LogImage,
    MemoryLog,
    RaftDisk,
    RaiseStartOp,
    StoredSnapshot,
    TruncateOp,
)
from simulation.raft.state import key_of
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.node import RaftNode
from tailrace.raft.ports import QuorumState, RaftConfig, SnapshotFile
from tailrace.raft.rpc import FetchRecords, FetchRecordsReply, Request, Response, SnapshotId, Vote, VoteReply
from tailrace.raft.voters import ReplicaKey, Voter, VotersAt, VoterSet

E = TypeVar("E")
R = TypeVar("R")
CLUSTER = "the-cluster"


def voter_set(*node_ids: int) -> VoterSet:
    """Voters with these ids, each voter in its first directory."""
    return VoterSet.of(Voter(key_of(node_id)) for node_id in node_ids)


class RaftBench:
    """A node of a quorum, by default node 1. Its disk works at once, or only when the test says so."""

    def __init__(
        self,
        *,
        key: ReplicaKey | None = None,
        voters: VoterSet | None = None,
        log: Sequence[int] = (),
        log_start: int = 0,
        snapshots: Sequence[SnapshotId] = (),
        snapshot_bytes: int = 200,
        state: QuorumState | None = None,
        config: RaftConfig | None = None,
        jitter: float = 0.5,
        instant_disk: bool = True,
    ) -> None:
        """`log` has the epoch of each record from `log_start` on; `jitter` is the answer to every random draw."""
        self.key = key or key_of(1)
        self.voters = voters or voter_set(1, 2, 3)
        self.config = config or RaftConfig(election_backoff_max_ms=500)
        self.jitter = jitter
        self.instant_disk = instant_disk
        self.now_ms = 1000
        self.disk = RaftDisk()
        for snapshot_id in snapshots:
            self.put_snapshot(snapshot_id, snapshot_bytes)
        start_epoch = next((known.epoch for known in snapshots if known.end_offset == log_start), 0)
        entries = [EpochRecord(epoch, f"record {log_start + index}") for index, epoch in enumerate(log)]
        self.disk.log = LogImage(log_start, start_epoch, entries)
        self.disk.quorum_state = state or QuorumState()
        self.start()

    def start(self) -> None:
        """Start the node, or start it again with the content of its disk."""
        self.log = MemoryLog(self.disk)
        self.effects: list[do.Effect] = []
        self.held: list[do.Persist | do.Flush] = []
        """Operations that the disk has not done yet."""
        self._marks: dict[int, int] = {}
        self._tokens = 0
        self.node = RaftNode(
            key=self.key,
            cluster_id=CLUSTER,
            log=self.log,
            state=self.disk.quorum_state,
            initial_voters=self.voters,
            voters_in_log=self.log.voters_in_log(),
            bootstrap_ids=(),
            config=self.config,
            jitter=self._chance,
            now_ms=self.now_ms,
        )

    def _chance(self) -> float:
        return self.jitter

    def put_snapshot(self, snapshot_id: SnapshotId, size_bytes: int = 200, last_contained_ms: int = 0) -> None:
        """A snapshot appears on the disk."""
        file = SnapshotFile(snapshot_id, size_bytes, last_contained_ms)
        self.disk.snapshots[snapshot_id] = StoredSnapshot(file, bytes(size_bytes), None)

    # Events

    def step(self, event: events.Event) -> list[do.Effect]:
        """The effects of this event, with the effects of the work that an instant disk does."""
        before = len(self.effects)
        pending = [event]
        while pending:
            for effect in self.node.step(pending.pop(0), self.now_ms):
                self.effects.append(effect)
                pending += self._carry_out(effect)
        return self.effects[before:]

    def advance(self, milliseconds: int) -> list[do.Effect]:
        """Let time pass, tick by tick as deadlines come."""
        end_ms, before = self.now_ms + milliseconds, len(self.effects)
        while (due_ms := self.node.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms + 1, due_ms)
            self.step(Tick())
        self.now_ms = end_ms
        self.step(Tick())
        return self.effects[before:]

    def receive(self, request: Request) -> Response | None:
        """Deliver the request of a peer; returns the answer, None without an answer yet."""
        self._tokens += 1
        self.step(events.RequestReceived(self._tokens, request))
        return self.answer_to(self._tokens)

    @property
    def last_token(self) -> int:
        """The token of the last request that was received."""
        return self._tokens

    def answer_to(self, token: object) -> Response | None:
        answers = [sent.response for sent in self.all(do.SendResponse) if sent.token == token]
        assert len(answers) <= 1, f"{token} is answered {len(answers)} times"
        return answers[0] if answers else None

    def answer(self, sent: do.SendRequest, response: Response) -> list[do.Effect]:
        """Deliver the answer of a peer."""
        return self.step(events.ResponseReceived(sent.request_id, response))

    def flush(self) -> None:
        """Let the disk do the work that it has held back, for the log and for the quorum state."""
        held, self.held = self.held, []
        for effect in held:
            for event in self._done(effect):
                self.step(event)

    # Effects of the node

    def all(self, kind: type[E]) -> list[E]:
        """The effects of this kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def last(self, kind: type[E]) -> E:
        return self.all(kind)[-1]

    def sent(self, kind: type[R], destination: int | None = None) -> list[do.SendRequest]:
        """The requests of this kind so far."""
        return [
            sent
            for sent in self.all(do.SendRequest)
            if isinstance(sent.request, kind) and destination in (None, sent.destination)
        ]

    def forget(self) -> None:
        """Forget the effects so far."""
        self.effects.clear()

    @property
    def role(self) -> str:
        return type(self.node.role).__name__

    # Short cuts

    def elect(self, *granting: int) -> None:
        """Become the leader of the next epoch with the votes of these nodes (default: 2)."""
        while self.role != "Prospective":
            due_ms = self.node.next_deadline_ms
            assert due_ms is not None
            self.advance(max(due_ms - self.now_ms, 0))
        for is_pre_vote in (True, False):
            for node_id in granting or (2,):
                sent = next(
                    vote
                    for vote in reversed(self.sent(Vote, node_id))
                    if isinstance(vote.request, Vote) and vote.request.pre_vote is is_pre_vote
                )
                self.answer(sent, VoteReply(leader_epoch=self.node.epoch, vote_granted=True))
        assert self.role == "Leader", self.role

    def fetch(
        self,
        replica: int | ReplicaKey,
        offset: int,
        epoch: int,
        *,
        max_wait_ms: int = 0,
        leader_epoch: int | None = None,
        high_watermark: int = (1 << 63) - 1,
    ) -> FetchRecordsReply | None:
        """Deliver the fetch of a replica."""
        request = FetchRecords(
            cluster_id=CLUSTER,
            replica=key_of(replica) if isinstance(replica, int) else replica,
            leader_epoch=self.node.epoch if leader_epoch is None else leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=epoch,
            max_wait_ms=max_wait_ms,
            high_watermark=high_watermark,
        )
        response = self.receive(request)
        assert response is None or isinstance(response, FetchRecordsReply)
        return response

    def fetched(self, replica: int | ReplicaKey, offset: int, epoch: int, **options: int) -> FetchRecordsReply:
        """Deliver the fetch of a replica; returns the answer, which must come at once."""
        response = self.fetch(replica, offset, epoch, **options)
        assert response is not None
        return response

    def records(self, *epochs: int) -> FetchRecordsReply:
        """An answer of the leader that the node follows, with records of these epochs behind the node's log."""
        end = self.log.end_offset
        entries = tuple(EpochRecord(epoch, f"record {end + index}") for index, epoch in enumerate(epochs))
        return self.led(high_watermark=0, log_start_offset=0, records=entries)

    def led(self, **fields: object) -> FetchRecordsReply:
        """An answer of the leader that the node follows."""
        return FetchRecordsReply(leader_id=self.node.leader_id, leader_epoch=self.node.epoch, **fields)  # type: ignore[arg-type]

    # The host's part

    def _carry_out(self, effect: do.Effect) -> list[events.Event]:
        match effect:
            case do.Persist() | do.Flush():
                if isinstance(effect, do.Flush):
                    self._marks[effect.number] = self.log.mark()
                if self.instant_disk:
                    return self._done(effect)
                self.held.append(effect)
            case do.AppendAsLeader(base_offset, epoch, records, control):
                values = control or (records if isinstance(records, tuple) else (records,))
                assert base_offset == self.log.end_offset
                self.log.do(AppendOp(tuple(EpochRecord(epoch, value) for value in values)))
            case do.AppendFetched(base_offset, _, records):
                assert isinstance(records, tuple)
                assert base_offset == self.log.end_offset
                self.log.do(AppendOp(records))
                stated = tuple(
                    VotersAt(offset, entry.value.voters)
                    for offset, entry in enumerate(records, base_offset)
                    if isinstance(entry.value, do.Voters)
                )
                return [events.LogAppended(self.log.end_offset, self.log.last_epoch, stated)]
            case do.Truncate(end_offset):
                self.log.do(TruncateOp(end_offset))
            case do.RaiseLogStart(offset):
                self.log.do(RaiseStartOp(offset))
            case do.DeleteSnapshots(ids):
                for snapshot_id in ids:
                    del self.disk.snapshots[snapshot_id]
            case _:
                pass
        return []

    def _done(self, effect: do.Persist | do.Flush) -> list[events.Event]:
        if isinstance(effect, do.Persist):
            self.disk.quorum_state = effect.state
            return [events.QuorumStatePersisted(effect.number)]
        self.log.flush_to(self._marks[effect.number])
        return [events.LogFlushed(effect.number)]

    def install(self, snapshot_id: SnapshotId, voters: VoterSet | None = None) -> list[do.Effect]:
        """Report that a complete and correct part file was installed: its snapshot is the log now."""
        self.log.install(StoredSnapshot(SnapshotFile(snapshot_id, 200, 0), bytes(200), voters))
        return self.step(events.SnapshotInstalled(snapshot_id, voters))


def error_of(response: Response | None) -> ErrorCode:
    """The error of this answer. There must be an answer."""
    assert response is not None
    return response.error
