"""Tells the quorum where this voter listens, if that is not what its log says (UpdateRaftVoter, KIP-853)."""

import logging
from collections.abc import Sequence
from typing import Any, Final

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.quorum import KRaftVersionRange, RaftVoterListener, UpdateRaftVoterRequest
from tailrace.raft.events import UpdateVoter
from tailrace.raft.voters import Voter, VoterListener
from tailrace.server.ports import Clock, Peer, Timer
from tailrace.server.quorum.host import QuorumHost

_INTERVAL_MS: Final = 1_000

_logger = logging.getLogger("tailrace.server")


class VoterAddress:
    """Checks now and then, from `start` to `stop`. Does nothing for an observer, and for a node without listeners."""

    def __init__(self, host: QuorumHost, *, endpoints: Sequence[VoterListener], peer: Peer, clock: Clock) -> None:
        self._host = host
        self._endpoints = tuple(endpoints)
        self._peer = peer
        self._clock = clock
        self._is_asking = False
        self._timer: Timer | None = None

    def start(self) -> None:
        """Look, and again later."""
        if self._endpoints:
            self._timer = self._clock.call_at(self._clock.monotonic_ms() + _INTERVAL_MS, self.start)
            self._host.perform(self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

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
        where = ",".join(f"{one.host}:{one.port}" for one in self._endpoints)
        if error == ErrorCode.NONE:
            _logger.info("event=voter-address-told node=%d address=%s", self._host.node.key.id, where)
        else:
            _logger.info("event=voter-address-not-told node=%d error=%d %s", self._host.node.key.id, error, detail)
