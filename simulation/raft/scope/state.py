"""The state of a node of a small scope, as a value: equal for nodes that will do the same, whatever happens.

- Times do not count: in a scope they pass only where an action says so. It counts whether a pause between two
  requests is over, and whether a replica counts as live.
- Numbers that only tell one request, flush or promise from another do not count: only the open requests, flushes and
  promises count.
- Nodes may be given other names (`names`): worlds that differ in names alone count once.

Nothing may be forgotten here: the search would take two different nodes for the same node. So every object must have
exactly the parts that are known here; a new part stops the search until this module knows it.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from simulation.raft.bench import RaftBench
from simulation.raft.log import LogImage, StoredSnapshot
from tailrace.raft import effects as do
from tailrace.raft.effects import Outbox
from tailrace.raft.elections import Elections
from tailrace.raft.following import Following
from tailrace.raft.leadership import RaftLeadership
from tailrace.raft.node import LogCleanup, RaftNode
from tailrace.raft.open_requests import OpenRequests
from tailrace.raft.progress import UNKNOWN, Progress
from tailrace.raft.replica import RaftReplica
from tailrace.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from tailrace.raft.rpc import BeginEpoch, EndEpoch
from tailrace.raft.serving import Serving
from tailrace.raft.voter_changes import VoterChanges
from tailrace.raft.voters import ReplicaKey, Tally, VoterHistory, VoterSet

Names = Mapping[int, int]
"""The new name of each node."""
Value = Any
"""Tuples, text and numbers, nothing else."""

_PARTS: Final[dict[type, str]] = {
    RaftNode: "_replica _leadership _elections _following _serving _changes _cleanup _shutdown_epoch",
    RaftReplica: "key cluster_id log state voters bootstrap_ids config jitter outbox requests role end_offset "
    "last_epoch flushed_end_offset high_watermark is_fit is_shutting_down installing on_left _flushes _last_flush",
    Outbox: "_effects _waiting _decided _durable",
    OpenRequests: "_request_timeout_ms _retry_backoff_ms _open _not_before _last_id",
    Unattached: "election_deadline_ms next_peer next_ask_ms",
    Prospective: "tally deadline_ms",
    Candidate: "tally deadline_ms is_backing_off",
    Follower: "leader_id fetch_deadline_ms has_fetched is_appending leader_high_watermark leader_log_start_offset "
    "download",
    Leader: "epoch_start_offset started_ms replicas parked announced_ms pending served",
    Resigned: "deadline_ms preferred unacknowledged",
    Progress: "key end_offset last_contact_ms last_fetch_ms last_caught_up_ms _leader_end_at_last_fetch "
    "_last_fetch_before_ms",
    Tally: "voters granted rejected",
    VoterHistory: "_sets",
    RaftLeadership: "_replica",
    Elections: "_replica _on_elected",
    Following: "_replica _elections",
    Serving: "_replica _leadership",
    VoterChanges: "_replica _leadership",
    LogCleanup: "_replica _next_ms",
}
_BEHAVIOUR: Final = ("_replica", "_leadership", "_elections", "_following", "_serving", "_changes", "_cleanup")


def check_parts(owner: object) -> None:
    """Raises AssertionError if this object has a part that is not covered here."""
    parts = {part.name for part in fields(owner)} if is_dataclass(owner) else set(vars(owner))
    known = set(_PARTS[type(owner)].split())
    assert parts == known, f"{type(owner).__name__} has changed: {sorted(parts ^ known)}"


def value_of(content: object, names: Names) -> Value:
    """A message, a record or a set of voters as a value, with these names of nodes."""
    match content:
        case None | str() | bytes() | bool() | int() | Enum():
            return content
        case ReplicaKey(node_id, directory_id):
            return names.get(node_id, node_id), directory_id[-2:-1]
        case VoterSet():
            return sorted(value_of(key, names) for key in content.keys)
        case tuple() | list():
            values = [value_of(each, names) for each in content]
            if content and isinstance(content[0], ReplicaKey):
                values.sort()  # the order of the preferred is one of time
            return tuple(values)
        case _:
            assert is_dataclass(content)
            assert not isinstance(content, type)
            parts = [(part.name, getattr(content, part.name)) for part in fields(content)]
            return (
                type(content).__name__,
                *(names.get(value, value) if name == "leader_id" else value_of(value, names) for name, value in parts),
            )


def state_of(bench: RaftBench, names: Names) -> Value:
    """The node on this bench, its log and its disk."""
    node = bench.node
    replica = node._replica
    for owner in (node, *map(vars(node).__getitem__, _BEHAVIOUR), replica.outbox, replica.requests, replica.voters):
        check_parts(owner)
    check_parts(replica.role)
    assert replica.is_fit
    assert not replica.is_shutting_down
    assert node._shutdown_epoch is None
    assert not replica.outbox._effects
    return (
        value_of(replica.key, names),
        value_of(replica.state, names),
        [(offset, value_of(voters, names)) for offset, voters in replica.voters._sets],
        replica.end_offset,
        replica.last_epoch,
        replica.flushed_end_offset,
        replica.high_watermark,
        replica.installing,
        _flushes(replica),
        _outbox(replica, names),
        _links(replica, bench.now_ms, names),
        _role(bench, replica.role, names),
        _disk(bench, names),
    )


def _flushes(replica: RaftReplica) -> Value:
    return sorted((replica._last_flush - number, end) for number, end in replica._flushes.items())


def _outbox(replica: RaftReplica, names: Names) -> Value:
    """Messages that wait until a promise is durable. A request that its sender has forgotten is sent nevertheless."""
    outbox, requests = replica.outbox, replica.requests
    waiting: list[Value] = []
    for number, effect in outbox._waiting:
        match effect:
            case do.SendRequest(request_id, destination, request):
                opened = requests._open.get(destination)
                is_open = opened is not None and opened.id == request_id
                what: Value = (names[destination], is_open, value_of(request, names))
            case do.SendResponse(token, response, read):
                what = (token, value_of(response, names), read)
        waiting.append((number - outbox._durable, what))
    return outbox._decided - outbox._durable, waiting


def _links(replica: RaftReplica, now_ms: int, names: Names) -> Value:
    """Open requests and pauses. Announcements are made once in a scope: their answers change nothing."""
    requests = replica.requests
    return sorted(
        (names[node_id], value_of(opened.request, names))
        for node_id, opened in requests._open.items()
        if not isinstance(opened.request, BeginEpoch | EndEpoch)
    ), sorted(names[node_id] for node_id, due_ms in requests._not_before.items() if due_ms > now_ms)


def _role(bench: RaftBench, role: Role, names: Names) -> Value:
    name = type(role).__name__
    match role:
        case Unattached():
            place = role.next_peer % max(len(bench.node._replica.places_to_ask), 1)
            return name, place, role.next_ask_ms <= bench.now_ms
        case Prospective(tally):
            return name, _tally(tally, names)
        case Candidate(tally):
            return name, _tally(tally, names), role.is_backing_off
        case Follower():
            assert not role.is_appending
            download = role.download and (role.download.id, role.download.position)
            return name, names[role.leader_id], role.has_fetched, role.leader_log_start_offset, download
        case Leader():
            replicas = sorted(_progress(bench, progress, names) for progress in role.replicas)
            parked = [(waiting.token, value_of(waiting.request, names)) for waiting in role.parked]
            pending = role.pending and (role.pending.command.token, role.pending.offset)
            announced = sorted(names[node_id] for node_id in role.announced_ms)
            return name, role.epoch_start_offset, replicas, parked, pending, announced, sorted(role.served)
        case Resigned():
            return name  # informed and preferred nodes matter only to the receivers of that news


def _tally(tally: Tally, names: Names) -> Value:
    check_parts(tally)
    granted = sorted(names[node_id] for node_id in tally.granted)
    return value_of(tally.voters, names), granted, sorted(names[node_id] for node_id in tally.rejected)


def _progress(bench: RaftBench, progress: Progress, names: Names) -> Value:
    check_parts(progress)
    was_caught_up = progress.last_caught_up_ms != UNKNOWN
    return (
        value_of(progress.key, names),
        progress.end_offset,
        progress.last_contact_ms + bench.config.live_replica_ms > bench.now_ms,
        was_caught_up,
        UNKNOWN if was_caught_up else progress._leader_end_at_last_fetch,
    )


def _disk(bench: RaftBench, names: Names) -> Value:
    disk, log, replica = bench.disk, bench.log, bench.node._replica
    held: list[Value] = []
    for effect in bench.held:
        if isinstance(effect, do.Persist):
            held.append((replica.outbox._decided - effect.number, value_of(effect.state, names)))
        else:
            held.append((replica._last_flush - effect.number, bench._marks[effect.number] - log._pending_from))
    return (
        value_of(disk.quorum_state, names),
        _image(disk.log, names),
        sorted((snapshot_id, _snapshot(stored, names)) for snapshot_id, stored in disk.snapshots.items()),
        _image(log.image, names),
        [(type(operation).__name__, value_of(tuple(operation), names)) for operation in log._pending],
        held,
    )


def _image(image: LogImage, names: Names) -> Value:
    return image.start, image.start_epoch, [(epoch, value_of(value, names)) for epoch, value in image.entries]


def _snapshot(stored: StoredSnapshot, names: Names) -> Value:
    return stored.file.size_bytes, value_of(stored.voters, names)
