"""Duties of a node after an event: laws of one step, and of the time that passes for a leader."""

from typing import TypeGuard

from simulation.harness.breach import Breach
from simulation.raft.host import RaftHost
from simulation.raft.log import EpochRecord
from simulation.raft.watcher import Watcher
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.effects import LeaderChange, Voters
from tailrace.raft.ports import LogView
from tailrace.raft.roles import Follower, Leader
from tailrace.raft.rpc import DescribeQuorumReply, FetchRecords, FetchRecordsReply, FetchSnapshot, LogEnd, Request
from tailrace.raft.voters import ReplicaKey, VoterSet


def majority(voters: VoterSet) -> int:
    """The size of a majority of the voters. It is computed here, since the product's own computation may be wrong."""
    return len(voters) // 2 + 1


def _is_sign_of_life(request: Request) -> TypeGuard[FetchRecords | FetchSnapshot]:
    return isinstance(request, FetchRecords | FetchSnapshot)


class RaftConduct(Watcher[RaftHost]):
    """Part of `RaftInvariants`, which keeps the roles."""

    def __init__(self, roles: dict[ReplicaKey, str]) -> None:
        self._roles = roles
        self._heard_epoch = -1
        """The epoch in the answer that is being taken in: the node's epoch afterwards must be at least this."""
        self._must_end_by: int | None = None
        """The offset at which the leader's log diverges from the node's log, if the event names such an offset."""
        self._contacts: dict[ReplicaKey, dict[ReplicaKey, int]] = {}
        """For each leader the times of the last contact with each node in the leader's epoch; under the leader's own
        key the begin of the epoch."""

    # One step

    def stepping(self, host: RaftHost, event: events.Event) -> None:
        self._heard_epoch, self._must_end_by = -1, None
        if isinstance(event, events.ResponseReceived):
            self._expect(host, event)
        elif isinstance(event, events.RequestReceived) and host.node.is_leader and _is_sign_of_life(event.request):
            self._contacts[host.key][event.request.replica] = host.now_ms

    def _expect(self, host: RaftHost, event: events.ResponseReceived) -> None:
        response, node = event.response, host.node
        opened = next((asked for asked in node._replica.requests._open.values() if asked.id == event.request_id), None)
        if opened is None or isinstance(response, DescribeQuorumReply):
            return
        if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            return
        self._heard_epoch = response.leader_epoch
        request, log = opened.request, host.log
        is_from_leader = (
            isinstance(response, FetchRecordsReply)
            and isinstance(node.role, Follower)
            and (response.leader_epoch, response.leader_id) == (node.epoch, node.leader_id)
        )
        if is_from_leader and isinstance(response, FetchRecordsReply) and isinstance(request, FetchRecords):
            is_current = (request.fetch_offset, request.last_fetched_epoch) == (log.end_offset, log.last_epoch)
            if response.error is ErrorCode.NONE and response.diverging is not None and is_current:
                self._must_end_by = _where_it_may_end(log, response.diverging)

    def stepped(self, host: RaftHost, event: events.Event) -> None:
        node = host.node
        if node.epoch < self._heard_epoch:
            raise Breach(
                "a higher epoch is taken from every node that knows it", f"{host.key}: {node.epoch} after {event}"
            )
        if self._must_end_by is not None:
            self._check_cut(host, self._must_end_by)
        if host.installing is not None and node._replica.may_stand:
            raise Breach(
                "a node that installs a snapshot does not stand for election", f"{host.key}: {host.installing}"
            )
        match event:
            case Tick() if node.is_leader:
                self._check_majority(host)
            case events.SnapshotInstalled():
                self._check_voters(host)
            case events.StorageFailed() if node.is_leader:
                raise Breach("a leader whose disk fails resigns", f"{host.key} in {node.epoch}")
            case _:
                pass

    def _check_cut(self, host: RaftHost, must_end_by: int) -> None:
        if host.log.end_offset > must_end_by:
            detail = f"{host.key} ends at {host.log.end_offset}, its leader's log parts from it at {must_end_by}"
            raise Breach("a follower cuts what its leader does not have", detail)
        self._check_voters(host)

    def changed_role(self, host: RaftHost, change: do.RoleChanged) -> None:
        if host.has_failed and change.role in ("Prospective", "Candidate", "Leader"):
            raise Breach("a node that has lost its disk neither stands nor leads", f"{host.key}: {change}")
        if host.installing is not None and change.role in ("Prospective", "Candidate", "Leader"):
            detail = f"{host.key}: {change} while it takes {host.installing} in place of its log"
            raise Breach("a node that installs a snapshot does not stand for election", detail)
        if change.role == "Leader":
            self._contacts[host.key] = {host.key: host.now_ms}

    # Leaders

    def _check_majority(self, host: RaftHost) -> None:
        """Check that a leader resigns after one and a half fetch timeouts without contact with a majority."""
        contacts, voters = self._contacts[host.key], host.node.voters
        began_ms = contacts[host.key]
        times = sorted((contacts.get(key, began_ms) for key in voters.keys if key != host.key), reverse=True)
        needed = majority(voters) - voters.has(host.key)
        if needed and times[needed - 1] + host.config.fetch_timeout_ms * 3 // 2 < host.now_ms:
            detail = f"{host.key} in {host.node.epoch}, silent for {host.now_ms - times[needed - 1]} ms"
            raise Breach("a leader without a majority resigns", detail)

    def appended(self, host: RaftHost, base_offset: int, entries: tuple[EpochRecord, ...]) -> None:
        """Check that a change of voters waits until the change before is committed."""
        if self._roles.get(host.key) != "Leader":
            return
        committed = host.node.high_watermark or 0
        for offset, entry in enumerate(entries, base_offset):
            if isinstance(entry.value, Voters):
                earlier = [host.log.image.at(at) for at in range(max(committed, host.log.image.start), offset)]
                if any(found is not None and isinstance(found.value, Voters) for found in earlier):
                    raise Breach("one change of voters at a time", f"{host.key} at {offset}, committed {committed}")
                role = host.node.role
                is_first = isinstance(entries[0].value, LeaderChange)
                if isinstance(role, Leader) and not is_first and committed <= role.epoch_start_offset:
                    detail = f"{host.key} at {offset}, epoch from {role.epoch_start_offset}, committed {committed}"
                    raise Breach("a leader changes voters in an epoch that has begun", detail)

    # Restarts

    def started(self, host: RaftHost) -> None:
        self._check_voters(host)

    def _check_voters(self, host: RaftHost) -> None:
        """Check that the voters in force are the last set that the log and its newest snapshot state."""
        stated = host.log.voters_in_log()
        expected = stated[-1].voters if stated else host.initial_voters
        if host.node.voters != expected:
            raise Breach("the voters are those of the log", f"{host.key}: {host.node.voters}, not {expected}")


def _where_it_may_end(log: LogView, diverging: LogEnd) -> int:
    """The offset at which the node's log may end now: the leader's end of the named epoch, or the end of an earlier
    epoch if the node does not have the named epoch. Then the node fetches again."""
    own = log.end_offset_for_epoch(diverging.epoch)
    if own is None:
        return log.log_start_offset
    if own.epoch < diverging.epoch:
        return own.offset
    return max(diverging.offset, log.log_start_offset)
