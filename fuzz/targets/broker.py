"""A hostile broker: what it sends to our client before the client has authenticated it stays bounded."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from fuzz.finding import found
from fuzz.targets.sasl import ALICE, CANARY, joined, pieces
from fuzz.targets.target import Target
from tailrace.model.errors import KafkaError
from tailrace.net.connection import Address, Connection, connect
from tailrace.net.sasl import MAX_UNAUTHENTICATED_BYTES
from tailrace.protocol.headers import encode_response, frame_prefix
from tailrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from tailrace.protocol.request_headers import decode_request_header

_ADDRESS: Final = Address("fuzz", 1)
_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE = 18, 17, 36
_TIMEOUT_MS: Final = 20_000
_MOST_REQUESTS: Final = 12
"""Two connections, each with ApiVersions in four versions at most, a handshake and two tokens."""
_LONGEST_TEXT: Final = 2_000
RAW, BODY, HONEST, TOKEN, HANG_UP, STRANGE_ID = range(6)
"""The first byte of a piece, modulo six: bytes as they are; the rest of an answer; an honest answer; a token; the end
of the connection; an answer to another request."""


class _Broker(asyncio.Transport):
    """The transport of a connection, on whose other side the pieces answer one request after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Connection, script: Iterator[bytes]) -> None:
        super().__init__()
        self._loop = loop
        self._client = client
        self._script = script
        self._is_closed = False
        self.requests = 0

    def writelines(self, list_of_data: Any) -> None:
        self._loop.call_soon(self._take, b"".join(map(bytes, list_of_data))[4:])

    def is_closing(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon(self._client.connection_lost, None)

    def _take(self, request: bytes) -> None:
        self.requests += 1
        while not self._is_closed and self._client._pending:
            piece = next(self._script, bytes([HANG_UP]))
            action = piece[0] % 6 if piece else HANG_UP
            if action == HANG_UP:
                self.abort()
            else:
                self._deliver(_answer(action, piece[1:], request))

    def _deliver(self, stream: bytes) -> None:
        while not self._is_closed:
            buffer = self._client.get_buffer(-1)
            if len(buffer) > MAX_UNAUTHENTICATED_BYTES:
                found(f"a broker that is not authenticated makes the client take {len(buffer)} bytes")
            if not stream:
                break
            taken = min(len(buffer), len(stream))
            buffer[:taken] = stream[:taken]
            stream = stream[taken:]
            self._client.buffer_updated(taken)


def _answer(action: int, rest: bytes, request: bytes) -> bytes:
    header, position = decode_request_header(request)
    correlation_id = header.correlation_id + (action == STRANGE_ID)
    if action == RAW:
        return rest
    if action in (BODY, STRANGE_ID):
        return _framed([correlation_id.to_bytes(4), rest])
    response: Any
    if header.api_key == _API_VERSIONS:
        keys = ((_API_VERSIONS, 3), (_HANDSHAKE, 1), (_AUTHENTICATE, 2))
        listed = tuple(ApiVersion(api_key=key, min_version=0, max_version=most) for key, most in keys)
        response = ApiVersionsResponse(api_keys=listed)
    elif header.api_key == _HANDSHAKE:
        response = SaslHandshakeResponse(mechanisms=(ALICE.mechanism,))
    else:
        nonce = request[position:].rpartition(b"r=")[2].partition(b"\0")[0].partition(b",")[0]
        token = rest if action == TOKEN else b"r={nonce}more,s=c2FsdHNhbHRzYWx0c2FsdA==,i=4096"
        response = SaslAuthenticateResponse(error_message=None, auth_bytes=token.replace(b"{nonce}", nonce))
    return _framed(encode_response(response, header.api_version, correlation_id))


def _framed(chunks: Any) -> bytes:
    return frame_prefix(chunks) + b"".join(map(bytes, chunks))


class _HostileLoop(asyncio.SelectorEventLoop):
    """A loop on which every connection leads to the broker of the script."""

    def __init__(self, script: Iterator[bytes]) -> None:
        super().__init__()
        self.brokers: list[_Broker] = []
        self.faults: list[dict[str, Any]] = []
        self._script = script
        self.set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(context)
        for broker in self.brokers:
            broker.abort()

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *_: Any, **__: Any
    ) -> tuple[_Broker, asyncio.BaseProtocol]:
        client = protocol_factory()
        broker = _Broker(self, cast(Connection, client), self._script)
        client.connection_made(broker)
        self.brokers.append(broker)
        return broker, client


def _check(data: bytes) -> None:
    sasl = None if data[:1] == b"\0" else ALICE
    loop = _HostileLoop(pieces(data[1:]))

    async def work() -> None:
        connection = await connect(_ADDRESS, client_id="fuzz", timeout_ms=_TIMEOUT_MS, sasl=sasl)
        connection.close()
        if sasl is not None:
            found("the client trusts a broker that does not know the password")

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(work())
        except KafkaError as refused:
            text = f"{refused}"
            if CANARY in f"{text} {refused!r}":
                found("the password shows")
            if len(text) > _LONGEST_TEXT or not text.isprintable():
                found(f"a broker writes what it likes into an error: {text!r}")
    for context in loop.faults:
        found(f"an error escapes: {context}")
    if len(loop.brokers) > 2 or sum(broker.requests for broker in loop.brokers) > _MOST_REQUESTS:
        found("a broker keeps the client busy")


def _seeds() -> Iterator[bytes]:
    honest = bytes([HONEST])
    signature = b"v=" + b"A" * 43 + b"="
    yield b"\0" + joined(honest)
    yield b"\0" + joined(bytes([RAW]) + (1 << 28).to_bytes(4))
    yield b"\1" + joined(bytes([RAW]) + (MAX_UNAUTHENTICATED_BYTES + 1).to_bytes(4))
    yield b"\1" + joined(bytes([RAW]) + b"HTTP/1.1 400 Bad Request")
    yield b"\1" + joined(honest, honest, honest, bytes([TOKEN]) + signature)
    yield b"\1" + joined(honest, honest, bytes([TOKEN]) + b"r={nonce}more,s=c2FsdA==,i=1")
    yield b"\1" + joined(honest, honest, bytes([TOKEN]) + b"r={nonce}more,s=c2FsdA==,i=99999999")
    yield b"\1" + joined(honest, bytes([BODY]) + b"\0\x21\0\0\0\1\0\4\x1b[2J")
    yield b"\1" + joined(honest, honest, bytes([BODY]) + b"\0\0\x3a\5\nFAK\1\0\0\0\0\0\0\0\0\0")
    yield b"\1" + joined(bytes([BODY]) + b"\0\x23\0\0\0\1\0\x12\0\0\x7f\xff", bytes([BODY]) + b"\0\x23\0\0\0\0")
    yield b"\1" + joined(bytes([BODY]) + b"\0\0" + b"\xff\xff\xff\xff\x0f" + bytes(40))
    yield b"\1" + joined(bytes([BODY]) + b"\0\0\1\0\0\0\0\x20" + b"\0\0" * 32)
    yield b"\1" + joined(honest, bytes([STRANGE_ID]) + b"\0\0\0\0\0\0")
    yield b"\1" + joined(bytes([HANG_UP]), bytes([HANG_UP]))


TARGETS: Final = (
    Target(
        name="hostile-broker",
        promise="a broker that is not authenticated costs a client 64 KiB and a few requests, and fakes no log line",
        check=_check,
        seeds=_seeds,
    ),
)
