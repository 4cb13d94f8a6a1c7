"""One request at a time to each peer: which is open, which was given up, when the next may leave."""

from dataclasses import dataclass

from tailrace.raft.rpc import Request


@dataclass(slots=True)
class OpenRequest:
    """A request that has not been answered."""

    id: int
    destination: int
    request: Request
    deadline_ms: int


class Links:
    """The peers' side of the outbox. An answer to a request that was given up or forgotten is no answer."""

    def __init__(self, request_timeout_ms: int, retry_backoff_ms: int) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._open: dict[int, OpenRequest] = {}
        self._not_before: dict[int, int] = {}
        self._last_id = 0

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Whether a request may be sent to this peer now."""
        return node_id not in self._open and self._not_before.get(node_id, now_ms) <= now_ms

    def opened(self, node_id: int, request: Request, now_ms: int) -> int:
        """A request is sent; its id."""
        self._last_id += 1
        self._open[node_id] = OpenRequest(self._last_id, node_id, request, now_ms + self._request_timeout_ms)
        return self._last_id

    def answered(self, request_id: int) -> OpenRequest | None:
        """The open request of this id, which is closed by that, or None."""
        for node_id, opened in self._open.items():
            if opened.id == request_id:
                return self._open.pop(node_id)
        return None

    def back_off(self, node_id: int, now_ms: int, backoff_ms: int | None = None) -> None:
        """The peer was of no help: not again for a while."""
        self._not_before[node_id] = now_ms + (self._retry_backoff_ms if backoff_ms is None else backoff_ms)

    def expire(self, now_ms: int) -> None:
        """Give up what was not answered in time."""
        for opened in [one for one in self._open.values() if one.deadline_ms <= now_ms]:
            del self._open[opened.destination]
            self.back_off(opened.destination, now_ms)

    def forget(self) -> None:
        """Nothing that is under way matters any more: the role or the epoch is another one."""
        self._open.clear()
        self._not_before.clear()

    def next_ms(self, node_id: int) -> int:
        """When `is_ready` may become true for this peer."""
        opened = self._open.get(node_id)
        return self._not_before.get(node_id, 0) if opened is None else opened.deadline_ms
