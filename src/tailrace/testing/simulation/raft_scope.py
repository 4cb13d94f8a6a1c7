"""Small quorums for the exhaustive search: nodes on benches, messages in flight, and a budget of bad luck.

Each node has a clock of its own, which moves only when one of its deadlines strikes (an action, with a budget), so
clocks may drift apart at will. A message may be delivered at any time or never. A disk does all that it owes a node in
one action, separate from everything else; a crash loses what it owes, and the node is back at once.
"""

import pickle
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import RaftConfig, SnapshotFile
from tailrace.raft.roles import Leader
from tailrace.raft.rpc import FetchResponse, FetchSnapshotResponse, Request, Response, SnapshotId
from tailrace.raft.voters import ReplicaKey, VoterSet
from tailrace.testing.simulation.raft_bench import RaftBench, voter_set
from tailrace.testing.simulation.raft_log import StoredSnapshot
from tailrace.testing.simulation.raft_scope_laws import Known, View, learn
from tailrace.testing.simulation.raft_state import key_of
from tailrace.testing.simulation.small_scope import Action, Model

NEVER = 1 << 40
CONFIG = RaftConfig(upkeep_interval_ms=NEVER, request_timeout_ms=NEVER, fetch_max_wait_ms=NEVER, live_replica_ms=1)
"""Only elections, fetch timeouts and announcements strike by themselves."""


class Message(NamedTuple):
    """On its way. `life` and `request_id` say who waits for the answer."""

    source: int
    destination: int
    life: int
    request_id: int
    content: Request | Response
    is_request: bool


class Budget(NamedTuple):
    """How much may still happen."""

    writes: int = 0
    crashes: int = 0
    timeouts: int = 0
    snapshots: int = 0
    voter_changes: int = 0


class ScopeNode(NamedTuple):
    """A node as bytes, so that a world is a value; and what is to be known of it without unpacking."""

    packed: bytes
    digest: bytes
    life: int
    view: View
    owes: bool
    """Whether its disk has something to do."""
    strikes: bool
    """Whether a deadline is set."""
    is_snapshotted: bool
    """Whether there is a snapshot of all that is committed."""


@dataclass(frozen=True, slots=True)
class ScopeWorld:
    """One state of everything."""

    nodes: tuple[ScopeNode, ...]
    messages: frozenset[Message]
    budget: Budget
    known: Known


class _Bench(RaftBench):
    """A bench that knows its life."""

    life = 0


def quorum(size: int, budget: Budget, *, instant_disk: bool = False) -> ScopeWorld:
    """Nodes 1 to `size`, all voters, which have just been started for the first time.

    With an instant disk nothing is ever owed or lost: far fewer worlds, so that more can happen within a search.
    """
    voters = voter_set(*range(1, size + 1))
    benches = [
        _Bench(key=key_of(node_id), voters=voters, config=CONFIG, instant_disk=instant_disk)
        for node_id in range(1, size + 1)
    ]
    return ScopeWorld(tuple(_pack(bench) for bench in benches), frozenset(), budget, Known())


def settle(world: ScopeWorld) -> ScopeWorld:
    """Let node 1 strike once, and then deliver and flush everything until nothing is left to do."""
    world = _strike(world, 0)
    while steps := _free_actions(world):
        world = take(world, steps[0])
    return world


def actions(world: ScopeWorld) -> list[Action]:
    """Everything that can happen next."""
    return _rationed_actions(world) + _free_actions(world)


def _free_actions(world: ScopeWorld) -> list[Action]:
    disks = [Action(index, "disk") for index, node in enumerate(world.nodes) if node.owes]
    return disks + [Action(one.destination - 1, "deliver", one) for one in sorted(world.messages, key=_order)]


def _order(message: Message) -> tuple[int, int, int, bool]:
    return message.destination, message.source, message.request_id, message.is_request


def _rationed_actions(world: ScopeWorld) -> list[Action]:
    budget, found = world.budget, []
    for index, node in enumerate(world.nodes):
        view = node.view
        possible: dict[str, list[Hashable]] = {
            "timeouts": [None] if node.strikes else [],
            "crashes": [None],
            "writes": [None] if view.is_leader else [],
            "snapshots": [None] if view.high_watermark > view.start and not node.is_snapshotted else [],
            "voter_changes": list(view.voters.keys) if view.is_leader else [],
        }
        found += [
            Action(index, kind, detail, is_rationed=True)
            for kind, details in possible.items()
            if getattr(budget, kind)
            for detail in details
        ]
    return found


