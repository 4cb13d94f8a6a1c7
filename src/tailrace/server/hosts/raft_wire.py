"""What replicas of the metadata log say to each other, as Kafka's messages: `raft.rpc` to the wire and back.

A message is made in the fullest form; encoding leaves out what an older version does not have. `oldest_version` says
which version a request needs at least so that nothing of weight is lost. The log has one partition, so one stands in
each message; FetchSnapshot alone may name others, which are not served.

What comes from outside is checked here as far as its form goes: the topic, the partition, and in answers ids and
epochs. Whether values make sense (offsets, epochs, the cluster) is for the machine to judge, which answers with the
code.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, assert_never

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.protocol.messages import fetch, fetch_snapshot, quorum
from tailrace.raft.rpc import (
    NOBODY,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LogEnd,
    QuorumDescription,
    Request,
    Response,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from tailrace.raft.voters import Endpoint, ReplicaKey
from tailrace.server.hosts.metadata_directory import METADATA_PARTITION
from tailrace.server.ports import QuorumRequest, QuorumResponse

TOPIC: Final = METADATA_PARTITION.topic
INDEX: Final = METADATA_PARTITION.partition


def oldest_version(request: Request) -> int:
    """The lowest version that says all that matters: directories, and that a vote is only asked about."""
    match request:
        case VoteRequest():
            keys = (request.candidate, *([request.voter] if request.voter is not None else ()))
            return 2 if request.pre_vote else int(_any_directory(keys))
        case BeginQuorumEpochRequest():
            return int(request.voter is not None and _any_directory((request.voter,)))
        case EndQuorumEpochRequest():
            return int(_any_directory(request.preferred_candidates))
        case FetchRequest():
            return 17 if _any_directory((request.replica,)) else 12
        case FetchSnapshotRequest():
            return int(_any_directory((request.replica,)))
    assert_never(request)


def _any_directory(keys: Sequence[ReplicaKey]) -> bool:
    return any(any(key.directory_id) for key in keys)


# Requests


def request_to_wire(request: Request, *, listeners: Sequence[Endpoint] = ()) -> QuorumRequest:
    """The message that asks this. `listeners` are the sender's, for those who may be led by it."""
    match request:
        case VoteRequest():
            return _vote(request)
        case BeginQuorumEpochRequest():
            return _begin(request, _named(listeners))
        case EndQuorumEpochRequest():
            return _end(request, _named(listeners))
        case FetchRequest():
            return _fetch(request)
        case FetchSnapshotRequest():
            return _fetch_snapshot(request)
    assert_never(request)


def _named(listeners: Sequence[Endpoint]) -> tuple[quorum.NamedEndpoint, ...]:
    return tuple(quorum.NamedEndpoint(name=one.name, host=one.host, port=one.port) for one in listeners)


def _vote(request: VoteRequest) -> quorum.VoteRequest:
    voter = request.voter or ReplicaKey(NOBODY)
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


def _begin(
    request: BeginQuorumEpochRequest, listeners: tuple[quorum.NamedEndpoint, ...]
) -> quorum.BeginQuorumEpochRequest:
    voter = request.voter or ReplicaKey(NOBODY)
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


def _end(request: EndQuorumEpochRequest, listeners: tuple[quorum.NamedEndpoint, ...]) -> quorum.EndQuorumEpochRequest:
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


def _fetch(request: FetchRequest) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(
        partition=INDEX,
        current_leader_epoch=request.leader_epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        partition_max_bytes=request.max_bytes,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=request.cluster_id,
        replica_id=request.replica.id,
        replica_state=fetch.ReplicaState(replica_id=request.replica.id),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=request.max_bytes,
        topics=(fetch.FetchTopic(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(partition,)),),
    )


def _fetch_snapshot(request: FetchSnapshotRequest) -> fetch_snapshot.FetchSnapshotRequest:
    position = fetch_snapshot.SnapshotPosition(
        partition=INDEX,
        current_leader_epoch=request.leader_epoch,
        snapshot_id=_wire_id(request.snapshot_id),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    topic = fetch_snapshot.SnapshotTopic(name=TOPIC, partitions=(position,))
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=request.cluster_id, replica_id=request.replica.id, max_bytes=request.max_bytes, topics=(topic,)
    )


def _wire_id(snapshot_id: SnapshotId | None) -> fetch.SnapshotId:
    if snapshot_id is None:
        return fetch.SnapshotId()
    return fetch.SnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch)


