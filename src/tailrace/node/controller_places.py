"""Where this node looks for a controller, and where it has found the leader.

A controller moves, and what says where it is may be of yesterday: the log, the settings, the word of others. At its old
address there may be nobody, another controller, or one of another cluster.

1. Only the requests of the metadata log's own replica look for a node: they say whom they are meant for, and an answer
   shows who gave it. If that is nobody or somebody else, the next place is tried; an answer to a question that was put
   to a place left since moves nothing.
2. Everything else (registrations, heartbeats, what is passed on) goes where the leader has answered the replica, and
   nowhere before that: a stranger's word about this broker must not end it.
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
"""The name of the first of `controller.quorum.bootstrap.servers`; the next is one below."""


class ControllerPlaces:
    """Controllers by their ids, and places of which only the address is known by names below -1."""

    def __init__(
        self,
        *,
        node_id: int,
        founders: Mapping[int, Address],
        places: Sequence[Address],
        voters: Callable[[], VoterSet | None],
    ) -> None:
        """`founders` and `places` are what this node was told; `voters` says what its log states by now."""
        self._node_id = node_id
        self._founders = founders
        self._places = tuple(places)
        self._voters = voters
        self._said: dict[int, Address] = {}
        """Where the leader is that an answer has named (KIP-853)."""
        self._tried: dict[int, Address] = {}
        """Which of its places a node is looked for at, if not at the first."""
        self._found: dict[int, Address] = {}
        """Where a node has answered as the leader."""

    @property
    def names(self) -> tuple[int, ...]:
        """Whom this node was told to ask."""
        return (
            *(node_id for node_id in self._founders if node_id != self._node_id),
            *(_FIRST_PLACE - index for index in range(len(self._places))),
        )

    def address_of(self, node_id: int) -> Address | None:
        """Where to look for a controller: where the log says, where this node was told, or where another one has said;
        the first of these until it is not found there."""
        if node_id <= _FIRST_PLACE:
            return self._places[_FIRST_PLACE - node_id]
        places = self._places_of(node_id)
        tried = self._tried.get(node_id)
        if tried in places:
            return tried
        return places[0] if places else None

    def found(self, node_id: int) -> Address | None:
        """Where this node has last answered as the leader; None if it never has, or somebody else answers there."""
        return self._found.get(node_id)

    def answered(self, node_id: int, asked_at: Address | None, reply: QuorumResponse | None) -> None:
        """What came of a request of the log's replica to this node, at this address; None if nothing did."""
        for leader in () if reply is None else reply.node_endpoints:
            self._said = {leader.node_id: Address(leader.host, leader.port)}
        if node_id < 0 or asked_at is None:
            return
        response = _understood(reply)
        if response is not None and _is_the_leader(node_id, response):
            self._found[node_id] = asked_at
        elif reply is None or (response is not None and _is_somebody_else(node_id, response)):
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
        stated = [Address(one.host, one.port) for one in voter.endpoints[:1]] if voter is not None else []
        known = [*stated, self._founders.get(node_id), self._said.get(node_id)]
        return list(dict.fromkeys(place for place in known if place is not None))


def _understood(reply: QuorumResponse | None) -> Answered | None:
    try:
        return None if reply is None else response_from_wire(reply)
    except MalformedMessage:
        return None


def _is_the_leader(node_id: int, response: Answered) -> bool:
    """Whether the leader has answered, and is this node: nobody else serves a Fetch."""
    is_served = isinstance(response, FetchRecordsReply | FetchSnapshotReply) and response.error is ErrorCode.NONE
    return is_served and response.leader_id == node_id


def _is_somebody_else(node_id: int, response: Answered) -> bool:
    """Whether the answer shows that it is not this node's."""
    error, leader_id = response.error, response.leader_id
    if error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        return True
    match response:
        case VoteReply() | BeginEpochReply():
            return error is ErrorCode.INVALID_VOTER_KEY
        case FetchRecordsReply() | FetchSnapshotReply() if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return leader_id == node_id  # who is the leader itself does not send others to it
        case FetchRecordsReply() | FetchSnapshotReply() if error is ErrorCode.NONE:
            return leader_id not in (NO_LEADER, node_id)
        case _:
            return False
