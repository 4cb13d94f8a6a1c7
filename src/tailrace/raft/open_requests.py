"""The open requests of a replica: one request at a time to each peer, with its deadline, and the backoff after a
request."""

from dataclasses import dataclass

from tailrace.raft.rpc import Request


@dataclass(slots=True)
class OpenRequest:
    """A request without an answer yet."""

    id: int
    destination: int
    request: Request
    deadline_ms: int


class OpenRequests:
    """The open request to each peer. An answer to a request that has expired or was cleared is ignored."""

    def __init__(self, request_timeout_ms: int, retry_backoff_ms: int) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._open: dict[int, OpenRequest] = {}
        self._not_before: dict[int, int] = {}
        self._last_id = 0

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Whether a request may be sent to this peer now."""
        return node_id not in self._open and self._not_before.get(node_id, now_ms) <= now_ms

    def open(self, node_id: int, request: Request, now_ms: int) -> int:
        """Add a request that is being sent; returns its id."""
        self._last_id += 1
        self._open[node_id] = OpenRequest(self._last_id, node_id, request, now_ms + self._request_timeout_ms)
        return self._last_id

    def close(self, request_id: int) -> OpenRequest | None:
        """Remove and return the request of this id, which was answered; None if no such request is open."""
        for node_id, opened in self._open.items():
            if opened.id == request_id:
                return self._open.pop(node_id)
        return None

    def back_off(self, node_id: int, now_ms: int, backoff_ms: int | None = None) -> None:
        """Send the peer no request for a while: its answer was of no use."""
        self._not_before[node_id] = now_ms + (self._retry_backoff_ms if backoff_ms is None else backoff_ms)

    def expire(self, now_ms: int) -> None:
        """Remove the requests whose deadlines have passed."""
        for opened in [request for request in self._open.values() if request.deadline_ms <= now_ms]:
            del self._open[opened.destination]
            self.back_off(opened.destination, now_ms)

    def clear(self) -> None:
        """Remove all requests and backoffs: the role or the epoch has changed."""
        self._open.clear()
        self._not_before.clear()

    def next_ms(self, node_id: int) -> int:
        """The time from which `is_ready` may be true for this peer."""
        opened = self._open.get(node_id)
        return self._not_before.get(node_id, 0) if opened is None else opened.deadline_ms
