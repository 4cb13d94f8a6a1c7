"""Requests of the Raft protocol between replicas of the metadata log, and requests that change its voters.

- Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), FetchSnapshot (59), and Fetch (1) of the metadata log (KIP-595,
  KIP-630, KIP-853). The replica decides when to answer: a Fetch may wait for records, a Vote for the disk. A request
  about another partition is refused before the replica receives it. A FetchSnapshot may name several snapshots: "the
  leader will evenly distribute the number of bytes sent across all of the partitions" (KIP-630).
- AddRaftVoter (80), RemoveRaftVoter (81), UpdateRaftVoter (82): one change of the quorum at a time (KIP-853). Only the
  leader of the metadata log carries such changes out; a follower answers NOT_LEADER_OR_FOLLOWER. 80 and 81 come from
  administrators, 82 from a voter whose address has changed. The answer leaves when the change is committed; v1 of 80
  can ask for an answer after the append.

A request in the name of a voter has the secret of the voter's directory. The id of the directory is in the metadata log
and in each answer to DescribeQuorum: the hash of a secret in `meta.properties` beside the log, unless an earlier
release or Apache Kafka has made the directory (`model.proofs`).

- A candidate, and a replica that fetches, name their directory, whose secret the request must have.
- BeginQuorumEpoch and EndQuorumEpoch name a leader by its id alone: the sender has to be the voter of this id, or the
  candidate that this replica has voted for.
- A candidate or leader that this replica does not know as a voter may be a voter: the change of the voters may not have
  come here yet, and the vote of this replica may be the vote that is missing. The request is accepted when this replica
  has lost its leader. While there is a leader, the request is refused: otherwise any client could end the leader's
  epoch by such a request (Ongaro's dissertation, 4.2.3).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, assert_never

from tailrace.metadata.senders import check_secret
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.proofs import needs_secret
from tailrace.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    FetchSnapshotRequest,
    KRaftVersionRange,
    RaftLeader,
    RaftVoterListener,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from tailrace.raft.events import AddVoter, RemoveVoter, UpdateVoter
from tailrace.raft.node import RaftNode
from tailrace.raft.roles import Follower, Leader
from tailrace.raft.rpc import (
    BeginEpoch,
    EndEpoch,
    FetchRecords,
    FetchSnapshot,
    FetchSnapshotReply,
    Request,
    Response,
    Vote,
)
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener
from tailrace.server.callbacks import Alarm
from tailrace.server.context import RequestContext
from tailrace.server.errors import error_response
from tailrace.server.ports import Clock, Peer, QuorumRequest
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.raft_wire import (
    request_from_wire,
    response_for_snapshots,
    response_to_wire,
    snapshots_from_wire,
)


class RaftRpcHandler:
    """Passes the requests of other replicas to this node's replica."""

    def __init__(self, host: QuorumHost) -> None:
        self._host = host

    def handle(self, request: QuorumRequest, context: RequestContext) -> None:
        """Raises KafkaError for a request about another log than the metadata log, and the errors of `check_sender`."""
        if isinstance(request, FetchSnapshotRequest):
            self._send_snapshots(request, context)
            return
        received = request_from_wire(request)
        check_sender(self._host.node, received, request.secret)
        listener_name = context.identity.listener_name

        def answer(response: Response) -> None:
            leader = self._host.leader_endpoint(listener_name, response.leader_id)
            context.respond(response_to_wire(response, request, leader=leader))

        self._host.receive(received, answer)

    def _send_snapshots(self, request: FetchSnapshotRequest, context: RequestContext) -> None:
        wanted = snapshots_from_wire(request)
        for fetch in wanted:
            check_sender(self._host.node, fetch, request.secret)
        shares = self._host.node.snapshot_shares(
            [(part.snapshot_id, part.position) for part in wanted], request.max_bytes
        )
        listener_name = context.identity.listener_name
        answers: dict[int, FetchSnapshotReply] = {}

        def answered(place: int, response: Response) -> None:
            assert isinstance(response, FetchSnapshotReply), f"not an answer to a FetchSnapshot: {response}"
            answers[place] = response
            if len(answers) == len(wanted):
                in_order = [answers[place] for place in range(len(wanted))]
                leader = self._host.leader_endpoint(listener_name, in_order[0].leader_id)
                context.respond(response_for_snapshots(in_order, request, leader=leader))

        for place, (fetch, share) in enumerate(zip(wanted, shares, strict=True)):
            self._host.receive(replace(fetch, max_bytes=share), partial(answered, place))


