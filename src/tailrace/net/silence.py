"""Nodes that hang: they keep their connections and send nothing, so no request to them fails before its time limit."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import Connection

SILENCE_MS: Final = 2_000
"""A node that owes an answer and has sent no byte for so long, beyond the wait that the request permits, hangs."""
_SETTLING_S: Final = 0.05
"""An event loop that was blocked may run its timers before it reads the sockets: so an answer gets this much more
time."""


class SilenceWatch:
    """Calls `on_silence` when a node hangs, and every SILENCE_MS again; a context around the request.

    An answer that arrives in parts is no silence, however slow the network is.
    """

    def __init__(self, on_silence: Callable[[], None], *, wait_ms: int = 0) -> None:
        """`wait_ms`: the wait that the request permits."""
        self._on_silence = on_silence
        self._wait_ms = wait_ms
        self._connection: Connection | None = None
        self._received_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cancel()

    def use(self, connection: Connection) -> None:
        """Watch this open connection to the node from now on: the time for the answer starts now."""
        self._connection = connection
        self._received_bytes = connection.received_bytes
        self._cancel()
        self._begin()

    def _begin(self) -> None:
        self._look_after((SILENCE_MS + self._wait_ms) / 1000)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_SETTLING_S, self._decide)

    def _decide(self) -> None:
        received_bytes = 0 if self._connection is None else self._connection.received_bytes
        is_silent, self._received_bytes = received_bytes == self._received_bytes, received_bytes
        self._look_after(SILENCE_MS / 1000)
        if is_silent:
            self._on_silence()


class NodeHangs(KafkaError):
    """A node has not answered in time, and its connection is open."""


class GivenUp:
    """The end of a request to a node that hangs, where another node can be asked: a context around the request.

    If the node hangs, the context cancels the request and raises NodeHangs. A late answer is dropped.
    """

    def __init__(self, subject: str, *, wait_ms: int = 0) -> None:
        """`subject`: the node, for the error."""
        self._subject = subject
        self._timeout = asyncio.timeout(None)
        self.watch: Final = SilenceWatch(self._give_up, wait_ms=wait_ms)

    def _give_up(self) -> None:
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> SilenceWatch:
        await self._timeout.__aenter__()
        return self.watch.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.__exit__(kind, fault, trace)
        try:
            await self._timeout.__aexit__(kind, fault, trace)
        except TimeoutError:
            detail = f"{self._subject} has not answered for {SILENCE_MS // 1000} s"
            raise NodeHangs(ErrorCode.REQUEST_TIMED_OUT, detail) from None
