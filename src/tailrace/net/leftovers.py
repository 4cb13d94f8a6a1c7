"""Bytes that a client sends when its requests are not carried out any more: they are read and thrown away.

Closing a socket with unread bytes would reset it, and with it go the answers that are on their way.
"""

import asyncio
from typing import Final

_LEFTOVERS_BYTES: Final = 64 * 1024
_RUBBISH: Final = bytearray(_LEFTOVERS_BYTES)
"""Shared by all connections: it is never read."""


class Leftovers(asyncio.BufferedProtocol):
    """In the place of a connection that takes no more."""

    def __init__(self, connection: asyncio.BufferedProtocol) -> None:
        """`connection` gets every callback but those with bytes."""
        self._connection = connection

    def get_buffer(self, sizehint: int) -> bytearray:
        return _RUBBISH

    def buffer_updated(self, nbytes: int) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
