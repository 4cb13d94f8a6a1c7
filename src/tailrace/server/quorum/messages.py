"""Messages of one replica of the metadata log: requests, whose outcome is an event for its machine, and answers; lines
about its role and about useless answers."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.throttle import Throttle
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.rpc import FetchRecordsReply, FetchSnapshotReply, Request, Response
from tailrace.raft.voters import ReplicaKey, VoterListener
from tailrace.server.ports import Clock, Peer, QuorumResponse
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.raft_wire import oldest_version, request_to_wire, response_from_wire, with_secret

_REFUSAL_LINE_MS: Final = 60_000
_WAITING_ROLES: Final = frozenset(("unattached", "prospective", "candidate"))
_WAITING_LINE_MS: Final = 60_000
_NUMBER: Final = re.compile(r"\d+")

_logger = logging.getLogger("tailrace.server")


class RefusalLines:
    """Warnings about useless answers of other replicas: one a minute for each reason.

    A replica repeats its request to a broken leader at once, and may get a useless answer fifty times a second. Reasons
    that differ only in numbers count as equal, since offsets and epochs differ from answer to answer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._throttle = Throttle(_REFUSAL_LINE_MS)

    def write(self, event: str, reason: str) -> None:
        """Write `event=EVENT reason=REASON`: a warning, or a debug line if the same reason was logged within the last
        minute."""
        is_news = self._throttle.admits((event, _NUMBER.sub("", reason)), self._clock.monotonic_ms())
        _logger.log(logging.WARNING if is_news else logging.DEBUG, "event=%s reason=%s", event, reason)


class RoleLines:
    """Lines about the role of a replica.

    A replica that waits for its peers alternates between the waiting roles: a waiting role has a line a minute. The
    first waiting role after any other is logged: a leader is lost.
    """

    def __init__(self, node_id: int, clock: Clock) -> None:
        self._node_id = node_id
        self._clock = clock
        self._waiting = Throttle(_WAITING_LINE_MS)

    def write(self, change: do.RoleChanged) -> None:
        """Log this role; only at debug level if the role was logged within the last minute."""
        role = change.role.lower()
        if role not in _WAITING_ROLES:
            self._waiting = Throttle(_WAITING_LINE_MS)
        is_new = role not in _WAITING_ROLES or self._waiting.admits(role, self._clock.monotonic_ms())
        _logger.log(
            logging.INFO if is_new else logging.DEBUG,
            "event=quorum-role node=%d role=%s epoch=%d leader=%d",
            self._node_id,
            role,
            change.epoch,
            change.leader_id,
        )


class QuorumRequests:
    """The requests of one replica to its peers."""

    def __init__(
        self,
        key: ReplicaKey,
        cluster_id: str | None,
        *,
        peer: Peer,
        listeners: Sequence[VoterListener],
        secret: bytes,
        on_outcome: Callable[[events.Event], None],
        refusals: RefusalLines,
    ) -> None:
        """`listeners`: the addresses at which this replica listens for its peers. `secret`: the secret of its
        directory. `on_outcome` is called once for each request."""
        self._key = key
        self._cluster_id = cluster_id
        self._peer = peer
        self._listeners = tuple(listeners)
        self._secret = secret
        self._on_outcome = on_outcome
        self._refusals = refusals
        self._has_logged_other_cluster = False

    def send(self, request_id: int, destination: int, request: Request) -> None:
        """Send a request to another replica, or to a place (an id below -1) whose replica is not known yet."""
        message = with_secret(request_to_wire(request, listeners=self._listeners), self._secret)

        def replied(reply: QuorumResponse | None) -> None:
            self._on_outcome(self._outcome(request_id, reply))

        self._peer.send(destination, message, replied, oldest_version=oldest_version(request))

    def _outcome(self, request_id: int, reply: QuorumResponse | None) -> events.Event:
        if reply is None:
            return events.RequestFailed(request_id)
        try:
            response = response_from_wire(reply)
            if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
                self._log_other_cluster()
            return events.ResponseReceived(request_id, response)
        except KafkaError as fault:
            self._refusals.write("quorum-answer-ignored", str(fault))
            return events.RequestFailed(request_id)

    def _log_other_cluster(self) -> None:
        """Log once that a node belongs to another cluster: every request gets this answer."""
        if not self._has_logged_other_cluster:
            self._has_logged_other_cluster = True
            _logger.error(
                "event=other-cluster node=%d cluster=%s: a controller that was asked belongs to another cluster; name"
                " those of this cluster, or start with an empty directory",
                self._key.id,
                self._cluster_id,
            )


def answer(token: object, response: Response) -> None:
    """Answer a request: `token` is its callback."""
    assert callable(token), "the request has no callback"
    token(response)


def filled(log: QuorumLog, response: Response, read: do.ReadLog | do.ReadSnapshot) -> Response:
    """The answer with its records or bytes. Raises CorruptRecords and StorageError; then no answer is sent."""
    try:
        if isinstance(read, do.ReadLog):
            assert isinstance(response, FetchRecordsReply), f"records are for a Fetch, not {response}"
            return replace(response, records=b"".join(log.read(read.offset, max_bytes=read.max_bytes)))
        assert isinstance(response, FetchSnapshotReply), f"bytes are for a FetchSnapshot, not {response}"
        return replace(response, data=bytes(log.read_snapshot(read.snapshot_id, read.position, read.size_bytes)))
    except (CorruptRecords, StorageError):
        raise
    except KafkaError as fault:
        # The answer waited for the disk, and its snapshot was deleted meanwhile.
        return replace(response, error=fault.code)


def unreadable(response: Response) -> Response:
    """The answer of a replica whose log has failed."""
    return replace(response, error=ErrorCode.KAFKA_STORAGE_ERROR)
