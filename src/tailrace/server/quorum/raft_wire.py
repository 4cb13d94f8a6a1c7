"""Messages between replicas of the metadata log in Kafka's form: values of `raft.rpc` to the wire and back.

A message is made with the fields of the newest version; encoding leaves out the fields that an older version does not
have. `oldest_version` is the lowest version in which a request loses nothing essential. The log has one partition, so
each message has one partition. Only FetchSnapshot may name further partitions, which have no snapshots, and several
snapshots of this log.

The form of messages from outside is checked here (`metadata_partition_wire`); the machine checks their values (offsets,
epochs, the cluster). The machine enters any newer epoch, so an epoch that is so high that hardly any epoch could follow
is refused here; the epochs of Fetch and FetchSnapshot are only compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages import fetch, quorum
from tailrace.protocol.schema import replace
from tailrace.raft.rpc import (
    BeginEpoch,
    BeginEpochReply,
    DescribeQuorumReply,
    EndEpoch,
    EndEpochReply,
    FetchRecords,
    FetchRecordsReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Request,
    Response,
    Vote,
    VoteReply,
)
from tailrace.raft.voters import ReplicaKey, VoterListener
from tailrace.server.ports import QuorumRequest, QuorumResponse
from tailrace.server.quorum import fetches_wire as fetches
from tailrace.server.quorum.metadata_partition_wire import (
    INDEX,
    TOPIC,
    Where,
    checked_epoch,
    is_for_all,
    known_code,
    leadership,
    only_answered,
    only_requested,
)


def oldest_version(request: Request) -> int:
    """The lowest version with the essential fields: directories, and the mark of a pre-vote."""
    match request:
        case Vote():
            keys = (request.candidate, *([request.voter] if request.voter is not None else ()))
            return 2 if request.pre_vote else int(_any_directory(keys))
        case BeginEpoch():
            return int(request.voter is not None and _any_directory((request.voter,)))
        case EndEpoch():
            return int(_any_directory(request.preferred_candidates))
        case FetchRecords():
            return 17 if _any_directory((request.replica,)) else 12
        case FetchSnapshot():
            return int(_any_directory((request.replica,)))
    assert_never(request)


def _any_directory(keys: Sequence[ReplicaKey]) -> bool:
    return any(any(key.directory_id) for key in keys)


def request_to_wire(request: Request, *, listeners: Sequence[VoterListener]) -> QuorumRequest:
    """The message of this request. `listeners` are the sender's addresses for its followers."""
    match request:
        case Vote():
            return _vote_request(request)
        case BeginEpoch():
            return _begin_request(request, _named(listeners))
        case EndEpoch():
            return _end_request(request, _named(listeners))
        case FetchRecords():
            return fetches.fetch_request(request)
        case FetchSnapshot():
            return fetches.fetch_snapshot_request(request)
    assert_never(request)


def with_secret(message: QuorumRequest, secret: bytes) -> QuorumRequest:
    """The message with the secret of its sender's directory."""
    return replace(message, secret=secret)


def request_from_wire(message: QuorumRequest) -> Request:
    """The request for this log in a message.

    Raises INVALID_REQUEST if the message is about another partition or several partitions, as Kafka does, or if it
    names an epoch above `NEWEST_EPOCH`, and UNKNOWN_TOPIC_OR_PARTITION for snapshots of other partitions only.
    """
    match message:
        case quorum.VoteRequest():
            return _vote_asked(message)
        case quorum.BeginQuorumEpochRequest():
            return _begin_asked(message)
        case quorum.EndQuorumEpochRequest():
            return _end_asked(message)
        case fetch.FetchRequest():
            return fetches.fetch_asked(message)
        case quorum.FetchSnapshotRequest():
            snapshots = snapshots_from_wire(message)
            if len(snapshots) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{len(snapshots)} snapshots are requested at once")
            return snapshots[0]
    assert_never(message)


def snapshots_from_wire(message: quorum.FetchSnapshotRequest) -> Sequence[FetchSnapshot]:
    """The requests for snapshots of this log in a FetchSnapshot message. Raises the errors of `request_from_wire`."""
    return fetches.fetch_snapshots_asked(message)


