"""The first contact of a node with its metadata quorum: the node founds a quorum, alone or with other nodes, or joins
an existing quorum.

1. A quorum is founded once. Its founders are the nodes in `controller.quorum.voters`, with empty logs; from the first
   record on the founders are voters by id *and* directory. The founder with the lowest id waits until all founders
   answer at the same time, and writes the set of voters; the other founders take the set from any node that has the
   set.
2. A node that comes later with an empty directory is not a founder any more, whatever its settings say, since the
   written set of voters does not have its directory. Such a node joins as an observer, and logs that.
3. All other nodes join: a node takes the cluster's id from a controller, once, and keeps the id.

So nodes that have lost their disks never found a second quorum, as long as a voter with the set answers. Decision 0018.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import format_topic_id
from tailrace.node.peers import Peers
from tailrace.node.settings.quorum import QuorumConfig
from tailrace.protocol.messages.metadata import DescribeClusterRequest
from tailrace.protocol.messages.quorum import DescribeQuorumRequest
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VoterSet
from tailrace.server.quorum.description import WANTED, stated_voters, waiting_founder
from tailrace.server.quorum.log import QuorumLog

_ROUND_SECONDS: Final = 0.03
_ASK_MS: Final = 500
_SAY_SECONDS: Final = 5.0
_WITH_DIRECTORIES: Final = 2
_OF_CONTROLLERS: Final = 2

NO_VOTERS: Final = VoterSet(())

_logger = logging.getLogger("tailrace.node")


class FoundedQuorum(NamedTuple):
    """The facts that a replica needs before it takes part."""

    cluster_id: str
    voters: VoterSet
    """The voters until the log states other voters: for a founder all founders, for a joining node no voters."""


class Founding:
    """Finds the quorum of one node."""

    def __init__(
        self, config: QuorumConfig, *, key: ReplicaKey, log: QuorumLog, peers: Peers, places: Sequence[int]
    ) -> None:
        """`places` are all nodes to which `peers` can send: ids, or names below -1."""
        self._config = config
        self._key = key
        self._log = log
        self._peers = peers
        self._places = tuple(place for place in places if place != key.id)
        self._loop = asyncio.get_running_loop()
        self._say_again = self._loop.time() + _SAY_SECONDS

    async def find(self, cluster_id: str | None, new_cluster_id: str, *, votes_alone: bool) -> FoundedQuorum:
        """Return when the quorum is found. `cluster_id` is the id in this directory, if any; `new_cluster_id` is the id
        of a new cluster if this node founds it.

        `votes_alone`: the log is of a quorum of one voter, written before voters had directories; the voter gets its
        directory. Raises KafkaError INCONSISTENT_CLUSTER_ID if the quorum belongs to another cluster.
        """
        log, config = self._log, self._config
        known = log.founding_voters
        if known is not None and cluster_id is not None:
            return FoundedQuorum(cluster_id, known)
        if votes_alone:
            return FoundedQuorum(cluster_id or new_cluster_id, VoterSet.of((self._voter(self._key),)))
        if log.end_offset == 0 and config.is_founder:
            return await self._found_or_join(cluster_id, new_cluster_id)
        return FoundedQuorum(cluster_id or await self._ask_cluster_id(), NO_VOTERS)

    async def _found_or_join(self, cluster_id: str | None, new_cluster_id: str) -> FoundedQuorum:
        config = self._config
        others = [node_id for node_id in config.founders if node_id != self._key.id]
        while True:
            answers = await self._ask_all(others, DescribeQuorumRequest(topics=WANTED), _WITH_DIRECTORIES)
            for voters in filter(None, map(stated_voters, answers)):
                there = await self._ask_cluster_id()
                if cluster_id not in (None, there):
                    raise KafkaError(
                        ErrorCode.INCONSISTENT_CLUSTER_ID,
                        f"this directory is of cluster {cluster_id}, the controllers are of {there}: choose another"
                        " --data-dir, or name the right controllers",
                    )
                return FoundedQuorum(there, voters if voters.has(self._key) else self._join(voters))
            waiting = {key.id: key for key in filter(None, map(waiting_founder, answers))}
            if self._key.id == min((*config.founders, self._key.id)) and waiting.keys() == set(others):
                keys = (self._key, *waiting.values())
                return FoundedQuorum(cluster_id or new_cluster_id, VoterSet.of(map(self._voter, keys)))
            self._log_missing_founders([node_id for node_id in others if node_id not in waiting])
            await asyncio.sleep(_ROUND_SECONDS)

    def _join(self, voters: VoterSet) -> VoterSet:
        warn_if_wiped(self._key, voters)
        return NO_VOTERS

    def _voter(self, key: ReplicaKey) -> Voter:
        address = self._config.founders.get(key.id)
        if address is None or not self._config.listener_names:
            return Voter(key)
        return Voter(key, (VoterListener(self._config.listener_names[0], address.host, address.port),))

    async def _ask_cluster_id(self) -> str:
        while True:
            request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=_OF_CONTROLLERS)
            for answer in await self._ask_all(self._places, request, 1):
                if answer.error_code == ErrorCode.NONE:
                    return str(answer.cluster_id)
            self._log_missing_founders(list(self._places))
            await asyncio.sleep(_ROUND_SECONDS)

    async def _ask_all(self, places: Sequence[int], request: Any, oldest_version: int) -> list[Any]:
        """The answers that have come, without the nodes that have not answered."""
        answers = await asyncio.gather(*(self._ask(place, request, oldest_version) for place in places))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, place: int, request: Any, oldest_version: int) -> Any:
        answered: asyncio.Future[Any] = self._loop.create_future()

        def on_reply(reply: Any) -> None:
            if not answered.done():  # the waiting start may have been cancelled
                answered.set_result(reply)

        self._peers.send(place, request, on_reply, oldest_version=oldest_version, timeout_ms=_ASK_MS)
        return await answered

    def _log_missing_founders(self, places: Sequence[int]) -> None:
        if self._loop.time() >= self._say_again and places:
            self._say_again = self._loop.time() + _SAY_SECONDS
            waited_for = ",".join(self._name(place) for place in places)
            _logger.warning("event=quorum-not-found node=%d waiting-for=%s", self._key.id, waited_for)

    def _name(self, place: int) -> str:
        config = self._config
        return f"{place}@{config.founders[place]}" if place in config.founders else str(config.places[-2 - place])


def warn_if_wiped(key: ReplicaKey, voters: VoterSet) -> None:
    """If the voter with this node's id has another directory, log that this node does not vote, and what an
    administrator can do."""
    voter = voters.find(key.id)
    if voter is not None and not voters.has(key):
        _logger.error(
            "event=voter-lost-its-directory node=%d votes-in=%s has=%s way-out='the quorum counts the directory that"
            " was lost: run tailrace quorum remove-controller --controller-id %d --controller-directory-id %s,"
            " then tailrace quorum add-controller --config FILE; until then it observes'",
            key.id,
            format_topic_id(voter.key.directory_id),
            format_topic_id(key.directory_id),
            key.id,
            format_topic_id(voter.key.directory_id),
        )