def take(world: ScopeWorld, action: Action) -> ScopeWorld:
    """The world after this action."""
    index, budget = action.node, world.budget
    if action.is_rationed:
        left = getattr(budget, action.kind)
        world = replace(world, budget=budget._replace(**{action.kind: left - 1}))
    epoch = world.nodes[index].view.epoch
    match action:
        case Action(kind="disk"):
            return _disk(world, index)
        case Action(kind="deliver", detail=Message() as message):
            return _deliver(world, message)
        case Action(kind="timeouts"):
            return _strike(world, index)
        case Action(kind="crashes"):
            return _crash(world, index)
        case Action(kind="writes"):
            return _step(world, index, events.ClientAppend("write", epoch, (f"write {budget.writes}",), 1))
        case Action(kind="snapshots"):
            return _snapshot(world, index)
        case Action(kind="voter_changes", detail=ReplicaKey() as key):
            return _step(world, index, events.ChangeVoters("change", events.RemoveVoter(key), NEVER))
        case _:
            raise AssertionError(action)


def name(action: Action) -> str:
    """The action in words, for a trace."""
    node_id = action.node + 1
    if isinstance(action.detail, Message):
        message = action.detail
        return f"{message.source} -> {message.destination}: {message.content}"
    return f"{action.kind} of {node_id}" + ("" if action.detail is None else f": {action.detail}")


# Actions


def _unpack(node: ScopeNode) -> _Bench:
    bench = pickle.loads(node.packed)  # noqa: S301 - our own bytes, of this very process
    assert isinstance(bench, _Bench)
    return bench


def _pack(bench: _Bench) -> ScopeNode:
    bench.effects.clear()
    node, log = bench.node, bench.log
    view = View(
        is_leader=node.is_leader,
        epoch=node.epoch,
        high_watermark=node.high_watermark or 0,
        start=log.image.start,
        entries=tuple(log.image.entries),
        on_disk=(bench.disk.log.start, tuple(bench.disk.log.entries)),
        snapshots=tuple(sorted(bench.disk.snapshots)),
        voters=node.voters,
    )
    state = (node._replica, bench.disk, bench.log, bench.held, bench.now_ms, bench.life)
    digest = blake2b(repr(_freeze(state)).encode(), digest_size=16).digest()
    return ScopeNode(
        pickle.dumps(bench, pickle.HIGHEST_PROTOCOL),
        digest,
        bench.life,
        view,
        bool(bench.held) or node._replica.installing is not None,
        _next_strike(bench) is not None,
        any(one.end_offset == view.high_watermark for one in view.snapshots),
    )


def _next_strike(bench: _Bench) -> int | None:
    due_ms = bench.node.next_deadline_ms
    return due_ms if due_ms is not None and due_ms < NEVER else None


def _step(world: ScopeWorld, index: int, *happens: events.Event) -> ScopeWorld:
    bench = _unpack(world.nodes[index])
    return _happened(world, index, bench, [effect for event in happens for effect in bench.step(event)])


def _deliver(world: ScopeWorld, message: Message) -> ScopeWorld:
    world = replace(world, messages=world.messages - {message})
    if message.is_request:
        token = (message.source, message.life, message.request_id)
        event: events.Event = events.RequestReceived(token, message.content)  # type: ignore[arg-type]
    else:
        event = events.ResponseReceived(message.request_id, message.content)  # type: ignore[arg-type]
    return _step(world, message.destination - 1, event)


def _strike(world: ScopeWorld, index: int) -> ScopeWorld:
    bench = _unpack(world.nodes[index])
    due_ms = _next_strike(bench)
    assert due_ms is not None
    bench.now_ms = max(bench.now_ms, due_ms)
    return _happened(world, index, bench, bench.step(events.Tick()))


def _disk(world: ScopeWorld, index: int) -> ScopeWorld:
    bench = _unpack(world.nodes[index])
    installing = bench.node._replica.installing
    bench.flush()
    if installing is not None:
        bench.install(installing, _voters_below(world, installing.end_offset))
    return _happened(world, index, bench, list(bench.effects))


def _crash(world: ScopeWorld, index: int) -> ScopeWorld:
    bench = _unpack(world.nodes[index])
    bench.life += 1
    bench.start()
    effects = bench.step(events.Tick())
    stale = {one for one in world.messages if not one.is_request and one.destination == index + 1}
    return _happened(replace(world, messages=world.messages - stale), index, bench, effects)


def _snapshot(world: ScopeWorld, index: int) -> ScopeWorld:
    bench = _unpack(world.nodes[index])
    end_offset = bench.node.high_watermark or 0
    snapshot_id = SnapshotId(end_offset, world.known.committed[end_offset - 1].epoch)
    fault = bench.node.snapshot_fault(snapshot_id)
    assert fault is None, fault
    file = SnapshotFile(snapshot_id, 10, bench.now_ms)
    voters = _voters_below(world, end_offset)
    bench.disk.snapshots[snapshot_id] = StoredSnapshot(file, bytes(10), voters)
    bench.now_ms += 2  # so that nobody counts as live: the log start rises at once
    return _happened(world, index, bench, bench.step(events.SnapshotWritten(snapshot_id)))


