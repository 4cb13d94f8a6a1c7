"""The nodes of a small scope, and what each does: the product's RaftNode on a bench, as a number.

Nodes that will do the same have the same number (`raft.scope.state`). The result of an event for a node is computed
once, and then looked up in all worlds in which an equal node has an equal event. So a search is fast.
"""

import pickle
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

from simulation.raft.bench import RaftBench
from simulation.raft.log import StoredSnapshot
from simulation.raft.scope.laws import View
from simulation.raft.scope.state import Names, Value, state_of
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import RaftConfig, SnapshotFile
from tailrace.raft.roles import Candidate, Follower, Leader, Resigned, Role, Unattached
from tailrace.raft.rpc import FetchRecordsReply, FetchSnapshotReply, Request, Response, SnapshotId
from tailrace.raft.voters import ReplicaKey, VoterSet

NEVER = 1 << 40
CONFIG = RaftConfig(cleanup_interval_ms=NEVER, request_timeout_ms=NEVER, fetch_max_wait_ms=NEVER, live_replica_ms=1)
"""Time leads to elections, and to nothing else."""
SNAPSHOT_BYTES = 10


class Happening(NamedTuple):
    """An event of a node. Equal events have the same effect on equal nodes."""

    kind: str
    slot: int = 0
    """For a request its index among the requests of its sender; for an answer its sender."""
    content: int = 0
    """The number of the message, or of the write."""
    detail: Hashable = None


class EventOutcome(NamedTuple):
    """The result of an event."""

    node: int
    requests: tuple[tuple[int, int, bool], ...] = ()
    """For each request: its destination, the number of its message, whether the node waits for the answer."""
    answers: tuple[tuple[int, int], ...] = ()
    """For each answer: the question that it answers, and the number of its message."""
    forgotten: tuple[int, ...] = ()
    """The nodes whose answers to earlier requests are ignored from now on."""
    led_to: int = 0
    """The high watermark of the node as a leader, even if it does not lead any more."""


class Facts(NamedTuple):
    """The facts about a node that need no unpacking."""

    packed: bytes
    digest: int
    """The digests under all namings."""
    view: View
    view_number: int
    epoch: int
    has_voted: bool
    """Whether the node has voted or knows the leader: no other candidate gets its vote in this epoch."""
    may_lead: bool
    """Whether the node leads in this epoch, or may still be elected."""
    is_looking: bool
    """Whether the node knows of no leader, and asks the other nodes."""
    owes: bool
    """Whether its disk has work to do."""
    installing: int
    """The end of the snapshot that is about to replace its log; 0: none."""
    strikes: bool
    """Whether time may bring an election, or the end of a term."""
    retries: bool
    """Whether the node pauses before it asks its leader again."""
    may_snapshot: bool
    questions: frozenset[int]
    """The questions that the node has not answered."""


class ScopeBench(RaftBench):
    """A bench whose disk does one thing at a time."""

    def _carry_out(self, effect: do.Effect) -> list[events.Event]:
        """Leave out the votes for a leader that its log states: only administrators read them, so worlds need not
        differ by them."""
        if isinstance(effect, do.AppendAsLeader):
            control = tuple(
                replace(record, granting_voters=()) if isinstance(record, do.LeaderChange) else record
                for record in effect.control
            )
            effect = replace(effect, control=control)
        return super()._carry_out(effect)

    def write_next(self, voters: VoterSet | None) -> None:
        """Let the disk do the work that has waited longest. `voters`: the voters in a snapshot that is to be
        installed."""
        if self.held:
            for event in self._done(self.held.pop(0)):
                self.step(event)
        else:
            installing = self.node._replica.installing
            assert installing is not None
            self.install(installing, voters)

    def settle(self) -> None:
        """Do the work that is due at once, as a host would within a millisecond: the end of a step may leave such
        work."""
        for _ in range(4):
            due_ms = self.node.next_deadline_ms
            if due_ms is None or due_ms > self.now_ms:
                return
            self.step(Tick())

    def strike(self) -> None:
        """Let time pass until there is an election, or until a leader resigns."""
        due_ms = self.strikes_ms
        assert due_ms is not None
        self.now_ms = max(self.now_ms, due_ms)
        self.step(Tick())

    @property
    def strikes_ms(self) -> int | None:
        role: Role = self.node.role
        match role:
            case Unattached():
                return role.election_deadline_ms
            case Follower():
                return None if self.node._replica.installing is not None else role.fetch_deadline_ms
            case Leader():
                return self.node._leadership._majority_deadline_ms(role)
            case _:
                return role.deadline_ms

    @property
    def is_pausing(self) -> bool:
        """Whether the node follows, and waits only for time to pass."""
        role, replica = self.node.role, self.node._replica
        if not isinstance(role, Follower) or not replica.may_fetch or role.leader_id in replica.requests._open:
            return False
        return not replica.requests.is_ready(role.leader_id, self.now_ms)

    def end_pause(self) -> None:
        role = self.node.role
        assert isinstance(role, Follower)
        del self.node._replica.requests._not_before[role.leader_id]
        self.step(Tick())

    def snapshot_id(self) -> SnapshotId | None:
        """The id of a snapshot of everything committed, if the node may write that snapshot."""
        end_offset = self.node.high_watermark or 0
        last = self.log.image.at(end_offset - 1)
        if last is None:
            return None
        snapshot_id = SnapshotId(end_offset, last.epoch)
        return snapshot_id if self.node.snapshot_fault(snapshot_id) is None else None

    def write_snapshot(self) -> None:
        """Write a snapshot. Afterwards no replica counts as live, so that the log of a leader starts at the snapshot at
        once."""
        snapshot_id = self.snapshot_id()
        assert snapshot_id is not None
        file = SnapshotFile(snapshot_id, SNAPSHOT_BYTES, 0)
        voters = self.node.voters_at(snapshot_id.end_offset)
        self.disk.snapshots[snapshot_id] = StoredSnapshot(file, bytes(SNAPSHOT_BYTES), voters)
        self.now_ms += 2 * self.config.live_replica_ms
        self.step(events.SnapshotWritten(snapshot_id))

    def drop_question(self, token: int) -> None:
        """Note that the sender of this request has forgotten the request."""
        role, outbox = self.node.role, self.node._replica.outbox
        if isinstance(role, Leader):
            role.parked = [parked for parked in role.parked if parked.token != token]
        waiting = [
            held for held in outbox._waiting if not isinstance(held[1], do.SendResponse) or held[1].token != token
        ]
        outbox._waiting = deque(waiting)

    def open_requests(self) -> dict[int, int]:
        """The open requests whose answers the node waits for, by destination."""
        return {node_id: opened.id for node_id, opened in self.node._replica.requests._open.items()}

    def questions(self) -> frozenset[int]:
        role = self.node.role
        waiting = [effect for _, effect in self.node._replica.outbox._waiting]
        tokens = [held.token for held in waiting if isinstance(held, do.SendResponse)]
        tokens += [parked.token for parked in role.parked] if isinstance(role, Leader) else []
        return frozenset(token for token in tokens if isinstance(token, int))


