"""The listener's own frame splitter, without a socket: an `InboundConnection` whose loop and transport are lists."""

import asyncio
from collections.abc import Callable
from itertools import cycle
from typing import Any, cast

from fuzz.finding import found
from tailrace.net.buffers import SMALLEST, BufferPool
from tailrace.net.fair_turns import FairTurns
from tailrace.net.inbound import InboundConnection
from tailrace.net.limits import ListenerLimits
from testkit.nodes.listeners import silent_turns


class _Loop:
    """Callbacks in the order in which they were asked for."""

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._soon.append((callback, arguments))

    def run(self) -> None:
        while self._soon:
            callback, arguments = self._soon.pop(0)
            callback(*arguments)


class _Transport:
    """Takes nothing, sends nothing, and remembers whether it was paused or closed."""

    def __init__(self) -> None:
        self.is_reading = True
        self.is_closed = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def writelines(self, chunks: object) -> None:
        pass

    write = writelines

    def close(self) -> None:
        self.is_closed = True

    abort = close


class _Host:
    """The state that a listener shares with its connections (`net.inbound.Host`)."""

    name = "FUZZ"
    is_transport_copying = False

    def __init__(self, max_frame: int) -> None:
        self.frames: list[bytes] = []
        self._tasks = _Loop()
        self.loop = cast(asyncio.AbstractEventLoop, self._tasks)
        self.turns = silent_turns(call_soon=self._tasks.call_soon, on_broken_invariant=self._stop)
        self.fair_turns = FairTurns(self.turns, call_soon=self._tasks.call_soon)
        self.pool = BufferPool(limit_bytes=256 << 20)
        self.limits = ListenerLimits(
            large_frame_bytes=max_frame,
            trusted_fetch_frame_bytes=max_frame,
            fetch_frame_bytes=max_frame,
            other_frame_bytes=max_frame,
        )

    def _stop(self, fault: BaseException) -> None:
        raise fault

    def run(self) -> None:
        self._tasks.run()

    def on_frame(self, connection: InboundConnection, slot: int, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        connection.answer(slot, [b"done"])

    def admit(self, connection: InboundConnection) -> None:
        pass

    def forget(self, connection: InboundConnection) -> None:
        pass

    def report(self, connection: InboundConnection, reason: str) -> None:
        pass


def frames_of_the_listener(stream: bytes, sizes: list[int], max_frame: int) -> tuple[list[bytes], bool]:
    """The frames a listener hands out when the stream arrives in pieces of these sizes, and whether it hung up."""
    host, transport = _Host(max_frame), _Transport()
    connection = InboundConnection(host)
    connection.connection_made(cast(asyncio.Transport, transport))
    at = 0
    for size in cycle(sizes):
        if at >= len(stream) or transport.is_closed:
            break
        buffer = connection.get_buffer(-1)
        taken = min(size, len(buffer), len(stream) - at)
        buffer[:taken] = stream[at : at + taken]
        at += taken
        del buffer
        connection.buffer_updated(taken)
        host.run()
        if not transport.is_reading and not transport.is_closed:
            found("a client whose requests are answered is read from")
        if host.pool.in_use_bytes > 2 * SMALLEST:
            found("a connection holds one small buffer for small frames")
    was_closed = transport.is_closed
    connection.connection_lost(None)
    if host.pool.in_use_bytes:
        found("a connection that has gone holds no buffer")
    return host.frames, was_closed
