"""Whether the other end of a connection says no more, though not all that it said has been read."""

import asyncio
import select


def has_hung_up(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer has closed its connection, or its way to us. False where the system does not tell.

    A transport that reads hears of this by itself, behind the last byte; one that does not read must ask. It is told if
    the operating system has all that was said: what is more than its receive buffer keeps the end from arriving.
    """
    socket = None if transport is None or transport.is_closing() else transport.get_extra_info("socket")
    if socket is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