def request_from_wire(message: QuorumRequest) -> Request:
    """What a message asks of this log.

    Raises INVALID_REQUEST if it asks for another partition or for several, as Kafka does, and
    UNKNOWN_TOPIC_OR_PARTITION for snapshots of other partitions only.
    """
    match message:
        case quorum.VoteRequest():
            return _vote_asked(message)
        case quorum.BeginQuorumEpochRequest():
            part = _only(message.topics, "topic_name", "partition_index")
            return BeginQuorumEpochRequest(
                cluster_id=message.cluster_id,
                leader_id=part.leader_id,
                leader_epoch=part.leader_epoch,
                voter=_voter(message.voter_id, part.voter_directory_id),
            )
        case quorum.EndQuorumEpochRequest():
            part = _only(message.topics, "topic_name", "partition_index")
            by_id = (ReplicaKey(one) for one in part.preferred_successors)
            by_key = (ReplicaKey(one.candidate_id, one.candidate_directory_id) for one in part.preferred_candidates)
            return EndQuorumEpochRequest(
                cluster_id=message.cluster_id,
                leader_id=part.leader_id,
                leader_epoch=part.leader_epoch,
                preferred_candidates=tuple(by_key) or tuple(by_id),
            )
        case fetch.FetchRequest():
            return _fetch_asked(message)
        case fetch_snapshot.FetchSnapshotRequest():
            return _fetch_snapshot_asked(message)
    assert_never(message)


def _voter(voter_id: int, directory_id: bytes) -> ReplicaKey | None:
    return None if voter_id < 0 else ReplicaKey(voter_id, directory_id)


def _only(topics: Sequence[Any], topic_name: str, partition_name: str) -> Any:
    """The one partition that a request may name."""
    if len(topics) == 1 and getattr(topics[0], topic_name) == TOPIC and len(topics[0].partitions) == 1:
        found = topics[0].partitions[0]
        if getattr(found, partition_name) == INDEX:
            return found
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"asked for anything else than {METADATA_PARTITION}")


def _vote_asked(message: quorum.VoteRequest) -> VoteRequest:
    part = _only(message.topics, "topic_name", "partition_index")
    return VoteRequest(
        cluster_id=message.cluster_id,
        candidate_epoch=part.replica_epoch,
        candidate=ReplicaKey(part.replica_id, part.replica_directory_id),
        voter=_voter(message.voter_id, part.voter_directory_id),
        last_epoch=part.last_offset_epoch,
        last_offset=part.last_offset,
        pre_vote=part.pre_vote,
    )


def is_of_metadata(message: fetch.FetchRequest) -> bool:
    """Whether a Fetch is for the metadata log: by its name, or by its id."""
    topics = message.topics
    return len(topics) == 1 and (topics[0].topic == TOPIC or topics[0].topic_id == METADATA_TOPIC_ID)


def _fetch_asked(message: fetch.FetchRequest) -> FetchRequest:
    if not is_of_metadata(message) or len(message.topics[0].partitions) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"asked for anything else than {METADATA_PARTITION}")
    part = message.topics[0].partitions[0]
    if part.partition != INDEX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{TOPIC} has no partition {part.partition}")
    replica_id = message.replica_state.replica_id if message.replica_state.replica_id >= 0 else message.replica_id
    return FetchRequest(
        cluster_id=message.cluster_id,
        replica=ReplicaKey(replica_id, part.replica_directory_id),
        leader_epoch=part.current_leader_epoch,
        fetch_offset=part.fetch_offset,
        last_fetched_epoch=part.last_fetched_epoch,
        max_wait_ms=message.max_wait_ms,
        max_bytes=max(0, min(message.max_bytes, part.partition_max_bytes)),
        high_watermark=part.high_watermark,
    )


def _fetch_snapshot_asked(message: fetch_snapshot.FetchSnapshotRequest) -> FetchSnapshotRequest:
    wanted = [part for topic in message.topics if topic.name == TOPIC for part in topic.partitions]
    wanted = [part for part in wanted if part.partition == INDEX]
    if len(wanted) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{METADATA_PARTITION} is asked for {len(wanted)} times")
    if not wanted:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"only {METADATA_PARTITION} has snapshots")
    (part,) = wanted
    return FetchSnapshotRequest(
        cluster_id=message.cluster_id,
        replica=ReplicaKey(message.replica_id, part.replica_directory_id),
        leader_epoch=part.current_leader_epoch,
        snapshot_id=SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch),
        position=part.position,
        max_bytes=message.max_bytes,
    )


# Answers

Answered = VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse | FetchResponse | FetchSnapshotResponse
"""All answers but a description, which is no replica's business."""


