"""A request to a simulated broker and its answer, as Kafka's bytes, over a network that may lose or repeat both.

Each message has a delay of its own, as if each request had a connection of its own: any two may overtake each other. A
`Link` is one connection that keeps order; bytes that it has not delivered when its client closes it are lost.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from simulation.harness.network import Network
from simulation.harness.world import Action, Life, World
from tailrace.fetch_session.epochs import INITIAL_EPOCH, is_full
from tailrace.model.identity import ClientIdentity
from tailrace.protocol.declaration import schema_of
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tailrace.protocol.registry import APIS, api_of
from tailrace.server.ports import Buffer

LISTENER: Final = "REPLICATION"
"""The listener of brokers and clients."""


class OneRequest:
    """A `server.ports.ServerConnection` of one request."""

    is_open = True
    identity = ClientIdentity(LISTENER, "10.0.0.1")

    def __init__(self, on_answer: Callable[[bytes | None], None]) -> None:
        self._on_answer = on_answer
        self._is_answered = False
        self._on_close: list[Action] = []

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        assert not self._is_answered, "a request is answered twice"
        self._is_answered = True
        if self.is_open:
            self._on_answer(None if chunks is None else b"".join(chunks))

    def awaits_answer(self, slot: int) -> bool:
        return not self._is_answered

    def suspend(self) -> None:
        """Do nothing: there is one request."""

    def go_on(self) -> None:
        """Do nothing: there is one request."""

    def throttle(self, throttle_ms: int) -> None:
        pass

    def close(self, reason: str) -> None:
        self._on_answer(None)

    def on_close(self, callback: Action) -> None:
        self._on_close.append(callback)

    def hang_up(self) -> None:
        """The client has closed the link, and the broker notices."""
        self.is_open = False
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()


class Server(Protocol):
    """A broker that requests are sent to."""

    life: Life
    heard_ms: dict[int, int]
    """The time of the last fetch of each other broker, in this life."""

    @property
    def node_id(self) -> int: ...

    @property
    def is_up(self) -> bool: ...

    def do(self, action: Action) -> None:
        """Do something on this broker, while the broker is up."""
        ...

    def serve(self, frame: bytes, connection: OneRequest) -> None:
        """Carry out one request."""
        ...


class Link:
    """The connection of one request, which comes once, and not after its client has given up."""

    def __init__(self) -> None:
        self.is_open = True
        self._is_used = False
        self._hang_up: Action = lambda: None

    def close(self) -> None:
        """Close the connection. A request that is being carried out is not stopped."""
        if self.is_open:
            self.is_open = False
            self._hang_up()

    def delivers(self, connection: OneRequest, target: Server) -> bool:
        """Whether the request reaches the broker now: at most once, and only while the connection is open."""
        if self._is_used or not self.is_open:
            return False
        self._is_used = True
        life = target.life

        def hang_up() -> None:
            if life is target.life:
                target.do(connection.hang_up)

        self._hang_up = hang_up
        return True


def ask(
    world: World,
    network: Network,
    source: int,
    target: Server,
    request: Any,
    version: int,
    on_reply: Callable[[Any], None],
    *,
    on_leave: Callable[[Any], None] = lambda response: None,
    link: Link | None = None,
) -> None:
    """Send a request over the network. `on_reply` is called with each answer that comes back, perhaps more than once,
    or never.

    `on_leave` is called with each answer in the step in which it leaves. Without a `link` the request may come late,
    or twice.
    """
    version = min(version, schema_of(type(request)).versions.last)
    frame = b"".join(encode_request(request, version, correlation_id=1, client_id="simulated"))
    response_type = APIS[api_of(type(request)).key].response

    def answered(data: bytes | None) -> None:
        if data is None:
            network.send(target.node_id, source, lambda: on_reply(None))
            return
        response = decode_response(response_type, version, bytearray(data))[1]
        if isinstance(request, FetchRequest):
            _note_fetch(world, request, response)
        on_leave(response)
        network.send(target.node_id, source, lambda: on_reply(response))

    def deliver() -> None:
        connection = OneRequest(answered)
        if not target.is_up:
            world.after(1, lambda: on_reply(None))
        elif link is None or link.delivers(connection, target):
            if isinstance(request, FetchRequest):
                target.heard_ms[source] = world.now_ms
            target.serve(frame, connection)

    network.send(source, target.node_id, deliver)


def _note_fetch(world: World, request: FetchRequest, response: FetchResponse) -> None:
    """Remember the states of fetch sessions that were reached."""
    sometimes = world.sometimes
    if response.error_code:
        sometimes[f"session error {response.error_code}"] += 1
    elif is_full(request.session_epoch):
        sometimes["session opened"] += response.session_id > 0
        sometimes["session not to be had"] += response.session_id == 0 and request.session_epoch == INITIAL_EPOCH
    else:
        sometimes["incremental fetch"] += 1
        answers = [data for topic in response.responses for data in topic.partitions]
        is_quiet = not any(data.error_code or data.records for data in answers)
        is_follower = request.replica_id >= 0 or request.replica_state.replica_id >= 0
        sometimes["high watermark sent alone"] += bool(answers) and is_quiet and is_follower