class ScopeNodes:
    """The nodes and messages that have been met, by number."""

    def __init__(self, namings: Sequence[Names]) -> None:
        self.namings = namings
        self.facts: list[Facts] = []
        self.contents: list[Request | Response] = []
        self.sometimes: set[str] = set()
        self._numbers: dict[int, int] = {}
        self._views: dict[View, int] = {}
        self._content_numbers: dict[Request | Response, int] = {}
        self._outcomes: dict[tuple[int, Happening], EventOutcome] = {}

    # Numbers

    def number_of(self, bench: ScopeBench) -> int:
        """The number of the node on this bench."""
        bench.effects.clear()
        digest = self.digest(lambda names: state_of(bench, names))
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self.facts)
            self.facts.append(self._facts(bench, digest))
        return number

    def digest(self, value: Callable[[Names], Value]) -> int:
        """Digests the value under every naming. One number holds the digests of all namings, so that sums of such
        numbers are sums per naming."""
        total = 0
        for names in reversed(self.namings):
            total = (total << _APART) + digest_of(value(names))
        return total

    def _facts(self, bench: ScopeBench, digest: int) -> Facts:
        node, log = bench.node, bench.log
        stored = bench.disk.snapshots
        view = View(
            is_leader=node.is_leader,
            epoch=node.epoch,
            high_watermark=node.high_watermark or 0,
            start=log.image.start,
            entries=tuple(log.image.entries),
            on_disk=(bench.disk.log.start, tuple(bench.disk.log.entries)),
            snapshots=tuple((snapshot_id, stored[snapshot_id].voters) for snapshot_id in sorted(stored)),
            voters=node.voters,
        )
        installing = node._replica.installing
        return Facts(
            packed=pickle.dumps(bench, pickle.HIGHEST_PROTOCOL),
            digest=digest,
            view=view,
            view_number=self._views.setdefault(view, len(self._views)),
            epoch=node.epoch,
            has_voted=node.quorum_state.voted is not None or node.leader_id >= 0,
            may_lead=isinstance(node.role, Leader | Candidate),
            is_looking=isinstance(node.role, Unattached),
            owes=bool(bench.held) or installing is not None,
            installing=0 if installing is None or bench.held else installing.end_offset,
            strikes=bench.strikes_ms is not None,
            retries=bench.is_pausing,
            may_snapshot=bench.snapshot_id() is not None,
            questions=bench.questions(),
        )

    def content_number(self, content: Request | Response) -> int:
        """The number of a message."""
        number = self._content_numbers.get(content)
        if number is None:
            number = self._content_numbers[content] = len(self.contents)
            self.contents.append(content)
            if isinstance(content, FetchSnapshotReply) and content.data:
                self.sometimes.add("a snapshot is fetched")
            if isinstance(content, FetchRecordsReply) and content.diverging is not None:
                self.sometimes.add("a log is cut")
        return number

    # Happenings

    def take(self, node: int, happening: Happening) -> EventOutcome:
        """The outcome of this event for this node. Raises AssertionError if the step breaks a law of a single node."""
        key = (node, happening)
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = self._work_out(node, happening)
        return outcome

    def _work_out(self, node: int, happening: Happening) -> EventOutcome:
        bench = pickle.loads(self.facts[node].packed)  # noqa: S301 - our own bytes, of this very process
        assert isinstance(bench, ScopeBench)
        leads, opened = bench.node.is_leader, bench.open_requests()
        ACTIONS[happening.kind](self, bench, happening)
        bench.settle()
        if happening.kind == "crash":
            forgotten = tuple(node_id for node_id in self.namings[0] if node_id != bench.key.id)
        else:
            still_open = bench.open_requests()
            forgotten = tuple(slot for slot, request_id in opened.items() if still_open.get(slot) != request_id)
        return self._outcome(bench, leads, forgotten)

    def _outcome(self, bench: ScopeBench, leads: bool, forgotten: tuple[int, ...]) -> EventOutcome:
        requests, answers, led_to = [], [], 0
        opened = bench.open_requests()
        for effect in bench.effects:
            match effect:
                case do.RoleChanged(role):
                    leads = role == "Leader"
                case do.HighWatermarkMoved(offset):
                    led_to = offset if leads else led_to
                case do.SendRequest(request_id, destination, request):
                    is_open = opened.get(destination) == request_id
                    requests.append((destination, self.content_number(request), is_open))
                case do.SendResponse(int(question), response, read):
                    answers.append((question, self.content_number(_filled(bench, response, read))))
                case do.LoadSnapshot():
                    assert not bench.node.is_leader, "a leader never loads a snapshot"
                    self.sometimes.add("a snapshot is installed")
                case _:
                    pass
        return EventOutcome(self.number_of(bench), tuple(requests), tuple(answers), forgotten, led_to)

    # Events

    def _request(self, bench: ScopeBench, happening: Happening) -> None:
        request: Any = self.contents[happening.content]
        bench.step(events.RequestReceived(happening.slot, request))

    def _response(self, bench: ScopeBench, happening: Happening) -> None:
        response: Any = self.contents[happening.content]
        bench.step(events.ResponseReceived(bench.open_requests()[happening.slot], response))

    def _disk(self, bench: ScopeBench, happening: Happening) -> None:
        voters = happening.detail
        assert voters is None or isinstance(voters, VoterSet)
        bench.write_next(voters)

    def _crash(self, bench: ScopeBench, _: Happening) -> None:
        bench.start()
        bench.step(Tick())

    def _write(self, bench: ScopeBench, happening: Happening) -> None:
        value = f"write {happening.content}"
        bench.step(events.ClientAppend("write", bench.node.epoch, (value,), 1))

    def _snapshot(self, bench: ScopeBench, _: Happening) -> None:
        bench.write_snapshot()
        if bench.log.log_start_offset:
            self.sometimes.add("a log starts at a snapshot")

    def _remove(self, bench: ScopeBench, happening: Happening) -> None:
        key = happening.detail
        assert isinstance(key, ReplicaKey)
        bench.step(events.ChangeVoters("change", events.RemoveVoter(key), NEVER, ack_when_committed=True))

    def _strike(self, bench: ScopeBench, _: Happening) -> None:
        was_leader = bench.node.is_leader
        bench.strike()
        if was_leader and isinstance(bench.node.role, Resigned):
            self.sometimes.add("a leader without a majority resigns")

    def _drop(self, bench: ScopeBench, happening: Happening) -> None:
        bench.drop_question(happening.slot)

    def _retry(self, bench: ScopeBench, _: Happening) -> None:
        bench.end_pause()


