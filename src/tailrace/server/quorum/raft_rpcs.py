"""Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), FetchSnapshot (59), and Fetch (1) of the metadata log.

Requests between replicas of the metadata log (KIP-595, KIP-630, KIP-853). Answered when the replica says so: a
Fetch may wait for records, a Vote for the disk. A request about anything else is refused before the replica sees it.

A FetchSnapshot may ask for several snapshots: "the leader will evenly distribute the number of bytes sent across all of
the partitions" (KIP-630).
"""

from dataclasses import replace
from functools import partial

from tailrace.protocol.messages.quorum import FetchSnapshotRequest
from tailrace.raft.rpc import FetchSnapshotReply, Response
from tailrace.server.context import RequestContext
from tailrace.server.ports import QuorumRequest
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.raft_wire import (
    request_from_wire,
    response_for_snapshots,
    response_to_wire,
    snapshots_from_wire,
)


class RaftRpcHandler:
    """Hands the requests of other replicas to this node's."""

    def __init__(self, host: QuorumHost) -> None:
        self._host = host

    def handle(self, request: QuorumRequest, context: RequestContext) -> None:
        """Raises KafkaError for a request about anything else than the metadata log."""
        if isinstance(request, FetchSnapshotRequest):
            self._send_snapshots(request, context)
            return
        asked = request_from_wire(request)
        listener_name = context.connection.listener_name

        def answer(response: Response) -> None:
            leader = self._host.leader_endpoint(listener_name, response.leader_id)
            context.respond(response_to_wire(response, request, leader=leader))

        self._host.receive(asked, answer)

    def _send_snapshots(self, request: FetchSnapshotRequest, context: RequestContext) -> None:
        asked = snapshots_from_wire(request)
        shares = self._host.node.snapshot_shares([(one.snapshot_id, one.position) for one in asked], request.max_bytes)
        listener_name = context.connection.listener_name
        answers: dict[int, FetchSnapshotReply] = {}

        def answered(place: int, response: Response) -> None:
            assert isinstance(response, FetchSnapshotReply), f"not an answer to a FetchSnapshot: {response}"
            answers[place] = response
            if len(answers) == len(asked):
                in_order = [answers[place] for place in range(len(asked))]
                leader = self._host.leader_endpoint(listener_name, in_order[0].leader_id)
                context.respond(response_for_snapshots(in_order, request, leader=leader))

        for place, (one, share) in enumerate(zip(asked, shares, strict=True)):
            self._host.receive(replace(one, max_bytes=share), partial(answered, place))
