"""Functions for an asyncio transport: write in portions, read and discard, see whether the peer has hung up."""

import asyncio
import select
from collections.abc import Callable, Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

PORTION_BYTES: Final = 256 * 1024
"""The size of one write."""


def write_in_portions(
    transport: asyncio.Transport, chunks: Sequence[Buffer], is_blocked: Callable[[], bool]
) -> list[Buffer]:
    """Write until the transport is blocked, and return the rest.

    For a transport that copies the unsent bytes (asyncio before Python 3.12): the transport gets no more than it sends
    soon.
    """
    for index, chunk in enumerate(chunks):
        for position in range(0, len(chunk), PORTION_BYTES):
            if is_blocked():
                return [memoryview(chunk)[position:], *chunks[index + 1 :]]
            transport.write(memoryview(chunk)[position : position + PORTION_BYTES])
    return []


_DISCARDED: Final = bytearray(64 * 1024)
"""The buffer of all connections that discard: its bytes are never used."""


class DiscardingProtocol(asyncio.BufferedProtocol):
    """Reads and discards the bytes of a connection that carries out no more requests.

    Closing a socket with unread bytes would reset it and lose the answers that are on their way.
    """

    def __init__(self, connection: asyncio.BufferedProtocol) -> None:
        """`connection` gets every callback that has no bytes."""
        self._connection = connection

    def get_buffer(self, sizehint: int) -> bytearray:
        return _DISCARDED

    def buffer_updated(self, nbytes: int) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


def has_hung_up(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer has closed its connection, or its sending half. False on systems without POLLRDHUP.

    Only for a transport that does not read: a transport that reads gets the end of the stream behind the last byte. The
    end is seen only if all bytes before it fit into the receive buffer of the operating system.
    """
    socket = None if transport is None or transport.is_closing() else transport.get_extra_info("socket")
    if socket is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
