"""Listeners of tests, with the limits that a node has without settings, their turns, receive buffers and clients."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from tailrace.model.security.principal_rules import whole_name
from tailrace.net.buffers import SMALLEST, BufferPool, ByteBuffer
from tailrace.net.fair_turns import FairTurns
from tailrace.net.inbound import InboundConnection
from tailrace.net.limits import ListenerLimits
from tailrace.net.listener import Listener, OnFrame, arrivals_within
from tailrace.net.tls import TlsContexts
from tailrace.net.tls_acceptor import PrincipalOf
from tailrace.net.turns import Turns


def default_listener(name: str, *, turns: Turns, on_frame: OnFrame) -> Listener:
    """A listener with a pool of receive buffers and a rate of new connections of its own."""
    limits = ListenerLimits()
    pool = BufferPool(limit_bytes=256 << 20)
    return Listener(
        name=name,
        turns=turns,
        fair_turns=FairTurns(turns, call_soon=asyncio.get_running_loop().call_soon),
        on_frame=on_frame,
        pool=pool,
        limits=limits,
        arrivals=arrivals_within(limits),
    )


def silent_turns(
    *,
    call_soon: Callable[[Callable[[], None]], object],
    on_broken_invariant: Callable[[BaseException], None],
    now: Callable[[], float] = lambda: 0.0,
) -> Turns:
    """Turns that report no stall. They have no clock, so no turn is long, and a busy machine changes no order."""
    return Turns(
        call_soon=call_soon, on_broken_invariant=on_broken_invariant, on_stall=lambda work, seconds: None, now=now
    )


class PoisonedBufferPool(BufferPool):
    """A pool that overwrites its buffers before it lends them: code that has kept a position and no view reads wrong
    bytes at once."""

    def draw(self, size_bytes: int = SMALLEST, *, in_the_end: int = 0) -> ByteBuffer | None:
        buffer = super().draw(size_bytes, in_the_end=in_the_end)
        if buffer is not None:
            buffer[:] = b"\xdb" * len(buffer)
        return buffer


PRODUCE, FETCH, METADATA = 0, 1, 3


class ListenerBench:
    """A listener and the events that it reports."""

    def __init__(self, listener: Listener, port: int) -> None:
        self.listener = listener
        self.port = port

    async def connect(self, context: ssl.SSLContext | None = None) -> "FrameClient":
        """A client; with a context, of TLS. Raises OSError."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26, ssl=context)
        return FrameClient(reader, writer)

    @property
    def connections(self) -> tuple[InboundConnection, ...]:
        return tuple(self.listener._connections)


class FrameClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.receive()

    async def is_closed_by_server(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


def frame(number: int, *, api_key: int = METADATA, size: int = 12) -> bytes:
    """A frame of `size` bytes that carries a number where Kafka has the correlation id."""
    body = struct.pack(">hhi", api_key, 0, number).ljust(size, b"x")
    return struct.pack(">i", len(body)) + body


def number_of(body: bytes | memoryview) -> int:
    return int(struct.unpack_from(">i", body, 4)[0])


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds; the time limit of the scenario ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - the conditions are about the state of sockets, which sets no event
        await asyncio.sleep(0)


def echo(connection: InboundConnection, slot: int, body: memoryview) -> None:
    connection.answer(slot, [bytes(body)])


@asynccontextmanager
async def serving(
    on_frame: OnFrame = echo,
    memory_bytes: int = 256 << 20,
    now: Callable[[], float] = lambda: 0.0,
    tls: TlsContexts | None = None,
    principal_of: PrincipalOf = whole_name,
    **limits: int,
) -> AsyncIterator[ListenerBench]:
    def stop_on_broken_invariant(fault: BaseException) -> None:
        raise fault

    turns = silent_turns(
        call_soon=asyncio.get_running_loop().call_soon, on_broken_invariant=stop_on_broken_invariant, now=now
    )
    own_limits = replace(ListenerLimits(), **limits)
    listener = Listener(
        name="TEST",
        turns=turns,
        fair_turns=FairTurns(turns, call_soon=asyncio.get_running_loop().call_soon),
        on_frame=on_frame,
        pool=PoisonedBufferPool(limit_bytes=memory_bytes),
        limits=own_limits,
        arrivals=arrivals_within(own_limits),
        tls=tls,
        principal_of=principal_of,
    )
    port = listener.bind(["127.0.0.1"], 0)
    await listener.start()
    try:
        yield ListenerBench(listener, port)
    finally:
        await listener.stop()
        assert listener.counts.open == 0
        assert listener.pool.in_use_bytes == 0, "every receive buffer has been given back"