def response_for_snapshots(
    responses: Sequence[FetchSnapshotReply],
    request: quorum.FetchSnapshotRequest,
    *,
    leader: VoterListener | None,
) -> quorum.FetchSnapshotResponse:
    """The message with these answers to the requests from `snapshots_from_wire`, in the same order."""
    return fetches.fetch_snapshot_response(responses, request, _where(leader, responses[0].leader_id))


Answered = VoteReply | BeginEpochReply | EndEpochReply | FetchRecordsReply | FetchSnapshotReply
"""The answers to replicas: a description is for clients only."""


def response_to_wire(response: Response, request: QuorumRequest, *, leader: VoterListener | None) -> QuorumResponse:
    """The message with this answer to the request. `leader` is the address of the leader that the answer names, if the
    address is known."""
    where = _where(leader, response.leader_id)
    match response:
        case VoteReply():
            return _vote_response(response, where)
        case BeginEpochReply() | EndEpochReply():
            return _epoch_response(response, where)
        case FetchRecordsReply():
            return fetches.fetch_response(response, where)
        case FetchSnapshotReply():
            assert isinstance(request, quorum.FetchSnapshotRequest), f"not an answer to {request}"
            return fetches.fetch_snapshot_response((response,), request, where)
        case DescribeQuorumReply():
            raise AssertionError("a description is not for replicas")
    assert_never(response)


def _where(leader: VoterListener | None, leader_id: int) -> Where:
    return (leader, leader_id) if leader is not None and leader_id >= 0 else None


def response_from_wire(message: QuorumResponse) -> Answered:
    """The answer for this log in a message. Raises MalformedMessage if the answer is about another log, too."""
    for_all = ErrorCode.NONE if message.error_code == 0 else known_code(message.error_code)
    match message:
        case quorum.VoteResponse():
            return _vote_answer(message, for_all)
        case quorum.BeginQuorumEpochResponse():
            return BeginEpochReply(**_epoch_answer(message.topics, for_all))
        case quorum.EndQuorumEpochResponse():
            return EndEpochReply(**_epoch_answer(message.topics, for_all))
        case fetch.FetchResponse():
            return fetches.fetch_answer(message, for_all)
        case quorum.FetchSnapshotResponse():
            return fetches.fetch_snapshot_answer(message, for_all)
    assert_never(message)


Listeners = tuple[quorum.NamedEndpoint, ...]


def _named(listeners: Sequence[VoterListener]) -> Listeners:
    """The sender's listeners, for its followers."""
    return tuple(quorum.NamedEndpoint(name=e.name, host=e.host, port=e.port) for e in listeners)


# Requests about elections and epochs


def _vote_request(request: Vote) -> quorum.VoteRequest:
    voter = request.voter or ReplicaKey(-1)
    partition = quorum.VotePartition(
        partition_index=INDEX,
        replica_epoch=request.candidate_epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=request.last_epoch,
        last_offset=request.last_offset,
        pre_vote=request.pre_vote,
    )
    topic = quorum.VoteTopic(topic_name=TOPIC, partitions=(partition,))
    return quorum.VoteRequest(cluster_id=request.cluster_id, voter_id=voter.id, topics=(topic,))


def _begin_request(request: BeginEpoch, listeners: Listeners) -> quorum.BeginQuorumEpochRequest:
    voter = request.voter or ReplicaKey(-1)
    partition = quorum.BeginEpochPartition(
        partition_index=INDEX,
        voter_directory_id=voter.directory_id,
        leader_id=request.leader_id,
        leader_epoch=request.leader_epoch,
    )
    topic = quorum.BeginEpochTopic(topic_name=TOPIC, partitions=(partition,))
    return quorum.BeginQuorumEpochRequest(
        cluster_id=request.cluster_id, voter_id=voter.id, topics=(topic,), leader_endpoints=listeners
    )


def _end_request(request: EndEpoch, listeners: Listeners) -> quorum.EndQuorumEpochRequest:
    partition = quorum.EndEpochPartition(
        partition_index=INDEX,
        leader_id=request.leader_id,
        leader_epoch=request.leader_epoch,
        preferred_successors=tuple(key.id for key in request.preferred_candidates),
        preferred_candidates=tuple(
            quorum.PreferredCandidate(candidate_id=key.id, candidate_directory_id=key.directory_id)
            for key in request.preferred_candidates
        ),
    )
    topic = quorum.EndEpochTopic(topic_name=TOPIC, partitions=(partition,))
    return quorum.EndQuorumEpochRequest(cluster_id=request.cluster_id, topics=(topic,), leader_endpoints=listeners)


