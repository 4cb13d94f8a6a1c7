"""Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), FetchSnapshot (59), and Fetch (1) of the metadata log.

What replicas of the metadata log ask of each other (KIP-595, KIP-630, KIP-853). Answered when the replica says so: a
Fetch may wait for records, a Vote for the disk. A request about anything else is refused before the replica sees it.
"""

from tailrace.raft.rpc import Response
from tailrace.server.context import RequestContext
from tailrace.server.hosts.quorum import QuorumHost
from tailrace.server.hosts.raft_wire import request_from_wire, response_to_wire
from tailrace.server.ports import QuorumRequest


class RaftRpcHandler:
    """Hands the requests of other replicas to this node's."""

    def __init__(self, host: QuorumHost) -> None:
        self._host = host

    def handle(self, request: QuorumRequest, context: RequestContext) -> None:
        """Raises KafkaError for a request about anything else than the metadata log."""
        asked = request_from_wire(request)
        listener_name = context.connection.listener_name

        def answer(response: Response) -> None:
            leader = self._host.leader_endpoint(listener_name, response.leader_id)
            context.respond(response_to_wire(response, request, leader=leader))

        self._host.receive(asked, answer)
