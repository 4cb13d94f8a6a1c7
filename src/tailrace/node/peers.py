"""`server.ports.Peer` over sockets: sends requests to other nodes. Each kind of request that may wait for long has a
connection of its own.

1. `on_reply` is called once for each `send`, in a turn of its own, never inside `send`, and never after `close`.
2. A request that can wait at the other end (a fetch, a client's request in an envelope), or must not wait (a heartbeat,
   a vote), has a connection of its own (`PeerConnection`): answers come in the order of their requests, so a long poll
   would delay the requests behind it.
3. A peer that does not answer costs bounded memory: requests beyond a bound are refused at once. Each connection has
   its own bound: administrators' requests must not crowd out requests of the metadata log.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import Address, Connection, ConnectionRefused
from tailrace.net.pool import ConnectionPool
from tailrace.net.sasl import SaslConfig
from tailrace.net.tls import TlsContexts
from tailrace.net.turns import Turns
from tailrace.protocol.registry import Api, PeerConnection, api_of

_MOST_UNDER_WAY: Final = 256
"""The most requests of one connection to one node at a time; usual are some tens."""
_CONNECT_TIMEOUT_MS: Final = 1_000
_BACKOFF_MS = 20
_BACKOFF_MAX_MS = 200

OnReply = Callable[[Any], None]
AddressOf = Callable[[int], Address | None]

_logger = logging.getLogger("tailrace.node")


class Peers:
    """The other nodes, by id or, below -1, by a name that only `address_of` knows."""

    def __init__(
        self,
        *,
        address_of: AddressOf,
        turns: Turns,
        client_id: str,
        timeout_ms: int,
        tls: TlsContexts | None = None,
        sasl: SaslConfig | None = None,
    ) -> None:
        """`address_of` returns the present address of a node, or None; `timeout_ms` is the default timeout; `tls`: for
        encrypted connections; `sasl` authenticates this node."""
        self._address_of = address_of
        self._turns = turns
        self._timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._pool = ConnectionPool(
            client_id=client_id,
            connect_timeout_ms=_CONNECT_TIMEOUT_MS,
            backoff_ms=_BACKOFF_MS,
            backoff_max_ms=_BACKOFF_MAX_MS,
            tls=tls,
            sasl=sasl,
        )
        self._under_way: Counter[tuple[int, PeerConnection]] = Counter()
        """The number of requests under way, by node and connection."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.on_refused: Callable[[int, Address], None] = lambda node_id, address: None
        """Called in a turn when the address of a node refuses a connection: no process listens there."""

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: OnReply,
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request, see `server.ports.Peer.send`."""
        self.send_to(
            self._address_of(node_id), node_id, request, on_reply, oldest_version=oldest_version, timeout_ms=timeout_ms
        )

    def send_to(
        self,
        address: Address | None,
        node_id: int,
        request: Any,
        on_reply: OnReply,
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """Send to an address of the caller, otherwise like `send`. Without an address `on_reply` gets None."""
        api = api_of(type(request))
        line = (node_id, api.connection)
        if self._is_closed or address is None or self._under_way[line] >= _MOST_UNDER_WAY:
            self._loop.call_soon(self._reply, on_reply, None)
            return
        self._under_way[line] += 1
        finish = partial(self._finish, line, on_reply)
        wanted_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        connection = self._pool.open_connection(address, api.connection)
        if connection is not None:
            self._ask(connection, request, api, finish, oldest_version, wanted_ms)
            return
        task = self._loop.create_task(
            self._connect_and_ask(address, node_id, request, api, finish, oldest_version, wanted_ms)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Close every connection. No callback comes any more."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        self._pool.close()

    async def _connect_and_ask(
        self,
        address: Address,
        node_id: int,
        request: Any,
        api: Api,
        finish: OnReply,
        oldest_version: int,
        timeout_ms: int,
    ) -> None:
        deadline = self._loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._pool.get(address, api.connection)
        except (KafkaError, TimeoutError) as fault:
            _logger.debug("event=peer-not-reached address=%s reason=%s", address, fault)
            if isinstance(fault, ConnectionRefused) and not self._is_closed:
                self._turns.run(lambda: self.on_refused(node_id, address))
            finish(None)
            return
        left_ms = max(1, round((deadline - self._loop.time()) * 1000))
        self._ask(connection, request, api, finish, oldest_version, left_ms)

    def _ask(
        self, connection: Connection, request: Any, api: Api, finish: OnReply, oldest_version: int, timeout_ms: int
    ) -> None:
        try:
            version = connection.version_of(type(request))
            if version < oldest_version:
                detail = f"{connection.address} serves {api.name} only up to version {version}"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
            answer = connection.send(request, api.response, timeout_ms=timeout_ms)
        except KafkaError as fault:
            _logger.debug("event=peer-not-asked reason=%s", fault)
            self._loop.call_soon(finish, None)
            return
        answer.add_done_callback(partial(_hand_on, finish))

    def _finish(self, line: tuple[int, PeerConnection], on_reply: OnReply, reply: Any) -> None:
        self._under_way[line] -= 1
        if not self._under_way[line]:
            del self._under_way[line]
        self._reply(on_reply, reply)

    def _reply(self, on_reply: OnReply, reply: Any) -> None:
        if not self._is_closed:
            self._turns.run(lambda: on_reply(reply))


def _hand_on(finish: OnReply, answer: asyncio.Future[Any]) -> None:
    if answer.cancelled():
        finish(None)
    elif (fault := answer.exception()) is not None:
        _logger.debug("event=peer-did-not-answer reason=%s", fault)
        finish(None)
    else:
        finish(answer.result())
