"""Votes: which candidate gets a vote, and how a replica stands for election itself.

A vote is given once per epoch, durably, and only to a replica whose log reaches at least as far as the log here. First
the epochs of the last records are compared, then the lengths; for an empty log, the epoch and end of its snapshot
(KIP-630, "Changes to Leader Election").
"""

from collections.abc import Callable

from tailrace.model.errors import ErrorCode
from tailrace.raft.replica import RaftReplica
from tailrace.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tailrace.raft.rpc import (
    NO_LEADER,
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    EndEpochReply,
    FetchRecords,
    LogEnd,
    Vote,
    VoteReply,
)
from tailrace.raft.voters import ReplicaKey, Tally


class Elections:
    """The behaviour of Unattached, Prospective, Candidate and Resigned, and the answers of every role to the requests
    of an election."""

    def __init__(self, replica: RaftReplica, on_elected: Callable[[Tally, int], None]) -> None:
        self._replica = replica
        self._on_elected = on_elected

    # Requests of others

    def answer_vote(self, token: object, request: Vote, now_ms: int) -> None:
        """Vote (52): granted or rejected."""
        replica = self._replica
        fault = self._vote_fault(request)
        if fault is ErrorCode.NONE and request.candidate_epoch > replica.epoch:
            replica.unattached(request.candidate_epoch, now_ms)
        granted = fault is ErrorCode.NONE and self._grants(request, now_ms)
        if granted and not request.pre_vote:
            replica.vote_for(request.candidate)
            self._wait_for_the_candidate(now_ms)
        replica.answer(
            token,
            VoteReply(error=fault, leader_id=replica.leader_id, leader_epoch=replica.epoch, vote_granted=granted),
        )

    def _vote_fault(self, request: Vote) -> ErrorCode:
        replica = self._replica
        if (fault := cluster_fault(replica, request.cluster_id)) is not ErrorCode.NONE:
            return fault
        newest = request.candidate_epoch if request.pre_vote else request.candidate_epoch - 1
        if request.candidate.id < 0 or request.last_offset < 0 or not 0 <= request.last_epoch <= newest:
            return ErrorCode.INVALID_REQUEST
        if request.candidate_epoch < replica.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if not addressed_to(replica, request.voter) or not replica.is_fit:
            return ErrorCode.INVALID_VOTER_KEY
        return ErrorCode.NONE

    def _grants(self, request: Vote, now_ms: int) -> bool:
        replica = self._replica
        role = replica.role
        reaches = LogEnd(request.last_epoch, request.last_offset) >= replica.position
        if request.pre_vote:
            # While a snapshot takes the place of the log nothing is fetched, and the deadline may pass unnoticed.
            is_led = isinstance(role, Follower) and role.has_fetched and now_ms < role.fetch_deadline_ms
            has_leader = isinstance(role, Leader) or is_led
            return reaches and not has_leader
        if not isinstance(role, Unattached | Prospective):
            return False
        if replica.state.voted is not None:
            return replica.state.voted == request.candidate
        return reaches and replica.leader_id == NO_LEADER

    def _wait_for_the_candidate(self, now_ms: int) -> None:
        role = self._replica.role
        if isinstance(role, Unattached):
            role.election_deadline_ms = now_ms + self._replica.election_timeout_ms()

    def answer_begin(self, token: object, request: BeginEpoch, now_ms: int) -> None:
        """BeginQuorumEpoch (53): this node leads from now on."""
        replica = self._replica
        fault = cluster_fault(replica, request.cluster_id) or self._leader_fault(
            request.leader_id, request.leader_epoch
        )
        if fault is ErrorCode.NONE and not addressed_to(replica, request.voter):
            fault = ErrorCode.INVALID_VOTER_KEY
        if fault is ErrorCode.NONE:
            self.learn(request.leader_epoch, request.leader_id, now_ms, from_leader=True)
        replica.answer(
            token,
            BeginEpochReply(error=fault, leader_id=replica.leader_id, leader_epoch=replica.epoch),
        )

    def answer_end(self, token: object, request: EndEpoch, now_ms: int) -> None:
        """EndQuorumEpoch (54): the leader stops. The first candidate that the leader names stands at once, the other
        candidates later."""
        replica = self._replica
        fault = cluster_fault(replica, request.cluster_id) or self._leader_fault(
            request.leader_id, request.leader_epoch
        )
        if fault is ErrorCode.NONE:
            self.learn(request.leader_epoch, request.leader_id, now_ms, from_leader=True)
            role = replica.role
            if isinstance(role, Follower) and role.leader_id == request.leader_id:
                role.has_fetched = False
                role.fetch_deadline_ms = now_ms + self._succession_ms(request.preferred_candidates)
        replica.answer(token, EndEpochReply(error=fault, leader_id=replica.leader_id, leader_epoch=replica.epoch))

    def _leader_fault(self, leader_id: int, leader_epoch: int) -> ErrorCode:
        replica = self._replica
        if leader_id < 0 or leader_id == replica.key.id:
            return ErrorCode.INVALID_REQUEST
        if leader_epoch < replica.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch == replica.epoch and replica.leader_id not in (NO_LEADER, leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _succession_ms(self, preferred: tuple[ReplicaKey, ...]) -> int:
        """The wait while the replicas try that the leader names before this replica: 0 for the first, half the longest
        wait for the last."""
        longest, own = self._replica.config.election_backoff_max_ms, self._replica.key
        # Version 0 of the request, as Kafka sends it at kraft.version 0, names no directories.
        place = next((index for index, key in enumerate(preferred) if key in (own, ReplicaKey(own.id))), None)
        if place is None:
            return longest
        return min(longest, longest >> (len(preferred) - 1) << (place - 1)) if place else 0

    # News of other replicas

    def learn(self, epoch: int, leader_id: int, now_ms: int, *, from_leader: bool = False) -> None:
        """Take the epoch that a message names, and perhaps its leader. An epoch below the present epoch changes
        nothing.

        `from_leader`: the message came from that leader. After a timeout of a leader, a replica follows that leader
        again only if the message came from the leader: otherwise two such replicas would redirect each other to a dead
        leader for ever.
        """
        replica = self._replica
        is_other = leader_id not in (NO_LEADER, replica.key.id)
        if epoch > replica.epoch:
            if is_other:
                replica.follow(epoch, leader_id, now_ms)
            else:
                replica.unattached(epoch, now_ms)
        elif epoch == replica.epoch and is_other and replica.leader_id in (NO_LEADER, leader_id):
            has_given_up = isinstance(replica.role, Prospective | Unattached) and replica.leader_id == leader_id
            if not isinstance(replica.role, Follower) and (from_leader or not has_given_up):
                replica.follow(epoch, leader_id, now_ms)

    # Our own election

    def poll(self, now_ms: int) -> None:
        """Carry out the steps that are due in the present role, for the four roles of this class."""
        match self._replica.role:
            case Unattached() as role:
                self._poll_unattached(role, now_ms)
            case Prospective() as role:
                self._poll_prospective(role, now_ms)
            case Candidate() as role:
                self._poll_candidate(role, now_ms)
            case Resigned() as role:
                self._poll_resigned(role, now_ms)
            case _:
                pass

    def _poll_unattached(self, role: Unattached, now_ms: int) -> None:
        replica = self._replica
        if role.election_deadline_ms <= now_ms:
            if replica.may_stand:
                self.stand(now_ms)
                return
            role.election_deadline_ms = now_ms + replica.election_timeout_ms()
        self._look_for_leader(role, now_ms)

    def _look_for_leader(self, role: Unattached, now_ms: int) -> None:
        """Ask one replica after the other for the leader, until an answer names the leader.

        The wait for one answer is shorter than the request timeout: otherwise a replica that stands for election in
        between, and then begins with the first place again, would never ask the second place.
        """
        replica = self._replica
        places = replica.places_to_ask
        if not places or not replica.may_fetch:
            return
        place = places[role.next_peer % len(places)]
        has_waited = role.next_ask_ms <= now_ms and replica.requests.is_ready(place, now_ms)
        if has_waited or all(replica.requests.is_ready(peer, now_ms) for peer in places):
            role.next_peer += 1
            role.next_ask_ms = now_ms + replica.config.election_timeout_ms // 4
            replica.ask(place, fetch_request(replica, max_wait_ms=0), now_ms)

    def _next_look_ms(self, role: Unattached) -> int:
        """The time at which the next replica may be asked."""
        replica = self._replica
        places = replica.places_to_ask if replica.may_fetch else ()
        if not places:
            return role.election_deadline_ms
        next_place_ms = replica.requests.next_ms(places[role.next_peer % len(places)])
        return min(max(role.next_ask_ms, next_place_ms), max(replica.requests.next_ms(peer) for peer in places))

    def stand(self, now_ms: int) -> None:
        """Ask all voters for a pre-vote."""
        replica = self._replica
        tally = Tally(replica.voters.current)
        tally.record(replica.key.id, granted=True)
        role = Prospective(tally, now_ms + replica.election_timeout_ms())
        replica.become(role, replica.epoch, replica.leader_id, replica.state.voted)

    def _poll_prospective(self, role: Prospective, now_ms: int) -> None:
        replica = self._replica
        if not replica.may_stand:
            replica.unattached(replica.epoch, now_ms)
        elif role.tally.is_won:
            self._raise_epoch(now_ms)
        elif role.tally.is_lost or role.deadline_ms <= now_ms:
            self._give_way(now_ms)
        else:
            self._ask_for_votes(role.tally, now_ms, pre_vote=True)

    def _give_way(self, now_ms: int) -> None:
        """End a pre-vote without a majority: follow the known leader again or, without a known leader, become
        Unattached."""
        replica = self._replica
        if replica.leader_id not in (NO_LEADER, replica.key.id):
            replica.follow(replica.epoch, replica.leader_id, now_ms)
        else:
            replica.unattached(replica.epoch, now_ms)

    def _raise_epoch(self, now_ms: int) -> None:
        replica = self._replica
        tally = Tally(replica.voters.current)
        tally.record(replica.key.id, granted=True)
        deadline_ms = now_ms + replica.election_timeout_ms()
        replica.become(Candidate(tally, deadline_ms), replica.epoch + 1, NO_LEADER, replica.key)

    def _poll_candidate(self, role: Candidate, now_ms: int) -> None:
        replica = self._replica
        if not replica.may_stand:
            replica.unattached(replica.epoch, now_ms)
        elif role.tally.is_won:
            self._on_elected(role.tally, now_ms)
        elif role.deadline_ms <= now_ms:
            self.stand(now_ms)
        elif role.tally.is_lost and not role.is_backing_off:
            # Another candidate is elected, or stands too: the random pause lets one candidate be first in the next try.
            role.is_backing_off = True
            role.deadline_ms = now_ms + replica.spread(0, replica.config.election_backoff_max_ms)
        elif not role.is_backing_off:
            self._ask_for_votes(role.tally, now_ms, pre_vote=False)

    def _ask_for_votes(self, tally: Tally, now_ms: int, *, pre_vote: bool) -> None:
        replica = self._replica
        for key in tally.unanswered:
            if key.id != replica.key.id and replica.requests.is_ready(key.id, now_ms):
                request = Vote(
                    cluster_id=replica.cluster_id,
                    candidate_epoch=replica.epoch,
                    candidate=replica.key,
                    voter=key,
                    last_epoch=replica.last_epoch,
                    last_offset=replica.end_offset,
                    pre_vote=pre_vote,
                )
                replica.ask(key.id, request, now_ms)

    def voted(self, voter_id: int, request: Vote, response: VoteReply, now_ms: int) -> None:
        """Take an answer to our Vote of this epoch."""
        role = self._replica.role
        wanted: type[Prospective | Candidate] = Prospective if request.pre_vote else Candidate
        if not isinstance(role, wanted) or request.candidate_epoch != self._replica.epoch:
            return
        if response.error in (ErrorCode.NONE, ErrorCode.INVALID_VOTER_KEY, ErrorCode.FENCED_LEADER_EPOCH):
            role.tally.record(voter_id, response.vote_granted and response.error is ErrorCode.NONE)
        else:
            self._replica.requests.back_off(voter_id, now_ms)

    # Leaving office

    def _poll_resigned(self, role: Resigned, now_ms: int) -> None:
        replica = self._replica
        if role.deadline_ms <= now_ms:
            replica.unattached(replica.epoch + 1, now_ms)
            return
        for node_id in sorted(role.unacknowledged):
            if replica.requests.is_ready(node_id, now_ms):
                request = EndEpoch(
                    cluster_id=replica.cluster_id,
                    leader_id=replica.key.id,
                    leader_epoch=replica.epoch,
                    preferred_candidates=role.preferred,
                )
                replica.ask(node_id, request, now_ms)

    def next_deadline_ms(self) -> int | None:
        """The time at which `poll` has something to do again."""
        replica = self._replica
        match replica.role:
            case Unattached(election_deadline_ms=deadline_ms) as role:
                return min(deadline_ms, self._next_look_ms(role))
            case Candidate(deadline_ms=deadline_ms, is_backing_off=True):
                return deadline_ms
            case Prospective(tally=tally, deadline_ms=deadline_ms) | Candidate(tally=tally, deadline_ms=deadline_ms):
                others = [key.id for key in tally.unanswered if key.id != replica.key.id]
                return min([deadline_ms, *(replica.requests.next_ms(node_id) for node_id in others)])
            case Resigned(deadline_ms=deadline_ms, unacknowledged=waiting):
                return min([deadline_ms, *(replica.requests.next_ms(node_id) for node_id in waiting)])
            case _:
                return None


def fetch_request(replica: RaftReplica, max_wait_ms: int) -> FetchRecords:
    """The next fetch of this replica. The fetch offset acknowledges the records below this offset, so the log must be
    flushed."""
    assert replica.may_fetch, f"flushed up to {replica.flushed_end_offset} of {replica.end_offset}"
    return FetchRecords(
        cluster_id=replica.cluster_id,
        replica=replica.key,
        leader_epoch=replica.epoch,
        fetch_offset=replica.flushed_end_offset,
        last_fetched_epoch=replica.last_epoch,
        max_wait_ms=max_wait_ms,
        max_bytes=replica.config.fetch_max_bytes,
        high_watermark=-1 if replica.high_watermark is None else replica.high_watermark,
    )


def cluster_fault(replica: RaftReplica, cluster_id: str | None) -> ErrorCode:
    """INCONSISTENT_CLUSTER_ID if the sender names another cluster, else NONE."""
    if cluster_id is None or replica.cluster_id is None or cluster_id == replica.cluster_id:
        return ErrorCode.NONE
    return ErrorCode.INCONSISTENT_CLUSTER_ID


def addressed_to(replica: RaftReplica, voter: ReplicaKey | None) -> bool:
    """Whether `voter`, the receiver that a request names, is this replica. Some senders know the id without the
    directory, or name no voter at all."""
    if voter is None or voter.id < 0:
        return True
    unknown = not any(voter.directory_id)
    return voter.id == replica.key.id and (unknown or voter.directory_id == replica.key.directory_id)
