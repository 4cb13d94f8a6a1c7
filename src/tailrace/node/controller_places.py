"""The addresses at which this node looks for a controller, and the address of the leader that the node has found.

A controller moves, and its address in the log, in the settings or in answers of other nodes may be outdated. At the old
address there may be no process, another controller, or a controller of another cluster.

1. Only requests of this node's replica of the metadata log look for a node: these requests name their receiver, and an
   answer shows its sender. If there is no answer or another sender, the next address is tried; a late answer from an
   address that was left changes nothing.
2. All other requests (registrations, heartbeats, forwarded requests) go only to an address at which the leader has
   answered the replica: an answer of a foreign node about this broker must not end the broker.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tailrace.model.errors import ErrorCode, MalformedMessage
from tailrace.net.connection import Address
from tailrace.raft.rpc import (
    NO_LEADER,
    BeginEpochReply,
    FetchRecordsReply,
    FetchSnapshotReply,
    VoteReply,
)
from tailrace.raft.voters import VoterSet
from tailrace.server.ports import QuorumResponse
from tailrace.server.quorum.raft_wire import Answered, response_from_wire

_FIRST_PLACE: Final = -2
"""The name of the first address in `controller.quorum.bootstrap.servers`; the name of each further address is lower by
1."""


class ControllerPlaces:
    """The addresses of controllers, by their ids; and of places of which only the address is known, by names below
    -1."""

    def __init__(
        self,
        *,
        node_id: int,
        founders: Mapping[int, Address],
        places: Sequence[Address],
        voters: Callable[[], VoterSet | None],
    ) -> None:
        """`founders` and `places` come from this node's settings; `voters` returns the voters in this node's log."""
        self._node_id = node_id
        self._founders = founders
        self._places = tuple(places)
        self._voters = voters
        self._named: dict[int, Address] = {}
        """The address of the leader that an answer has named (KIP-853)."""
        self._tried: dict[int, Address] = {}
        """The address that is tried for a node, if it is not the first of its addresses."""
        self._found: dict[int, Address] = {}
        """The address at which a node has answered as the leader."""

    @property
    def names(self) -> tuple[int, ...]:
        """The controllers in this node's settings."""
        return (
            *(node_id for node_id in self._founders if node_id != self._node_id),
            *(_FIRST_PLACE - index for index in range(len(self._places))),
        )

    def address_of(self, node_id: int) -> Address | None:
        """The address to look for a controller: the address in the log, in the settings, or in an answer of another
        node; at first the first known address, then the next address if the controller is not found there."""
        if node_id <= _FIRST_PLACE:
            return self._places[_FIRST_PLACE - node_id]
        places = self._places_of(node_id)
        tried = self._tried.get(node_id)
        if tried in places:
            return tried
        return places[0] if places else None

    def is_present(self, node_id: int, address: Address) -> bool:
        """Whether this is the present address of the node: the address in the log, else the address in the settings."""
        return self._places_of(node_id)[:1] == [address]

    def found(self, node_id: int) -> Address | None:
        """The address at which this node last answered as the leader; None if it never has, or if another node has
        answered there since."""
        return self._found.get(node_id)

    def on_response(self, node_id: int, asked_at: Address | None, reply: QuorumResponse | None) -> None:
        """The answer to a request of the log's replica to this node, at this address; None without an answer."""
        for leader in () if reply is None else reply.node_endpoints:
            self._named = {leader.node_id: Address(leader.host, leader.port)}
        if node_id < 0 or asked_at is None:
            return
        response = _understood(reply)
        if response is not None and _is_the_leader(node_id, response):
            self._found[node_id] = asked_at
        elif reply is None or (response is not None and _is_from_another_node(node_id, response)):
            if reply is not None and self._found.get(node_id) == asked_at:
                del self._found[node_id]
            self._leave(node_id, asked_at)

    def _leave(self, node_id: int, asked_at: Address) -> None:
        places = self._places_of(node_id)
        if self.address_of(node_id) == asked_at and asked_at in places:
            self._tried[node_id] = places[(places.index(asked_at) + 1) % len(places)]

    def _places_of(self, node_id: int) -> list[Address]:
        voters = self._voters()
        voter = None if voters is None else voters.find(node_id)
        endpoints = voter.endpoints[:1] if voter is not None else ()
        stated = [Address(endpoint.host, endpoint.port) for endpoint in endpoints]
        known = [*stated, self._founders.get(node_id), self._named.get(node_id)]
        return list(dict.fromkeys(place for place in known if place is not None))


def _understood(reply: QuorumResponse | None) -> Answered | None:
    try:
        return None if reply is None else response_from_wire(reply)
    except MalformedMessage:
        return None


def _is_the_leader(node_id: int, response: Answered) -> bool:
    """Whether this node has answered as the leader: only the leader serves a Fetch."""
    is_served = isinstance(response, FetchRecordsReply | FetchSnapshotReply) and response.error is ErrorCode.NONE
    return is_served and response.leader_id == node_id


def _is_from_another_node(node_id: int, response: Answered) -> bool:
    """Whether the answer shows that another node has sent the answer."""
    error, leader_id = response.error, response.leader_id
    if error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        return True
    match response:
        case VoteReply() | BeginEpochReply():
            return error is ErrorCode.INVALID_VOTER_KEY
        case FetchRecordsReply() | FetchSnapshotReply() if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return leader_id == node_id  # a leader does not name itself as another leader
        case FetchRecordsReply() | FetchSnapshotReply() if error is ErrorCode.NONE:
            return leader_id not in (NO_LEADER, node_id)
        case _:
            return False
