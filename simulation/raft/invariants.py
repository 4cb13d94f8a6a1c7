"""Laws of a quorum, checked after every event, whatever fails. A breach names the law.

The watcher remembers what any node has ever said: the leader of each epoch, the record at each (offset, epoch), the
committed records, the votes. Each check compares only the last changes with this memory.
"""

from collections.abc import Sequence

from simulation.harness.breach import Breach
from simulation.raft.conduct import RaftConduct, majority
from simulation.raft.host import RaftHost
from simulation.raft.log import EpochRecord, RaftDisk
from simulation.raft.snapshot_laws import RaftSnapshotLaws
from simulation.raft.state import State
from simulation.raft.watcher import Watcher
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import QuorumState
from tailrace.raft.roles import Follower, Leader
from tailrace.raft.rpc import FetchRecords, Request, Response, SnapshotId, Vote, VoteReply
from tailrace.raft.voters import ReplicaKey

NEW = QuorumState()
"""The state of a node that has promised nothing yet."""


class RaftInvariants(Watcher[RaftHost]):
    """The laws, checked as the hosts act. `find` all hosts, running or not, in `hosts`."""

    def __init__(self) -> None:
        self.hosts: list[RaftHost] = []
        self.leaders: dict[int, ReplicaKey] = {}
        """The leaders by epoch."""
        self.records: dict[tuple[int, int], tuple[object, int]] = {}
        """(offset, epoch) -> value and the epoch of the record before."""
        self.committed_entries: list[EpochRecord] = []
        self._ends: dict[int, int] = {}
        """The high watermark of the leader of each epoch, if it was above all earlier high watermarks."""
        self.states: list[State] = [State()]
        """The state after each committed record."""
        self.votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self.high_watermarks: dict[ReplicaKey, int] = {}
        self.lost_disks: list[tuple[ReplicaKey, RaftDisk]] = []
        """Their records were acknowledged before the loss; no node can know of the loss at once."""
        self.roles: dict[ReplicaKey, str] = {}
        """The roles of nodes after the effects that have been carried out."""
        self.persisted: dict[ReplicaKey, QuorumState] = {}
        self._conduct = RaftConduct(self.roles)
        self._snapshots = RaftSnapshotLaws(self.roles, self.committed_entries)

    @property
    def committed_end(self) -> int:
        return len(self.committed_entries)

    # Leaders and votes

    def changed_role(self, host: RaftHost, change: do.RoleChanged) -> None:
        self.roles[host.key] = change.role
        self._conduct.changed_role(host, change)
        self._snapshots.changed_role(host, change)
        if change.role == "Leader":
            self._check_leader(host, change)

    def _check_leader(self, host: RaftHost, change: do.RoleChanged) -> None:
        other = self.leaders.setdefault(change.epoch, host.key)
        if not (other == host.key):
            raise Breach("one leader per epoch", f"epoch {change.epoch}: {other} and {host.key}")
        end = self._end_before(change.epoch)
        log = host.log
        if not (log.image.start <= end <= log.end_offset or end <= log.image.start <= self.committed_end):
            raise Breach(
                "leader completeness",
                f"{host.key} leads epoch {change.epoch} with {log.image.start} to {log.end_offset}, committed: {end}",
            )
        if end > log.image.start:
            entry = log.image.at(end - 1)
            if not (entry == self.committed_entries[end - 1]):
                raise Breach("leader completeness", f"{host.key} has {entry} at {end - 1}")
        voters = host.node.voters
        granting = [key for key in voters.keys if key == host.key or self.votes.get((key, change.epoch)) == host.key]
        if not (len(granting) >= majority(voters)):
            raise Breach("a leader has a majority's votes", f"{host.key} in {change.epoch}: only {granting}")

    def _end_before(self, epoch: int) -> int:
        """The high watermark of earlier epochs. A leader of an old epoch may be elected late, by votes that were long
        under way: it need not know anything later."""
        return max((end for earlier, end in self._ends.items() if earlier < epoch), default=0)

    def sends_response(self, host: RaftHost, request: Request, response: Response) -> None:
        self._snapshots.sends_response(host, request, response)
        if not isinstance(request, Vote) or not isinstance(response, VoteReply):
            return
        if request.pre_vote or not response.vote_granted:
            return
        on_disk = host.disk.quorum_state
        promised = on_disk.epoch > request.candidate_epoch or on_disk.voted == request.candidate
        if not (promised):
            raise Breach("a vote is on disk when it leaves", f"{host.key}: {on_disk}, {request}")
        vote = self.votes.setdefault((host.key, request.candidate_epoch), request.candidate)
        detail = f"{host.key} in epoch {request.candidate_epoch}: {vote}, {request.candidate}"
        if not (vote == request.candidate):
            raise Breach("one vote per epoch", detail)

    def sends_request(self, host: RaftHost, request: Request) -> None:
        if isinstance(request, Vote) and not request.pre_vote:
            on_disk = host.disk.quorum_state
            own = (request.candidate_epoch, host.key)
            if not ((on_disk.epoch, on_disk.voted) == own):
                raise Breach("a vote is on disk when it leaves", f"{host.key}: {on_disk}")
            vote = self.votes.setdefault((host.key, request.candidate_epoch), host.key)
            if not (vote == host.key):
                raise Breach("one vote per epoch", f"{host.key} in epoch {request.candidate_epoch}: {vote}")
        if isinstance(request, FetchRecords) and request.fetch_offset > 0:
            is_there = host.disk.holds(request.fetch_offset - 1, request.last_fetched_epoch)
            if not (is_there):
                raise Breach("a follower acknowledges what is on its disk", f"{host.key}: {request}")

    # Records

    def appended(self, host: RaftHost, base_offset: int, entries: tuple[EpochRecord, ...]) -> None:
        self._conduct.appended(host, base_offset, entries)
        before = host.log.image.at(base_offset - 1)
        epoch = host.log.image.start_epoch if before is None else before.epoch
        for offset, entry in enumerate(entries, base_offset):
            known = self.records.setdefault((offset, entry.epoch), (entry.value, epoch))
            if not (known == (entry.value, epoch)):
                raise Breach(
                    "log matching",
                    f"{host.key} at {offset}, epoch {entry.epoch}: {entry.value} after {epoch}, elsewhere {known}",
                )
            epoch = entry.epoch

    def truncates(self, host: RaftHost, end_offset: int) -> None:
        known = host.node.high_watermark or 0
        if not (end_offset >= known):
            raise Breach("no cut below the high watermark", f"{host.key}: {end_offset} below {known}")

    # Commit

    def committed(self, host: RaftHost, offset: int) -> None:
        before = self.high_watermarks.get(host.key, 0)
        if not (offset >= before):
            raise Breach("monotonic high watermark", f"{host.key}: {offset} after {before}")
        self.high_watermarks[host.key] = offset
        if self.roles.get(host.key) == "Leader" and offset > self.committed_end:
            self._commit(host, offset)
        if not (offset <= self.committed_end):
            raise Breach("only a leader commits", f"{host.key}: {offset} above {self.committed_end}")
        self._compare(host)

    def _commit(self, host: RaftHost, offset: int) -> None:
        """Check records that a leader reports as committed for the first time."""
        for position in range(self.committed_end, offset):
            entry = host.log.image.at(position)
            assert entry is not None
            self.committed_entries.append(entry)
            self.states.append(self.states[-1].apply(entry))
        self._ends[host.node.epoch] = offset
        last = self.committed_entries[-1]
        if not (last.epoch == host.node.epoch):
            raise Breach("commit by own epoch", f"{host.key} in {host.node.epoch}: {last}")
        voters = host.node.voters
        disks = [*((living.key, living.disk) for living in self.hosts), *self.lost_disks]
        durable = [key for key, disk in disks if voters.has(key) and disk.holds(offset - 1, last.epoch)]
        names = [str(key) for key in durable]
        if not (len(durable) >= majority(voters)):
            raise Breach("committed is on a majority's disks", f"{offset} is on {names} of {voters}")

    def _compare(self, host: RaftHost) -> None:
        expected = self.states[host.state.offset]
        if not (host.state == expected):
            raise Breach(
                "committed is never lost or changed",
                f"{host.key} at {host.state.offset}: {host.state.digest.hex()} instead of {expected.digest.hex()}",
            )

    # Snapshots and restarts

    def loses_disk(self, host: RaftHost) -> None:
        self.lost_disks.append((host.key, host.disk))

    def loads_snapshot(self, host: RaftHost, snapshot_id: SnapshotId) -> None:
        self._snapshots.loads_snapshot(host, snapshot_id)

    def installs_snapshot(self, host: RaftHost, snapshot_id: SnapshotId, part: bytes) -> None:
        self._snapshots.installs_snapshot(host, snapshot_id, part)

    def raises_log_start(self, host: RaftHost, offset: int) -> None:
        self._snapshots.raises_log_start(host, offset)

    def deletes_snapshots(self, host: RaftHost, ids: Sequence[SnapshotId]) -> None:
        self._snapshots.deletes_snapshots(host, ids)

    def started(self, host: RaftHost) -> None:
        self.high_watermarks[host.key] = 0
        self.roles.pop(host.key, None)
        self._compare(host)
        self._conduct.started(host)
        self._snapshots.started(host)

    def stepping(self, host: RaftHost, event: events.Event) -> None:
        self._conduct.stepping(host, event)
        if isinstance(event, events.RequestReceived):
            self._snapshots.stepping(host, event)

    def stepped(self, host: RaftHost, event: events.Event) -> None:
        node = host.node
        before = self.persisted.get(host.key, NEW)
        on_disk = host.disk.quorum_state
        if on_disk is not before:
            detail = f"{host.key}: {on_disk} after {before}"
            if not (on_disk.epoch >= before.epoch):
                raise Breach("monotonic epoch", detail)
            same_vote = on_disk.epoch > before.epoch or before.voted in (None, on_disk.voted)
            if not (same_vote):
                raise Breach("one vote per epoch", detail)
            self.persisted[host.key] = on_disk
        if not (node.epoch >= on_disk.epoch):
            raise Breach("monotonic epoch", f"{host.key}: {node.epoch} below {on_disk}")
        if host.fault is None and not (isinstance(node.role, Follower) and node.role.is_appending):
            ends = (node.flushed_end_offset, node.end_offset, host.log.end_offset)
            if not (ends[0] <= ends[1] == ends[2]):
                raise Breach("the machine knows its log", f"{host.key}: {ends}")
        self._conduct.stepped(host, event)
        self._snapshots.stepped(host, event)
        if isinstance(event, events.RequestReceived) and isinstance(event.request, FetchRecords) and node.is_leader:
            self._check_progress(host, event.request)

    def _check_progress(self, host: RaftHost, request: FetchRecords) -> None:
        """Check that the leader knows the true progress of each follower of its epoch."""
        role, follower = host.node.role, self._running(request.replica)
        progress = role.replicas.known(request.replica) if isinstance(role, Leader) else None
        if progress is None or progress.end_offset <= 0 or follower is None or follower.node.epoch != host.node.epoch:
            return
        entry = host.log.image.at(progress.end_offset - 1)
        if entry is not None and not follower.disk.holds(progress.end_offset - 1, entry.epoch):
            detail = f"{host.key} takes {request.replica} to have all below {progress.end_offset}"
            raise Breach("a leader counts what is on its followers' disks", detail)

    def _running(self, key: ReplicaKey) -> RaftHost | None:
        return next((host for host in self.hosts if host.key == key and host.is_up), None)