def _vote_asked(message: quorum.VoteRequest) -> Vote:
    part = only_requested(message.topics, "topic_name", "partition_index")
    return Vote(
        cluster_id=message.cluster_id,
        candidate_epoch=checked_epoch(part.replica_epoch),
        candidate=ReplicaKey(part.replica_id, part.replica_directory_id),
        voter=_voter(message.voter_id, part.voter_directory_id),
        last_epoch=part.last_offset_epoch,
        last_offset=part.last_offset,
        pre_vote=part.pre_vote,
    )


def _begin_asked(message: quorum.BeginQuorumEpochRequest) -> BeginEpoch:
    part = only_requested(message.topics, "topic_name", "partition_index")
    return BeginEpoch(
        cluster_id=message.cluster_id,
        leader_id=part.leader_id,
        leader_epoch=checked_epoch(part.leader_epoch),
        voter=_voter(message.voter_id, part.voter_directory_id),
    )


def _end_asked(message: quorum.EndQuorumEpochRequest) -> EndEpoch:
    part = only_requested(message.topics, "topic_name", "partition_index")
    by_id = (ReplicaKey(node_id) for node_id in part.preferred_successors)
    by_key = (ReplicaKey(key.candidate_id, key.candidate_directory_id) for key in part.preferred_candidates)
    return EndEpoch(
        cluster_id=message.cluster_id,
        leader_id=part.leader_id,
        leader_epoch=checked_epoch(part.leader_epoch),
        preferred_candidates=tuple(by_key) or tuple(by_id),
    )


def _voter(voter_id: int, directory_id: bytes) -> ReplicaKey | None:
    return None if voter_id < 0 else ReplicaKey(voter_id, directory_id)


# Answers about elections and epochs


def _vote_response(response: VoteReply, where: Where) -> quorum.VoteResponse:
    if is_for_all(response):
        return quorum.VoteResponse(error_code=response.error, topics=())
    partition = quorum.VotedPartition(
        partition_index=INDEX,
        error_code=response.error,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
        vote_granted=response.vote_granted,
    )
    topic = quorum.VotedTopic(topic_name=TOPIC, partitions=(partition,))
    return quorum.VoteResponse(topics=(topic,), node_endpoints=_leader_endpoints(where))


def _epoch_response(
    response: BeginEpochReply | EndEpochReply, where: Where
) -> quorum.BeginQuorumEpochResponse | quorum.EndQuorumEpochResponse:
    is_begin = isinstance(response, BeginEpochReply)
    kind = quorum.BeginQuorumEpochResponse if is_begin else quorum.EndQuorumEpochResponse
    if is_for_all(response):
        return kind(error_code=response.error, topics=())
    partition = quorum.EpochPartition(
        partition_index=INDEX,
        error_code=response.error,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
    )
    topic = quorum.EpochTopic(topic_name=TOPIC, partitions=(partition,))
    return kind(topics=(topic,), node_endpoints=_leader_endpoints(where))


def _leader_endpoints(where: Where) -> tuple[quorum.LeaderEndpoint, ...]:
    return () if where is None else (quorum.LeaderEndpoint(node_id=where[1], host=where[0].host, port=where[0].port),)


def _vote_answer(message: quorum.VoteResponse, for_all: ErrorCode) -> VoteReply:
    if for_all is not ErrorCode.NONE:
        return VoteReply(error=for_all)
    part = only_answered(message.topics, _named_here)
    known = leadership(part.leader_id, part.leader_epoch)
    return VoteReply(error=known_code(part.error_code), vote_granted=part.vote_granted, **known)


def _epoch_answer(topics: Sequence[quorum.EpochTopic], for_all: ErrorCode) -> Mapping[str, Any]:
    if for_all is not ErrorCode.NONE:
        return {"error": for_all}
    part = only_answered(topics, _named_here)
    return {"error": known_code(part.error_code), **leadership(part.leader_id, part.leader_epoch)}


def _named_here(topic: Any, partition: Any) -> bool:
    return bool(topic.topic_name == TOPIC and partition.partition_index == INDEX)
