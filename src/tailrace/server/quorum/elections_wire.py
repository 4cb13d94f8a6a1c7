"""Votes, and the beginning and the end of a leader's epoch, as Kafka's messages: Vote (52), BeginQuorumEpoch (53),
EndQuorumEpoch (54). For `raft_wire`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages import quorum
from tailrace.raft.rpc import (
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    EndEpochReply,
    Vote,
    VoteReply,
)
from tailrace.raft.voters import ReplicaKey, VoterListener
from tailrace.server.quorum.metadata_partition_wire import (
    INDEX,
    TOPIC,
    Where,
    answered,
    asked_epoch,
    is_for_all,
    known_code,
    leadership,
    only,
)

Listeners = tuple[quorum.NamedEndpoint, ...]


def named(listeners: Sequence[VoterListener]) -> Listeners:
    """The sender's listeners, for its followers."""
    return tuple(quorum.NamedEndpoint(name=one.name, host=one.host, port=one.port) for one in listeners)


# Requests


def vote_request(request: Vote) -> quorum.VoteRequest:
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


def begin_request(request: BeginEpoch, listeners: Listeners) -> quorum.BeginQuorumEpochRequest:
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


def end_request(request: EndEpoch, listeners: Listeners) -> quorum.EndQuorumEpochRequest:
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


def vote_asked(message: quorum.VoteRequest) -> Vote:
    part = only(message.topics, "topic_name", "partition_index")
    return Vote(
        cluster_id=message.cluster_id,
        candidate_epoch=asked_epoch(part.replica_epoch),
        candidate=ReplicaKey(part.replica_id, part.replica_directory_id),
        voter=_voter(message.voter_id, part.voter_directory_id),
        last_epoch=part.last_offset_epoch,
        last_offset=part.last_offset,
        pre_vote=part.pre_vote,
    )


def begin_asked(message: quorum.BeginQuorumEpochRequest) -> BeginEpoch:
    part = only(message.topics, "topic_name", "partition_index")
    return BeginEpoch(
        cluster_id=message.cluster_id,
        leader_id=part.leader_id,
        leader_epoch=asked_epoch(part.leader_epoch),
        voter=_voter(message.voter_id, part.voter_directory_id),
    )


def end_asked(message: quorum.EndQuorumEpochRequest) -> EndEpoch:
    part = only(message.topics, "topic_name", "partition_index")
    by_id = (ReplicaKey(one) for one in part.preferred_successors)
    by_key = (ReplicaKey(one.candidate_id, one.candidate_directory_id) for one in part.preferred_candidates)
    return EndEpoch(
        cluster_id=message.cluster_id,
        leader_id=part.leader_id,
        leader_epoch=asked_epoch(part.leader_epoch),
        preferred_candidates=tuple(by_key) or tuple(by_id),
    )


def _voter(voter_id: int, directory_id: bytes) -> ReplicaKey | None:
    return None if voter_id < 0 else ReplicaKey(voter_id, directory_id)


# Answers


def vote_response(response: VoteReply, where: Where) -> quorum.VoteResponse:
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


def epoch_response(
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


def vote_answer(message: quorum.VoteResponse, for_all: ErrorCode) -> VoteReply:
    if for_all is not ErrorCode.NONE:
        return VoteReply(error=for_all)
    part = answered(message.topics, _named_here)
    known = leadership(part.leader_id, part.leader_epoch)
    return VoteReply(error=known_code(part.error_code), vote_granted=part.vote_granted, **known)


def epoch_answer(topics: Sequence[quorum.EpochTopic], for_all: ErrorCode) -> Mapping[str, Any]:
    if for_all is not ErrorCode.NONE:
        return {"error": for_all}
    part = answered(topics, _named_here)
    return {"error": known_code(part.error_code), **leadership(part.leader_id, part.leader_epoch)}


def _named_here(topic: Any, partition: Any) -> bool:
    return bool(topic.topic_name == TOPIC and partition.partition_index == INDEX)
