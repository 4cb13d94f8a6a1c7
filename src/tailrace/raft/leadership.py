"""A leader: elected, appending, tracking the progress of replicas, answering their fetches, and resigning in time.

A record is committed when a majority of the voters has the record on disk; the leader counts itself only after its own
flush. Only a record of the leader's own epoch is counted: it commits all older records (the Raft paper, 5.4.2).
"""

from tailrace.model.errors import ErrorCode
from tailrace.raft.effects import (
    AppendAsLeader,
    AppendRefused,
    ControlRecord,
    KRaftVersion,
    LeaderChange,
    SendResponse,
    VoterChangeDone,
    Voters,
)
from tailrace.raft.elections import cluster_fault
from tailrace.raft.events import ClientAppend
from tailrace.raft.progress import UNKNOWN, ProgressTable
from tailrace.raft.replica import RaftReplica
from tailrace.raft.roles import Leader, Resigned
from tailrace.raft.rpc import (
    BeginEpoch,
    DescribeQuorumReply,
    FetchRecordsReply,
    FetchSnapshotReply,
    ReplicaDescription,
)
from tailrace.raft.voters import ReplicaKey, Tally, VotersAt, majority_value


class RaftLeadership:
    """The behaviour of Leader, besides its answers to fetches (`serving`) and its voters (`voter_changes`)."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica

    def elected(self, tally: Tally, now_ms: int) -> None:
        """Begin the epoch, after a majority of votes, with a LeaderChange record."""
        replica = self._replica
        leader = Leader(
            epoch_start_offset=replica.end_offset,
            started_ms=now_ms,
            replicas=ProgressTable(replica.other_voters, now_ms),
        )
        replica.become(leader, replica.epoch, replica.key.id, replica.state.voted)
        change = LeaderChange(replica.key.id, replica.voters.current.keys, tally.granting)
        if replica.voters.is_in_log or not replica.voters.current.is_dynamic:
            self.append_control((change,))
        else:
            # The first leader of a quorum appends the set of voters; from then on the log states the set.
            self.append_control((change, KRaftVersion(1), Voters(replica.voters.current)))

    def append_control(self, records: tuple[ControlRecord, ...]) -> int:
        """Append these records as one batch; returns the offset of the last record."""
        replica = self._replica
        base_offset = replica.end_offset
        replica.outbox.add(AppendAsLeader(base_offset, replica.epoch, control=records))
        for offset, record in enumerate(records, base_offset):
            if isinstance(record, Voters):
                replica.voters.append(VotersAt(offset, record.voters))
        self._appended(len(records))
        return replica.end_offset - 1

    def append(self, event: ClientAppend) -> None:
        """Append a client's records, if this replica leads in the epoch of the request."""
        replica = self._replica
        if not isinstance(replica.role, Leader):
            self._refuse(event, ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leader is {replica.leader_id}")
        elif event.epoch != replica.epoch:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if event.epoch < replica.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
            self._refuse(event, code, f"this is epoch {replica.epoch}, not {event.epoch}")
        else:
            assert event.count > 0, "an append of nothing"
            batch = AppendAsLeader(replica.end_offset, replica.epoch, event.records, token=event.token)
            replica.outbox.add(batch)
            self._appended(event.count)

    def _refuse(self, event: ClientAppend, code: ErrorCode, detail: str) -> None:
        self._replica.outbox.add(AppendRefused(event.token, code, detail))

    def _appended(self, count: int) -> None:
        self._replica.end_offset += count
        self._replica.last_epoch = self._replica.epoch
        self._replica.flush()

    # Commit

    def advance(self, leader: Leader) -> bool:
        """Raise the high watermark to the end that a majority has flushed; returns whether the high watermark moved."""
        replica = self._replica
        offset = majority_value(replica.voters.current, lambda key: self._durable_end(leader, key))
        return offset > leader.epoch_start_offset and replica.commit(offset)

    def _durable_end(self, leader: Leader, key: ReplicaKey) -> int:
        if key.id == self._replica.key.id:
            return self._replica.flushed_end_offset if self._replica.is_voter else UNKNOWN
        progress = leader.replicas.known(key)
        return UNKNOWN if progress is None else progress.end_offset

    # Time

    def poll(self, leader: Leader, now_ms: int) -> None:
        """Resign if a majority has been out of contact for too long; announce the leader to voters that have not
        fetched."""
        replica = self._replica
        if self._majority_deadline_ms(leader) <= now_ms:
            self.resign(leader, now_ms)
            return
        for key in replica.other_voters:
            if self._announce_ms(leader, key) <= now_ms and replica.requests.is_ready(key.id, now_ms):
                leader.announced_ms[key.id] = now_ms
                request = BeginEpoch(
                    cluster_id=replica.cluster_id, leader_id=replica.key.id, leader_epoch=replica.epoch, voter=key
                )
                replica.ask(key.id, request, now_ms)

    def next_deadline_ms(self, leader: Leader) -> int:
        replica = self._replica
        announcements = [
            max(self._announce_ms(leader, key), replica.requests.next_ms(key.id)) for key in replica.other_voters
        ]
        return min([self._majority_deadline_ms(leader), *announcements])

    def _announce_ms(self, leader: Leader, key: ReplicaKey) -> int:
        """The time to announce the leader to this voter: at once, and again after each half fetch timeout without a
        request of the voter."""
        announced_ms = leader.announced_ms.get(key.id)
        if announced_ms is None:
            return leader.started_ms
        progress = leader.replicas.known(key)
        heard_ms = UNKNOWN if progress is None or progress.end_offset == UNKNOWN else progress.last_contact_ms
        return max(announced_ms, heard_ms) + self._replica.config.fetch_timeout_ms // 2

    def _majority_deadline_ms(self, leader: Leader) -> int:
        """The end of leadership without contact: one and a half fetch timeouts after the last moment at which a
        majority of the voters had been in contact."""
        never = 1 << 62

        def last_contact_ms(key: ReplicaKey) -> int:
            if key.id == self._replica.key.id:
                return never if self._replica.is_voter else leader.started_ms
            progress = leader.replicas.known(key)
            return leader.started_ms if progress is None else max(progress.last_contact_ms, leader.started_ms)

        return majority_value(self._replica.voters.current, last_contact_ms) + (
            self._replica.config.fetch_timeout_ms * 3 // 2
        )

    # The end

    def resign(self, leader: Leader, now_ms: int) -> None:
        """Stop leading in this epoch for good, and name the successors, the replica with the longest log first."""
        replica = self._replica
        others = replica.other_voters
        furthest = sorted(others, key=lambda key: (-self._durable_end(leader, key), key.id))
        role = Resigned(now_ms + replica.election_timeout_ms(), tuple(furthest), {key.id for key in others})
        replica.become(role, replica.epoch, replica.key.id, replica.state.voted)

    def stepped_down(self, leader: Leader) -> None:
        """Answer every request that waits for this leader with NOT_LEADER_OR_FOLLOWER."""
        replica = self._replica
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        for fetch in leader.parked:
            replica.answer(
                fetch.token, FetchRecordsReply(error=error, leader_id=replica.leader_id, leader_epoch=replica.epoch)
            )
        leader.parked.clear()
        if leader.pending is not None:
            detail = "leadership ended before the change was committed: it may still take effect"
            replica.outbox.add(VoterChangeDone(leader.pending.command.token, error, detail))
            leader.pending = None
        replica.outbox.replace_reads(self._without_reading)

    def _without_reading(self, answer: SendResponse) -> SendResponse:
        kind = FetchSnapshotReply if isinstance(answer.response, FetchSnapshotReply) else FetchRecordsReply
        error, replica = ErrorCode.NOT_LEADER_OR_FOLLOWER, self._replica
        return SendResponse(answer.token, kind(error=error, leader_id=replica.leader_id, leader_epoch=replica.epoch))

    def describe(self, token: object, now_ms: int) -> None:
        """DescribeQuorum (55)."""
        replica = self._replica
        leader = replica.role
        if not isinstance(leader, Leader):
            replica.answer(
                token,
                DescribeQuorumReply(
                    error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=replica.leader_id, leader_epoch=replica.epoch
                ),
            )
            return
        voters = replica.voters.current
        own = ReplicaDescription(
            key=replica.key, log_end_offset=replica.end_offset, last_fetch_ms=now_ms, last_caught_up_ms=now_ms
        )
        known = [
            ReplicaDescription(
                key=progress.key,
                log_end_offset=progress.end_offset,
                last_fetch_ms=progress.last_fetch_ms,
                last_caught_up_ms=progress.last_caught_up_ms,
            )
            for progress in leader.replicas
        ]
        replicas = sorted([own, *known], key=lambda described: described.key)
        answer = DescribeQuorumReply(
            leader_id=replica.leader_id,
            leader_epoch=replica.epoch,
            high_watermark=UNKNOWN if replica.high_watermark is None else replica.high_watermark,
            voters=tuple(described for described in replicas if voters.has(described.key)),
            observers=tuple(described for described in replicas if not voters.has(described.key)),
        )
        replica.answer(token, answer)


def leader_only_fault(replica: RaftReplica, cluster_id: str | None, leader_epoch: int) -> ErrorCode:
    """The error of a request that only a leader answers, or NONE."""
    if (fault := cluster_fault(replica, cluster_id)) is not ErrorCode.NONE:
        return fault
    if replica.is_shutting_down:
        return ErrorCode.BROKER_NOT_AVAILABLE
    if leader_epoch < replica.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader_epoch > replica.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not isinstance(replica.role, Leader):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE
