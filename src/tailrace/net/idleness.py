"""Time-outs of a connection that is idle, mid-frame or unread, and whether its peer has hung up."""

import asyncio
import select


class IdleTimes:
    """Of one connection: how long it has been idle, in the middle of a frame, or not taking its answers."""

    __slots__ = ("_since_ms", "written_bytes")

    def __init__(self) -> None:
        self._since_ms: dict[str, tuple[object, int]] = {}
        self.written_bytes = 0
        """Handed to the transport since the connection was made."""

    def age(self, what: object, is_so: bool, now_ms: int) -> int:
        """For how long it has been so, in ms. A pair is (name, detail): another detail starts anew."""
        name = what[0] if isinstance(what, tuple) else str(what)
        if not is_so:
            self._since_ms.pop(name, None)
            return 0
        known, since_ms = self._since_ms.get(name, (None, now_ms))
        if known != what:
            since_ms = now_ms
            self._since_ms[name] = (what, now_ms)
        return now_ms - since_ms


def has_hung_up(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer has closed its connection, or its way to us. False where the system does not tell.

    A transport that reads gets the end by itself, behind the last byte; one that does not read must ask. The answer is
    known if the operating system has all bytes: more than its receive buffer holds keeps the end from arriving.
    """
    socket = None if transport is None or transport.is_closing() else transport.get_extra_info("socket")
    if socket is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