def response_to_wire(response: Response, request: QuorumRequest, *, leader: Endpoint | None = None) -> QuorumResponse:
    """The message that answers this. `leader` is where the leader named in it listens, if that is known."""
    where = (leader, response.leader_id) if leader is not None and response.leader_id >= 0 else None
    match response:
        case VoteResponse():
            return _voted(response, where)
        case BeginQuorumEpochResponse() | EndQuorumEpochResponse():
            return _epoch_known(response, where)
        case FetchResponse():
            return _fetched(response, where)
        case FetchSnapshotResponse():
            assert isinstance(request, fetch_snapshot.FetchSnapshotRequest), f"not an answer to {request}"
            return _snapshot_fetched(response, request, where)
        case QuorumDescription():
            raise AssertionError("a description is not for replicas")
    assert_never(response)


_Where = tuple[Endpoint, int] | None


def _is_for_all(response: Response) -> bool:
    """Whether the error concerns the request and not one partition."""
    return response.error is ErrorCode.INCONSISTENT_CLUSTER_ID


def _leader_endpoints(where: _Where) -> tuple[quorum.LeaderEndpoint, ...]:
    return () if where is None else (quorum.LeaderEndpoint(node_id=where[1], host=where[0].host, port=where[0].port),)


def _voted(response: VoteResponse, where: _Where) -> quorum.VoteResponse:
    if _is_for_all(response):
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


def _epoch_known(
    response: BeginQuorumEpochResponse | EndQuorumEpochResponse, where: _Where
) -> quorum.BeginQuorumEpochResponse | quorum.EndQuorumEpochResponse:
    is_begin = isinstance(response, BeginQuorumEpochResponse)
    kind = quorum.BeginQuorumEpochResponse if is_begin else quorum.EndQuorumEpochResponse
    if _is_for_all(response):
        return kind(error_code=response.error, topics=())
    partition = quorum.EpochPartition(
        partition_index=INDEX,
        error_code=response.error,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
    )
    topic = quorum.EpochTopic(topic_name=TOPIC, partitions=(partition,))
    return kind(topics=(topic,), node_endpoints=_leader_endpoints(where))


def _fetched(response: FetchResponse, where: _Where) -> fetch.FetchResponse:
    if _is_for_all(response):
        return fetch.FetchResponse(error_code=response.error, responses=())
    diverging = response.diverging
    records = response.records
    assert records is None or isinstance(records, bytes | bytearray | memoryview), f"not records: {type(records)}"
    partition = fetch.PartitionData(
        partition_index=INDEX,
        error_code=response.error,
        high_watermark=response.high_watermark,
        last_stable_offset=response.high_watermark,
        log_start_offset=response.log_start_offset,
        diverging_epoch=fetch.EpochEndOffset()
        if diverging is None
        else fetch.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.offset),
        current_leader=fetch.LeaderIdAndEpoch(leader_id=response.leader_id, leader_epoch=response.leader_epoch),
        snapshot_id=_wire_id(response.snapshot_id),
        aborted_transactions=None,
        records=b"" if records is None else records,
    )
    topic = fetch.FetchableTopicResponse(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(partition,))
    endpoints = () if where is None else (fetch.NodeEndpoint(node_id=where[1], host=where[0].host, port=where[0].port),)
    return fetch.FetchResponse(responses=(topic,), node_endpoints=endpoints)


def _snapshot_fetched(
    response: FetchSnapshotResponse, request: fetch_snapshot.FetchSnapshotRequest, where: _Where
) -> fetch_snapshot.FetchSnapshotResponse:
    if _is_for_all(response):
        return fetch_snapshot.FetchSnapshotResponse(error_code=response.error, topics=())
    part = fetch_snapshot.SnapshotPart(
        index=INDEX,
        error_code=response.error,
        snapshot_id=_wire_id(response.snapshot_id),
        current_leader=fetch_snapshot.SnapshotLeader(leader_id=response.leader_id, leader_epoch=response.leader_epoch),
        size=response.size,
        position=response.position,
        unaligned_records=response.data,
    )
    topics = tuple(
        fetch_snapshot.SnapshotPartTopic(
            name=topic.name,
            partitions=tuple(
                part if (topic.name, one.partition) == METADATA_PARTITION else unknown_snapshot_part(one)
                for one in topic.partitions
            ),
        )
        for topic in request.topics
    )
    endpoints = (
        ()
        if where is None
        else (fetch_snapshot.SnapshotLeaderEndpoint(node_id=where[1], host=where[0].host, port=where[0].port),)
    )
    return fetch_snapshot.FetchSnapshotResponse(topics=topics, node_endpoints=endpoints)


