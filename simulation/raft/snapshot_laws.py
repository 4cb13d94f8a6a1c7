"""Laws of snapshots and log starts (KIP-630), checked as hosts act."""

from collections.abc import Sequence

from simulation.harness.breach import Breach
from simulation.raft.host import RaftHost
from simulation.raft.log import EpochRecord
from simulation.raft.watcher import Watcher
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import SnapshotFile
from tailrace.raft.rpc import (
    FetchRecords,
    FetchRecordsReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Request,
    Response,
    SnapshotId,
)
from tailrace.raft.voters import ReplicaKey


class RaftSnapshotLaws(Watcher[RaftHost]):
    """Part of `RaftInvariants`, which keeps the roles and what is committed."""

    def __init__(self, roles: dict[ReplicaKey, str], committed: list[EpochRecord]) -> None:
        self._roles = roles
        self._committed = committed
        self._bytes: dict[SnapshotId, bytes] = {}
        """The bytes of each snapshot, as the first node has written them."""
        self._asked_ms: dict[tuple[ReplicaKey, SnapshotId], int] = {}
        """The time at which the leader was last asked for a part of the snapshot."""
        self._reached: dict[tuple[ReplicaKey, ReplicaKey], tuple[int, int]] = {}
        """By leader and replica: the highest offset of the replica's fetches in this term, and the time of its last
        fetch."""

    def started(self, host: RaftHost) -> None:
        """A node that comes back does not lead, and no node fetches from it any more.

        The node may have written a snapshot in the step in which it crashed.
        """
        self._forget_askers(host)
        for snapshot_id in host.disk.snapshots:
            self._note_bytes(host, snapshot_id)

    def changed_role(self, host: RaftHost, change: do.RoleChanged) -> None:
        self._forget_askers(host)

    def _forget_askers(self, host: RaftHost) -> None:
        for asked in [asked_of for asked_of in self._asked_ms if asked_of[0] == host.key]:
            del self._asked_ms[asked]
        for replica in [pair for pair in self._reached if pair[0] == host.key]:
            del self._reached[replica]

    def sends_response(self, host: RaftHost, request: Request, response: Response) -> None:
        if not isinstance(response, FetchRecordsReply | FetchSnapshotReply) or response.error is not ErrorCode.NONE:
            return
        role = self._roles.get(host.key)
        sent = response.records if isinstance(response, FetchRecordsReply) else response.data
        if sent and role != "Leader":
            raise Breach("only a leader serves", f"{host.key} is {role} and sends {response}")

    def stepping(self, host: RaftHost, event: events.Event) -> None:
        if not isinstance(event, events.RequestReceived):
            return
        if isinstance(event.request, FetchRecords):
            self._note_fetch(host, event.request)
        if not isinstance(event.request, FetchSnapshot):
            return
        request, node = event.request, host.node
        stored = host.disk.snapshots.get(request.snapshot_id)
        is_asked_for = stored is not None and 0 <= request.position <= len(stored.data)
        if is_asked_for and node.is_leader and request.leader_epoch == node.epoch:
            self._asked_ms[host.key, request.snapshot_id] = host.now_ms

    def _note_fetch(self, host: RaftHost, request: FetchRecords) -> None:
        if host.node.is_leader and request.leader_epoch == host.node.epoch and request.replica.id >= 0:
            replica = host.key, request.replica
            before, _ = self._reached.get(replica, (0, 0))
            self._reached[replica] = max(before, request.fetch_offset), host.now_ms

    def loads_snapshot(self, host: RaftHost, snapshot_id: SnapshotId) -> None:
        if host.node.is_leader:
            raise Breach("a leader never loads a snapshot", f"{host.key}: {snapshot_id}")
        if snapshot_id not in host.disk.snapshots:
            raise Breach("only an installed snapshot is loaded", f"{host.key}: {snapshot_id}")

    def installs_snapshot(self, host: RaftHost, snapshot_id: SnapshotId, part: bytes) -> None:
        written = self._bytes.get(snapshot_id)
        if written is None or len(part) != len(written):
            detail = f"{host.key}: {len(part)} bytes of {snapshot_id}, which has {written and len(written)}"
            raise Breach("only a whole snapshot is installed", detail)

    def raises_log_start(self, host: RaftHost, offset: int) -> None:
        snapshots = host.log.snapshots
        if not snapshots or snapshots[-1].id.end_offset < offset:
            newest = snapshots[-1].id if snapshots else None
            raise Breach("the log start is never above the newest snapshot", f"{host.key}: {offset}, {newest}")
        if self._roles.get(host.key) == "Leader":
            self._check_live_replicas(host, offset)

    def _check_live_replicas(self, host: RaftHost, offset: int) -> None:
        """Check that a log start waits for the replicas that count as live. Noted fetch offsets may be too high or old:
        then this check is weaker than KIP-630."""
        snapshot = next((known for known in host.log.snapshots if known.id.end_offset == offset), None)
        if snapshot is not None and snapshot.last_contained_ms + host.config.start_offset_lag_ms <= host.now_ms:
            return
        for (leader, replica), (reached, asked_ms) in self._reached.items():
            is_live = asked_ms + host.config.live_replica_ms > host.now_ms
            if leader == host.key and is_live and reached < offset:
                detail = f"{host.key} raises it to {offset}; {replica} has reached {reached}"
                raise Breach("the log start waits for live replicas", detail)

    def deletes_snapshots(self, host: RaftHost, ids: Sequence[SnapshotId]) -> None:
        for snapshot_id in ids:
            asked_ms = self._asked_ms.get((host.key, snapshot_id))
            if asked_ms is not None and host.now_ms < asked_ms + host.config.served_snapshot_ms:
                detail = f"{host.key} deletes {snapshot_id}, asked for {host.now_ms - asked_ms} ms ago"
                raise Breach("a snapshot that is being fetched stays", detail)

    def stepped(self, host: RaftHost, event: events.Event) -> None:
        match event:
            case events.SnapshotWritten(snapshot_id):
                self._note_bytes(host, snapshot_id)
                self._check(host)
            case events.SnapshotInstalled() | events.LogAppended() | Tick():
                self._check(host)
            case _:
                pass

    def _note_bytes(self, host: RaftHost, snapshot_id: SnapshotId) -> None:
        stored = host.disk.snapshots.get(snapshot_id)
        if stored is not None and self._bytes.setdefault(snapshot_id, stored.data) != stored.data:
            raise Breach("snapshots of one id are equal", f"{host.key}: {snapshot_id}")

    def _check(self, host: RaftHost) -> None:
        snapshots, start = host.log.snapshots, host.log.log_start_offset
        if not snapshots:
            if start != 0:
                raise Breach("a log that starts late has a snapshot", f"{host.key}: {start}")
            return
        if start > snapshots[0].id.end_offset:
            raise Breach("log start never above the oldest snapshot", f"{host.key}: {start}, {snapshots[0].id}")
        for snapshot in snapshots:
            self._check_committed(host, snapshot)

    def _check_committed(self, host: RaftHost, snapshot: SnapshotFile) -> None:
        end_offset, epoch = snapshot.id
        if end_offset > len(self._committed):
            detail = f"{host.key} has {snapshot.id}; committed are {len(self._committed)}"
            raise Breach("snapshots of committed records only", detail)
        last = self._committed[end_offset - 1]
        if epoch != last.epoch:
            raise Breach("a snapshot's epoch is its last record's", f"{host.key}: {snapshot.id}, not {last.epoch}")