def _voters_below(world: ScopeWorld, end_offset: int) -> VoterSet | None:
    stated = [one.value.voters for one in world.known.committed[:end_offset] if isinstance(one.value, do.Voters)]
    return stated[-1] if stated else None


# What an action leads to


def _happened(world: ScopeWorld, index: int, bench: _Bench, effects: list[do.Effect]) -> ScopeWorld:
    before = world.nodes[index].view
    messages = set(world.messages)
    leads, led_to = before.is_leader, 0
    for effect in effects:
        match effect:
            case do.RoleChanged(role):
                leads = role == "Leader"
            case do.HighWatermarkMoved(offset):
                led_to = offset if leads else led_to
            case do.SendRequest(request_id, destination, request):
                if destination <= len(world.nodes):
                    messages.add(Message(index + 1, destination, bench.life, request_id, request, True))
            case do.SendResponse((int(source), int(life), int(request_id)), response, read):
                if world.nodes[source - 1].life == life:
                    content = _filled(bench, response, read)
                    messages.add(Message(index + 1, source, life, request_id, content, False))
            case do.LoadSnapshot():
                assert not isinstance(bench.node.role, Leader), "a leader loads a snapshot"
            case _:
                pass
    is_same_life = world.nodes[index].life == bench.life
    nodes = list(world.nodes)
    nodes[index] = _pack(bench)
    world = replace(world, nodes=tuple(nodes), messages=frozenset(messages))
    views = [node.view for node in nodes]
    return replace(world, known=learn(world.known, views, index, before if is_same_life else None, led_to))


def _filled(bench: _Bench, response: Response, read: do.ReadLog | do.ReadSnapshot | None) -> Response:
    if isinstance(read, do.ReadLog) and isinstance(response, FetchResponse):
        return replace(response, records=bench.log.read(read.offset, 100))
    if isinstance(read, do.ReadSnapshot) and isinstance(response, FetchSnapshotResponse):
        return replace(response, data=bytes(read.size_bytes))
    return response


def marks(world: ScopeWorld) -> Iterator[str]:
    """What a search should have reached somewhere."""
    values = [entry.value for entry in world.known.committed]
    if len(world.known.leaders) > 1:
        yield "a second leader"
    if any(isinstance(value, str) for value in values):
        yield "a write is committed"
        if len(world.known.leaders) > 1:
            yield "a write survives its leader"
    if sum(isinstance(value, do.Voters) for value in values) > 1:
        yield "a change of voters is committed"
    if any(node.view.start > 0 for node in world.nodes):
        yield "a log starts at a snapshot"
    if sum(node.view.is_leader for node in world.nodes) > 1:
        yield "two believe that they lead"
    if any(isinstance(one.content, FetchSnapshotResponse) for one in world.messages):
        yield "a snapshot is fetched"
    if any(isinstance(one.content, FetchResponse) and one.content.diverging for one in world.messages):
        yield "a log is cut"


# Identity


def model() -> Model[ScopeWorld]:
    """Quorums, for `small_scope.explore`."""
    return Model(actions, take, fingerprint, marks, name)


def fingerprint(world: ScopeWorld) -> bytes:
    """Two worlds with the same one have the same future."""
    messages = sorted(repr(message) for message in world.messages)
    known = (messages, tuple(world.budget), world.known)
    state = blake2b(repr(known).encode(), digest_size=16)
    for node in world.nodes:
        state.update(node.digest)
    return state.digest()


_SKIPPED = ("log", "config", "jitter", "on_left", "_disk", "voters_in_log")


@lru_cache(maxsize=4096)
def _text(value: object) -> str:
    return repr(value)


def _freeze(value: object) -> object:
    """The same for equal states, whichever way they came about: dictionaries and sets in order, nothing by identity."""
    if value is None or isinstance(value, int | str | bytes | Enum):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return tuple(sorted((repr(_freeze(key)), _freeze(one)) for key, one in value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(repr(_freeze(one)) for one in value))
    names = _parts(value.__class__)
    if names is None:
        return _text(value)
    parts = vars(value) if not names and hasattr(value, "__dict__") else names
    return (type(value).__name__, *(_freeze(getattr(value, name)) for name in parts if name not in _SKIPPED))


_known_parts: dict[type, tuple[str, ...] | None] = {}


def _parts(cls: type) -> tuple[str, ...] | None:
    """The names of a record's fields; none for an ordinary object, None for a value that never changes."""
    if cls not in _known_parts:
        names = tuple(one.name for one in fields(cls)) if is_dataclass(cls) else ()
        is_frozen = is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        _known_parts[cls] = None if is_frozen else names
    return _known_parts[cls]