def unknown_snapshot_part(
    asked: fetch_snapshot.SnapshotPosition, error: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
) -> fetch_snapshot.SnapshotPart:
    """The answer for a partition that has no snapshots."""
    return fetch_snapshot.SnapshotPart(
        index=asked.partition,
        error_code=error,
        snapshot_id=asked.snapshot_id,
        size=0,
        position=asked.position,
        unaligned_records=b"",
    )


def response_from_wire(message: QuorumResponse) -> Answered:
    """What an answer says of this log. Raises MalformedMessage if it is no answer about this log alone."""
    for_all = ErrorCode.NONE if message.error_code == 0 else _code(message.error_code)
    match message:
        case quorum.VoteResponse():
            return _vote_answer(message, for_all)
        case quorum.BeginQuorumEpochResponse():
            return BeginQuorumEpochResponse(**_epoch_answer(message.topics, for_all))
        case quorum.EndQuorumEpochResponse():
            return EndQuorumEpochResponse(**_epoch_answer(message.topics, for_all))
        case fetch.FetchResponse():
            return _fetch_answer(message, for_all)
        case fetch_snapshot.FetchSnapshotResponse():
            return _snapshot_answer(message, for_all)
    assert_never(message)


def _code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _answered(topics: Sequence[Any], is_here: Callable[[Any, Any], bool]) -> Any:
    """The one partition that an answer is about."""
    if len(topics) == 1 and len(topics[0].partitions) == 1 and is_here(topics[0], topics[0].partitions[0]):
        return topics[0].partitions[0]
    raise MalformedMessage(f"an answer that is not about {METADATA_PARTITION} alone")


def _leadership(leader_id: int, leader_epoch: int) -> Mapping[str, int]:
    if leader_id < NOBODY or leader_epoch < -1:
        raise MalformedMessage(f"an answer that names leader {leader_id} of epoch {leader_epoch}")
    return {"leader_id": leader_id, "leader_epoch": leader_epoch}


def _named_here(topic: Any, partition: Any) -> bool:
    return bool(topic.topic_name == TOPIC and partition.partition_index == INDEX)


def _vote_answer(message: quorum.VoteResponse, for_all: ErrorCode) -> VoteResponse:
    if for_all is not ErrorCode.NONE:
        return VoteResponse(error=for_all)
    part = _answered(message.topics, _named_here)
    known = _leadership(part.leader_id, part.leader_epoch)
    return VoteResponse(error=_code(part.error_code), vote_granted=part.vote_granted, **known)


def _epoch_answer(topics: Sequence[quorum.EpochTopic], for_all: ErrorCode) -> Mapping[str, Any]:
    if for_all is not ErrorCode.NONE:
        return {"error": for_all}
    part = _answered(topics, _named_here)
    return {"error": _code(part.error_code), **_leadership(part.leader_id, part.leader_epoch)}


def _fetch_answer(message: fetch.FetchResponse, for_all: ErrorCode) -> FetchResponse:
    if for_all is not ErrorCode.NONE:
        return FetchResponse(error=for_all)
    part = _answered(
        message.responses,
        lambda topic, one: (
            (topic.topic == TOPIC or topic.topic_id == METADATA_TOPIC_ID) and one.partition_index == INDEX
        ),
    )
    diverging, snapshot_id = part.diverging_epoch, part.snapshot_id
    return FetchResponse(
        error=_code(part.error_code),
        high_watermark=part.high_watermark,
        log_start_offset=part.log_start_offset,
        diverging=LogEnd(diverging.epoch, diverging.end_offset)
        if diverging.epoch >= 0 and diverging.end_offset >= 0
        else None,
        snapshot_id=_known_id(snapshot_id),
        records=part.records or None,
        **_leadership(part.current_leader.leader_id, part.current_leader.leader_epoch),
    )


def _known_id(snapshot_id: fetch.SnapshotId) -> SnapshotId | None:
    if snapshot_id.end_offset < 0 or snapshot_id.epoch < 0:
        return None
    return SnapshotId(snapshot_id.end_offset, snapshot_id.epoch)


def _snapshot_answer(message: fetch_snapshot.FetchSnapshotResponse, for_all: ErrorCode) -> FetchSnapshotResponse:
    if for_all is not ErrorCode.NONE:
        return FetchSnapshotResponse(error=for_all)
    part = _answered(message.topics, lambda topic, one: (topic.name, one.index) == METADATA_PARTITION)
    if part.size < 0 or part.position < 0:
        raise MalformedMessage(f"bytes of a snapshot at {part.position} of {part.size}")
    return FetchSnapshotResponse(
        error=_code(part.error_code),
        snapshot_id=_known_id(part.snapshot_id),
        size=part.size,
        position=part.position,
        data=part.unaligned_records,
        **_leadership(part.current_leader.leader_id, part.current_leader.leader_epoch),
    )
