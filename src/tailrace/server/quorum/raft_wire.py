"""Messages between replicas of the metadata log, as Kafka's: `raft.rpc` to the wire and back.

A message is made in the fullest form; encoding leaves out what an older version does not have. `oldest_version` says
which version a request needs at least so that nothing of weight is lost. The log has one partition, so one stands in
each message. FetchSnapshot alone may name others, which have no snapshots, and several snapshots of this one.

The form of messages from outside is checked (`metadata_partition_wire`). Whether values make sense
(offsets, epochs, the cluster) is for the machine to judge, which answers with the code. It enters any newer
epoch, so an epoch that leaves none to come is refused here; those of Fetch and FetchSnapshot are only compared.
"""

from collections.abc import Sequence
from typing import assert_never

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages import fetch, quorum
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
from tailrace.server.quorum import elections_wire as elections
from tailrace.server.quorum import fetches_wire as fetches
from tailrace.server.quorum.metadata_partition_wire import Where, known_code

__all__ = [
    "oldest_version",
    "request_from_wire",
    "request_to_wire",
    "response_for_snapshots",
    "response_from_wire",
    "response_to_wire",
    "snapshots_from_wire",
]


def oldest_version(request: Request) -> int:
    """The lowest version that says all that matters: directories, and that a vote is only asked about."""
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


def request_to_wire(request: Request, *, listeners: Sequence[VoterListener] = ()) -> QuorumRequest:
    """The message of this request. `listeners` are the sender's, for its followers."""
    match request:
        case Vote():
            return elections.vote_request(request)
        case BeginEpoch():
            return elections.begin_request(request, elections.named(listeners))
        case EndEpoch():
            return elections.end_request(request, elections.named(listeners))
        case FetchRecords():
            return fetches.fetch_request(request)
        case FetchSnapshot():
            return fetches.fetch_snapshot_request(request)
    assert_never(request)


def request_from_wire(message: QuorumRequest) -> Request:
    """The request for this log in a message.

    Raises INVALID_REQUEST if it asks for another partition or for several, as Kafka does, or names an epoch above
    `NEWEST_EPOCH`, and UNKNOWN_TOPIC_OR_PARTITION for snapshots of other partitions only.
    """
    match message:
        case quorum.VoteRequest():
            return elections.vote_asked(message)
        case quorum.BeginQuorumEpochRequest():
            return elections.begin_asked(message)
        case quorum.EndQuorumEpochRequest():
            return elections.end_asked(message)
        case fetch.FetchRequest():
            return fetches.fetch_asked(message)
        case quorum.FetchSnapshotRequest():
            asked = snapshots_from_wire(message)
            if len(asked) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{len(asked)} snapshots are asked for at once")
            return asked[0]
    assert_never(message)


def snapshots_from_wire(message: quorum.FetchSnapshotRequest) -> Sequence[FetchSnapshot]:
    """The requests that a FetchSnapshot makes of this log, one for each snapshot. Raises as `request_from_wire`."""
    return fetches.fetch_snapshots_asked(message)


def response_for_snapshots(
    responses: Sequence[FetchSnapshotReply],
    request: quorum.FetchSnapshotRequest,
    *,
    leader: VoterListener | None = None,
) -> quorum.FetchSnapshotResponse:
    """The message with these answers to what `snapshots_from_wire` has made of the request, in its order."""
    return fetches.fetch_snapshot_response(responses, request, _where(leader, responses[0].leader_id))


Answered = VoteReply | BeginEpochReply | EndEpochReply | FetchRecordsReply | FetchSnapshotReply
"""All answers but a description, which is no replica's business."""


def response_to_wire(
    response: Response, request: QuorumRequest, *, leader: VoterListener | None = None
) -> QuorumResponse:
    """The message that answers this. `leader` is where the leader named in it listens, if that is known."""
    where = _where(leader, response.leader_id)
    match response:
        case VoteReply():
            return elections.vote_response(response, where)
        case BeginEpochReply() | EndEpochReply():
            return elections.epoch_response(response, where)
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
    """The answer for this log in a message. Raises MalformedMessage if it is no answer about this log alone."""
    for_all = ErrorCode.NONE if message.error_code == 0 else known_code(message.error_code)
    match message:
        case quorum.VoteResponse():
            return elections.vote_answer(message, for_all)
        case quorum.BeginQuorumEpochResponse():
            return BeginEpochReply(**elections.epoch_answer(message.topics, for_all))
        case quorum.EndQuorumEpochResponse():
            return EndEpochReply(**elections.epoch_answer(message.topics, for_all))
        case fetch.FetchResponse():
            return fetches.fetch_answer(message, for_all)
        case quorum.FetchSnapshotResponse():
            return fetches.fetch_snapshot_answer(message, for_all)
    assert_never(message)