MAX_LISTENERS: Final = 100
"""The most listeners of one voter: they stay in the metadata for ever."""


@dataclass(frozen=True, slots=True)
class AddRaftVoterHandler:
    """Makes a replica that has caught up a voter. Its range of kraft.version is assumed to be 0 to 1."""

    host: QuorumHost

    def handle(self, request: AddRaftVoterRequest, context: RequestContext) -> None:
        """Raises KafkaError INCONSISTENT_CLUSTER_ID, INVALID_REQUEST."""
        _check_cluster(self.host, request.cluster_id)
        voter = Voter(_key(request.voter_id, request.voter_directory_id), _endpoints(request.listeners))

        def answer(error: ErrorCode, detail: str) -> None:
            response = AddRaftVoterResponse()
            if error is not ErrorCode.NONE:
                response = error_response(request, context.api_version, KafkaError(error, detail))
            context.respond(response)

        self.host.change_voters(
            AddVoter(voter),
            answer,
            timeout_ms=max(0, request.timeout_ms),
            ack_when_committed=request.ack_when_committed,
        )


@dataclass(frozen=True, slots=True)
class RemoveRaftVoterHandler:
    """Removes a voter."""

    host: QuorumHost

    def handle(self, request: RemoveRaftVoterRequest, context: RequestContext) -> None:
        """Raises KafkaError INCONSISTENT_CLUSTER_ID, INVALID_REQUEST."""
        _check_cluster(self.host, request.cluster_id)

        def answer(error: ErrorCode, detail: str) -> None:
            response = RemoveRaftVoterResponse()
            if error is not ErrorCode.NONE:
                response = error_response(request, context.api_version, KafkaError(error, detail))
            context.respond(response)

        self.host.change_voters(RemoveVoter(_key(request.voter_id, request.voter_directory_id)), answer)


@dataclass(frozen=True, slots=True)
class UpdateRaftVoterHandler:
    """Updates the addresses and versions of a voter, if its request names the leader's epoch."""

    host: QuorumHost

    def handle(self, request: UpdateRaftVoterRequest, context: RequestContext) -> UpdateRaftVoterResponse | None:
        """Raises KafkaError INCONSISTENT_CLUSTER_ID, INVALID_REQUEST, CLUSTER_AUTHORIZATION_FAILED."""
        _check_cluster(self.host, request.cluster_id)
        check_key(_key(request.voter_id, request.voter_directory_id), request.secret)
        versions = request.k_raft_version_feature
        voter = Voter(
            _key(request.voter_id, request.voter_directory_id),
            _endpoints(request.listeners),
            versions.min_supported_version,
            versions.max_supported_version,
        )
        listener_name = context.identity.listener_name
        epoch = self.host.node.epoch
        if request.current_leader_epoch != epoch:
            is_old = request.current_leader_epoch < epoch
            return self._response(
                ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH, listener_name
            )
        self.host.change_voters(
            UpdateVoter(voter), lambda error, _: context.respond(self._response(error, listener_name))
        )
        return None

    def _response(self, error: ErrorCode, listener_name: str) -> UpdateRaftVoterResponse:
        node = self.host.node
        endpoint = self.host.leader_endpoint(listener_name, node.leader_id)
        leader = RaftLeader(
            leader_id=node.leader_id,
            leader_epoch=node.epoch,
            host="" if endpoint is None else endpoint.host,
            port=0 if endpoint is None else endpoint.port,
        )
        return UpdateRaftVoterResponse(error_code=error, current_leader=leader)


def _check_cluster(host: QuorumHost, cluster_id: str | None) -> None:
    if cluster_id is not None and host.cluster_id is not None and cluster_id != host.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {host.cluster_id}, the request is for {cluster_id}"
        )


def _key(voter_id: int, directory_id: bytes) -> ReplicaKey:
    if voter_id < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no voter has the id {voter_id}")
    return ReplicaKey(voter_id, directory_id)


def _endpoints(listeners: Sequence[RaftVoterListener]) -> tuple[VoterListener, ...]:
    names = [listener.name for listener in listeners]
    if len(names) > MAX_LISTENERS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a voter has at most {MAX_LISTENERS} listeners, not {len(names)}")
    if not listeners or len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a voter needs listeners, each with a name of its own: {names}")
    return tuple(VoterListener(listener.name, listener.host, listener.port) for listener in listeners)


