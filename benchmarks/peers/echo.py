"""An echo: the least work of an event loop for one frame in and one frame out, of given sizes.

A measurement of a broker takes the CPU time of an echo of the same size off: the kernel's part, the wake-up, and the
loop. `python -m benchmarks.peers.echo PORT` serves; a frame has its length before it and begins with the size of the
answer.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

from benchmarks.peers.peer import NotReady, directory, free_addresses
from benchmarks.peers.process import Process
from benchmarks.wire import Wire
from tailrace.node.process import event_loop_factory

_HEAD = Struct(">ii")
"""The length of a frame without itself, and the wanted length of its answer."""
_LENGTH = Struct(">i")
_ROOM_BYTES = 1 << 18
_START_S = 30


class _Echo(asyncio.BufferedProtocol):
    """A connection with one frame at a time."""

    def __init__(self) -> None:
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._held = 0
        self._missing = 0
        self._answer_bytes = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream is asked for

    def get_buffer(self, _: int) -> memoryview:
        return self._room[self._held :]

    def buffer_updated(self, count: int) -> None:
        if self._missing == 0:
            self._held += count
            if self._held < _HEAD.size:
                return
            length, self._answer_bytes = _HEAD.unpack_from(self._room)
            count, self._held = self._held, 0
            self._missing = length + _LENGTH.size
        self._missing -= count
        if self._missing == 0:
            assert self._transport is not None, "data come after the connection"
            answer = (
                self._room[: self._answer_bytes] if self._answer_bytes <= _ROOM_BYTES else bytes(self._answer_bytes)
            )
            self._transport.writelines([_LENGTH.pack(self._answer_bytes), answer])


def frame(request_bytes: int, answer_bytes: int) -> bytes:
    """A frame of so many bytes, its length included, that asks for an answer of so many, its length included."""
    return _HEAD.pack(request_bytes - _LENGTH.size, answer_bytes - _LENGTH.size).ljust(request_bytes, b"\0")


class Echo:
    """A running echo, and its CPU time for one exchange."""

    def __init__(self, process: Process, wire: Wire) -> None:
        self._process = process
        self.wire = wire

    def cpu_seconds(self, request_bytes: int, answer_bytes: int, count: int) -> float:
        """CPU seconds of the server for one exchange of these sizes, as the mean of so many."""
        sent = frame(request_bytes, answer_bytes)
        before = self._process.cpu_clock()
        for _ in range(count):
            self.wire.socket.sendall(sent)
            self.wire.receive()
        return (self._process.cpu_clock() - before) / count


@contextmanager
def echo() -> Iterator[Echo]:
    """An echo in a process of its own, on the event loop that a node has."""
    (address,) = free_addresses(1)
    with directory() as home:
        port = address.rpartition(":")[2]
        process = Process([sys.executable, "-m", "benchmarks.peers.echo", port], output=home / "output")
        process.start()
        try:
            with _connected(process, address) as wire:
                yield Echo(process, wire)
        finally:
            process.kill()


def _connected(process: Process, address: str) -> Wire:
    deadline = time.monotonic() + _START_S
    while process.is_running and time.monotonic() < deadline:
        try:
            return Wire(address)
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise NotReady(f"the echo does not listen at {address}\n{process.output()}")


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(_Echo, "127.0.0.1", port)
    is_over = loop.create_future()
    await loop.connect_read_pipe(lambda: _UntilClosed(is_over), sys.stdin)
    await is_over


class _UntilClosed(asyncio.Protocol):
    """Ends the echo when the pipe closes, whose other end the measurement has."""

    def __init__(self, is_over: "asyncio.Future[None]") -> None:
        self._is_over = is_over

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over.set_result(None)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_serve(int(sys.argv[1])))
