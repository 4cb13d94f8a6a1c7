"""Adding, removing and updating voters, one voter at a time (KIP-853).

A change is a record with the whole new set. The new set counts as soon as the record is appended; the change is done
when the record is committed, and no other change begins before. Single changes make any majority of the old set
overlap with any majority of the new set, but only if the leader has committed a record of its own epoch first.
"""

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.raft.effects import VoterChangeDone, Voters
from tailrace.raft.events import AddVoter, ChangeVoters, RemoveVoter, UpdateVoter, VoterChange
from tailrace.raft.leadership import RaftLeadership
from tailrace.raft.progress import UNKNOWN
from tailrace.raft.replica import RaftReplica
from tailrace.raft.roles import Leader, PendingChange
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet


class VoterChanges:
    """AddRaftVoter (80), RemoveRaftVoter (81) and UpdateRaftVoter (82)."""

    def __init__(self, replica: RaftReplica, leadership: RaftLeadership) -> None:
        self._replica = replica
        self._leadership = leadership

    def begin(self, command: ChangeVoters, now_ms: int) -> None:
        """Append the new set, or refuse the change."""
        replica = self._replica
        try:
            leader, voters = self._changed(command.change, now_ms)
        except KafkaError as error:
            replica.outbox.add(VoterChangeDone(command.token, error.code, error.detail))
            return
        if voters == replica.voters.current:
            replica.outbox.add(VoterChangeDone(command.token, ErrorCode.NONE))
            return
        offset = self._leadership.append_control((Voters(voters),))
        if command.ack_when_committed:
            leader.pending = PendingChange(command, offset, now_ms + command.timeout_ms)
        else:
            replica.outbox.add(VoterChangeDone(command.token, ErrorCode.NONE))

    def _changed(self, change: VoterChange, now_ms: int) -> tuple[Leader, VoterSet]:
        leader = self._may_change()
        voters = self._replica.voters.current
        match change:
            case AddVoter(voter):
                self._check_new(leader, voters, voter, now_ms)
                return leader, voters.with_voter(voter)
            case RemoveVoter(key):
                _check_known(voters, key)
                if len(voters) == 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} is the only voter: add another one first")
                return leader, voters.without(key.id)
            case UpdateVoter(voter):
                _check_known(voters, voter.key)
                _check_version(voter)
                return leader, voters.with_voter(voter)

    def _may_change(self) -> Leader:
        replica = self._replica
        leader = replica.role
        if not isinstance(leader, Leader):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leader is {replica.leader_id}")
        if not replica.voters.current.is_dynamic:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "the voters are set in the configuration (kraft.version 0), not in the log",
            )
        high_watermark = replica.high_watermark
        if high_watermark is None or high_watermark <= leader.epoch_start_offset:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the leader is new and has not committed anything yet: retry")
        if replica.voters.last.offset >= high_watermark:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "another change of voters is not committed yet: retry")
        return leader

    def _check_new(self, leader: Leader, voters: VoterSet, voter: Voter, now_ms: int) -> None:
        if (known := voters.find(voter.key.id)) is not None:
            raise KafkaError(ErrorCode.DUPLICATE_VOTER, f"{known.key} is a voter: remove it first")
        if not any(voter.key.directory_id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a voter without a directory id: {voter.key}")
        _check_version(voter)
        progress = leader.replicas.known(voter.key)
        reached_ms = UNKNOWN if progress is None else progress.last_caught_up_ms
        if progress is None or reached_ms == UNKNOWN or reached_ms + self._replica.config.caught_up_ms <= now_ms:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{voter.key} has not caught up with the log: start it and let it fetch"
            )
        # A voter counts from the append on: a dead voter could keep the quorum from ever committing again.
        if progress.last_contact_ms + self._replica.config.fetch_timeout_ms <= now_ms:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{voter.key} has fallen silent: start it again")

    def committed(self, leader: Leader, now_ms: int) -> None:
        """Act on a higher high watermark: end a committed change, and resign if the leader has removed itself."""
        replica = self._replica
        pending, high_watermark = leader.pending, replica.high_watermark or 0
        if pending is not None and pending.offset < high_watermark:
            leader.pending = None
            replica.outbox.add(VoterChangeDone(pending.command.token, ErrorCode.NONE))
        if not replica.is_voter and replica.voters.last.offset < high_watermark:
            self._leadership.resign(leader, now_ms)

    def poll(self, leader: Leader, now_ms: int) -> None:
        """Answer a change that takes too long with an error. The change may still be committed later."""
        pending = leader.pending
        if pending is not None and pending.deadline_ms <= now_ms:
            leader.pending = None
            detail = "not committed in time: it may still take effect"
            self._replica.outbox.add(VoterChangeDone(pending.command.token, ErrorCode.REQUEST_TIMED_OUT, detail))


def _check_known(voters: VoterSet, key: ReplicaKey) -> None:
    if key not in voters.keys:
        raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"{key} is not a voter: {', '.join(map(str, voters.keys))} are")


def _check_version(voter: Voter) -> None:
    if not voter.min_kraft_version <= 1 <= voter.max_kraft_version:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{voter.key} understands kraft.version {voter.min_kraft_version} to {voter.max_kraft_version}, not 1",
        )