_INTERVAL_MS: Final = 1_000

_logger = logging.getLogger("tailrace.server")


class VoterAddress:
    """Keeps the address of this voter in the log current, from `start` to `stop`, by a check once a second.

    Does nothing for an observer, and for a node without listeners.
    """

    def __init__(self, host: QuorumHost, *, endpoints: Sequence[VoterListener], peer: Peer, clock: Clock) -> None:
        self._host = host
        self._endpoints = tuple(endpoints)
        self._peer = peer
        self._clock = clock
        self._is_asking = False
        self._next_look = Alarm(clock, self.start)

    def start(self) -> None:
        """Check the address now, and again later."""
        if self._endpoints:
            self._next_look.set(self._clock.monotonic_ms() + _INTERVAL_MS)
            self._host.perform(self._look)

    def stop(self) -> None:
        """Stop the checks."""
        self._next_look.cancel()

    def _look(self) -> None:
        node = self._host.node
        known = node.voters.find(node.key.id)
        if self._is_asking or known is None or known.key != node.key or known.endpoints == self._endpoints:
            return
        if node.is_leader:
            self._is_asking = True
            self._host.change_voters(UpdateVoter(Voter(node.key, self._endpoints)), self._updated)
        elif node.leader_id >= 0:
            self._is_asking = True
            self._peer.send(node.leader_id, self._request(), self._answered)

    def _request(self) -> UpdateRaftVoterRequest:
        node = self._host.node
        voter = Voter(node.key, self._endpoints)
        return UpdateRaftVoterRequest(
            cluster_id=self._host.cluster_id,
            current_leader_epoch=node.epoch,
            voter_id=node.key.id,
            voter_directory_id=node.key.directory_id,
            secret=self._host.secret,
            listeners=tuple(RaftVoterListener(name=e.name, host=e.host, port=e.port) for e in voter.endpoints),
            k_raft_version_feature=KRaftVersionRange(
                min_supported_version=voter.min_kraft_version, max_supported_version=voter.max_kraft_version
            ),
        )

    def _answered(self, response: Any) -> None:
        self._is_asking = False
        if response is not None:
            self._updated(response.error_code, "")

    def _updated(self, error: int, detail: str) -> None:
        self._is_asking = False
        where = ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in self._endpoints)
        if error == ErrorCode.NONE:
            _logger.info("event=voter-address-sent node=%d address=%s", self._host.node.key.id, where)
        else:
            _logger.info("event=voter-address-not-sent node=%d error=%d %s", self._host.node.key.id, error, detail)


def check_sender(node: RaftNode, request: Request, secret: bytes) -> None:
    """Raises KafkaError CLUSTER_AUTHORIZATION_FAILED if the sender has not proved to be the replica of the request."""
    match request:
        case FetchRecords() | FetchSnapshot():
            check_key(request.replica, secret)
        case Vote():
            check_key(request.candidate, secret)
            if not node.voters.has(request.candidate):
                _check_stranger(node, f"candidate {request.candidate}")
        case BeginEpoch() | EndEpoch():
            known = _leader_key(node, request.leader_id)
            if known is None:
                _check_stranger(node, f"leader {request.leader_id}")
            else:
                check_key(known, secret)
        case _:
            assert_never(request)


def check_key(key: ReplicaKey, secret: bytes) -> None:
    """Raises KafkaError CLUSTER_AUTHORIZATION_FAILED if this is not the secret of the replica's directory."""
    check_secret(f"replica {key.id}", key.directory_id, secret)


def _leader_key(node: RaftNode, leader_id: int) -> ReplicaKey | None:
    voter, voted = node.voters.find(leader_id), node.quorum_state.voted
    if voter is not None:
        return voter.key
    return voted if voted is not None and voted.id == leader_id else None


def _check_stranger(node: RaftNode, sender: str) -> None:
    has_secrets = any(needs_secret(key.directory_id) for key in node.voters.keys)
    role = node.role
    if has_secrets and (isinstance(role, Leader) or (isinstance(role, Follower) and role.has_fetched)):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"{sender} is no voter here, and replica {node.leader_id} leads in epoch {node.epoch}",
        )
