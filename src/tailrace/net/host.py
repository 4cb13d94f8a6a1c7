"""The port between an accepted connection and the listener that accepted it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tailrace.net.buffers import BufferPool
from tailrace.net.limits import ListenerLimits
from tailrace.net.turns import Turns

if TYPE_CHECKING:
    from tailrace.net.inbound import InboundConnection


class Host(Protocol):
    """The listener of a connection, with the state that all its connections share."""

    name: str
    loop: asyncio.AbstractEventLoop
    turns: Turns
    pool: BufferPool
    limits: ListenerLimits
    is_transport_copying: bool

    @property
    def on_frame(self) -> "Callable[[InboundConnection, int, memoryview], None]":
        """Takes a frame, without its length prefix."""
        ...

    def admit(self, connection: "InboundConnection") -> None:
        """The connection is there; may abort it."""
        ...

    def forget(self, connection: "InboundConnection") -> None:
        """The connection is gone."""
        ...

    def report(self, connection: "InboundConnection", reason: str) -> None:
        """The connection is closed by the node for this reason."""
        ...