ACTIONS: dict[str, Callable[[ScopeNodes, ScopeBench, Happening], None]] = {
    "request": ScopeNodes._request,
    "response": ScopeNodes._response,
    "disk": ScopeNodes._disk,
    "crash": ScopeNodes._crash,
    "write": ScopeNodes._write,
    "snapshot": ScopeNodes._snapshot,
    "remove": ScopeNodes._remove,
    "timeout": ScopeNodes._strike,
    "retry": ScopeNodes._retry,
    "drop": ScopeNodes._drop,
}


_APART = 80
"""The distance in bits between two digests of 64 bits: the bits between leave room for sums."""


def split(total: int, count: int) -> list[int]:
    """The sums of the digests by naming, 64 bits for each naming."""
    return [(total >> (index * _APART)) & ((1 << 64) - 1) for index in range(count)]


def digest_of(value: object) -> int:
    """64 bits, the same in every process."""
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), "big")


def _filled(bench: ScopeBench, response: Response, read: do.ReadLog | do.ReadSnapshot | None) -> Response:
    if isinstance(read, do.ReadLog) and isinstance(response, FetchRecordsReply):
        return replace(response, records=bench.log.read(read.offset, 100))
    if isinstance(read, do.ReadSnapshot) and isinstance(response, FetchSnapshotReply):
        return replace(response, data=bytes(read.size_bytes))
    return response
