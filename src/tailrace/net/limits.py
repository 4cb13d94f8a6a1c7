"""Limits of one client that has not authenticated."""

from dataclasses import dataclass, replace

from tailrace.protocol.registry import APIS, FrameClass

SHORTEST_FRAME = 8
"""API key, version and correlation id: less than this is no request."""
LONGEST_FRAME = 2**31 - 1
"""The largest length that a frame's prefix can state."""

_ENVELOPE_BYTES = 128 << 10
"""The bytes around a request in an envelope: headers, and two strings of at most 32 KiB that name the client."""
_SLOWEST_BYTES_PER_SECOND = 1 << 20
"""A large frame has one second more for each MiB: a line of 10 Mbit/s takes 84 seconds for 100 MiB."""
_SLOWEST_BYTES_PER_SECOND_IN_THE_WAY = 16 << 20
"""The rate in place of `_SLOWEST_BYTES_PER_SECOND` while frames of other connections wait for the memory of the
frame."""
_TLS_HANDSHAKE = 0x1603
_HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """Limits of one listener: sizes in bytes, times in milliseconds."""

    large_frame_bytes: int = 100 << 20
    """A Produce request, or the metadata that members of a group send: a client's own settings decide the size."""
    trusted_fetch_frame_bytes: int = 64 << 20
    """A Fetch from this machine or from a broker: a session of 200,000 partitions must fit."""
    fetch_frame_bytes: int = 4 << 20
    """A Fetch from another machine."""
    other_frame_bytes: int = 16 << 20
    """50,000 names of topics of 249 characters, and as many numbers beside each as clients send."""
    unauthenticated_frame_bytes: int = 64 << 10
    """A frame of a client on a listener with SASL that is not authenticated yet."""
    max_connections: int = 2_000
    max_connections_per_ip: int = 200
    """Not applied to clients on this machine."""
    new_connections_per_second: int = 200
    new_connections_per_ip_per_second: int = 20
    """Not applied to clients on this machine. Twice as many connections may come at once; further connections wait."""
    idle_ms: int = 600_000
    frame_ms: int = 30_000
    """The longest time from a frame's first byte to its last; longer for a large frame, see `frame_time_ms`."""
    frame_in_the_way_ms: int = 2_000
    """The time in place of `frame_ms` for a frame that holds memory for which frames of other connections wait."""
    unsent_bytes: int = 64 << 20
    stall_ms: int = 60_000
    """The longest time for which answers may stay unsent without progress."""
    in_flight: int = 64
    frames_per_turn: int = 64
    bytes_per_turn: int = 4 << 20

    @property
    def of_controllers(self) -> "ListenerLimits":
        """The limits of a listener for nodes only: frames may be envelopes around clients' requests, or reports on all
        partitions of a node. A refused frame would be sent again and again, and each time the connection would close
        for every client that shares it. These frames share their memory with the frames of other listeners."""
        envelope_frame_bytes = self.other_frame_bytes + _ENVELOPE_BYTES
        return replace(self, other_frame_bytes=max(envelope_frame_bytes, self.large_frame_bytes))

    @property
    def harmless_frame_bytes(self) -> int:
        """The size up to which a frame of any API is within the limits."""
        return min(self.large_frame_bytes, self.fetch_frame_bytes, self.other_frame_bytes)

    def frame_limit(self, api_key: int | None, *, is_trusted: bool) -> int:
        """The largest frame of this API, without its length prefix; with None, of any API."""
        fetch_limit = self.trusted_fetch_frame_bytes if is_trusted else self.fetch_frame_bytes
        if api_key is None:
            return max(self.large_frame_bytes, fetch_limit, self.other_frame_bytes)
        frame_class = APIS[api_key].frame_class if api_key in APIS else FrameClass.OTHER
        if frame_class is FrameClass.LARGE:
            return self.large_frame_bytes
        return fetch_limit if frame_class is FrameClass.FETCH else self.other_frame_bytes

    def frame_time_ms(self, size_bytes: int, *, is_in_the_way: bool = False) -> int:
        """The time that a frame of this size may take from its first byte to its last."""
        if is_in_the_way:
            return self.frame_in_the_way_ms + size_bytes * 1000 // _SLOWEST_BYTES_PER_SECOND_IN_THE_WAY
        return self.frame_ms + size_bytes * 1000 // _SLOWEST_BYTES_PER_SECOND


def describe_bad_length(head: bytes, limit: int) -> str:
    """The reason why a frame that starts with these bytes is refused, for the log of the node."""
    if len(head) >= 2 and int.from_bytes(head[:2]) == _TLS_HANDSHAKE:
        return "a TLS hello on a listener without TLS"
    if head[:4] in _HTTP_METHODS:
        return "an HTTP request on a Kafka listener"
    length = int.from_bytes(head[:4], signed=True)
    if length < SHORTEST_FRAME:
        return f"a frame of {length} bytes; the shortest request has {SHORTEST_FRAME}"
    return f"a frame of {length} bytes; the limit here is {limit} (socket.request.max.bytes for the largest)"


class IdleTimes:
    """The times for which one connection has been idle, in the middle of a frame, or not taking its answers."""

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms: dict[str, tuple[object, int]] = {}

    def age(self, what: object, holds: bool, now_ms: int) -> int:
        """The ms for which the condition `what` has held without a break; 0 unless it holds now.

        `what` is a name or (name, detail): a condition with another detail starts anew.
        """
        name = what[0] if isinstance(what, tuple) else str(what)
        if not holds:
            self._since_ms.pop(name, None)
            return 0
        known, since_ms = self._since_ms.get(name, (None, now_ms))
        if known != what:
            since_ms = now_ms
            self._since_ms[name] = (what, now_ms)
        return now_ms - since_ms
