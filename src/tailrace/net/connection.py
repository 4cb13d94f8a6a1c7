"""An outgoing connection to a server of the Kafka protocol: requests go in, answers are matched to the requests in
order.

1. Answers come in the order of the requests (Kafka's rule); an answer with another correlation id, or an answer that
   cannot be read, ends the connection.
2. Every request has a deadline. A request that passes its deadline ends the connection, since every later answer stands
   behind the answer of this request.
3. The end of the connection fails every pending request with its reason, and nothing is pending afterwards.
"""

import asyncio
import re
import ssl
import struct
from collections import deque
from typing import Any, NamedTuple, TypeVar, cast

from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.net.sasl import MAX_UNAUTHENTICATED_BYTES, SaslConfig, SaslSession, StepOfSasl
from tailrace.net.tls import TlsContexts, client_fault, hang_up_hint
from tailrace.protocol.declaration import Schema, api_key_of, schema_of
from tailrace.protocol.headers import API_VERSIONS, decode_response, encode_request, frame_prefix
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.schema import Buffer

R = TypeVar("R")

MAX_RESPONSE_BYTES = 256 * 1024 * 1024
"""A longer frame is from a peer that does not speak the protocol: `HTTP` reads as 1.2 GB, a TLS alert as 352 MB."""

NEGOTIATED_WITH = 3
"""ApiVersions version asked first. A later version only adds supported features that begin at 0, which this client does
not read; and some servers answer a version that they do not know in an unreadable form."""

_GOODBYE_SECONDS = 2.0
"""The longest wait for the server's close_notify when the client closes a connection with TLS."""
_SCRATCH_BYTES = 64 * 1024
ANY_VERSION = 0x7FFF
_LENGTH = struct.Struct(">i")
_ERROR_35 = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class Address(NamedTuple):
    """The address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_DEFAULT_PORT = 9092
_PLAINTEXT = re.compile(r"^plaintext://", re.IGNORECASE)
"""Kafka's clients take an address with the name of its listener. A listener of any other name may expect TLS."""
_LONGEST_PORT = 5
_NO_HOST = re.compile(r"[\s/@]")


def parse_addresses(text: str, *, default_port: int | None = _DEFAULT_PORT) -> list[Address]:
    """The addresses of `host:port,[::1]:port,PLAINTEXT://host:port,...`; `default_port` where none is given.

    Raises KafkaError(INVALID_REQUEST) that names the unreadable part. With `default_port` None an address without a
    port is unreadable too.
    """
    addresses = []
    for part in (word.strip() for word in text.split(",")):
        if not part:
            continue
        address = _PLAINTEXT.sub("", part)
        host, separator, port = address.rpartition(":")
        if not separator or address.endswith("]"):
            host, port = address, "" if default_port is None else str(default_port)
        is_port = port.isdecimal() and len(port) <= _LONGEST_PORT and 0 < int(port) < 65536
        if not host or _NO_HOST.search(host) or not is_port:
            form = "HOST:PORT; security.protocol=SSL asks for TLS" if "://" in part else "HOST:PORT"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"bootstrap server {part!r} is not {form}")
        addresses.append(Address(host.strip("[]"), int(port)))
    if not addresses:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no bootstrap server given; say HOST:PORT[,HOST:PORT...]")
    return addresses


class _PendingRequest:
    """A request that waits for its answer."""

    __slots__ = ("correlation_id", "deadline", "future", "response_type", "schema", "version")

    def __init__(
        self,
        schema: Schema,
        version: int,
        response_type: type[Any],
        correlation_id: int,
        deadline: float,
        future: asyncio.Future[Any],
    ) -> None:
        self.schema = schema
        self.version = version
        self.response_type = response_type
        self.correlation_id = correlation_id
        self.deadline = deadline
        self.future = future

    @property
    def name(self) -> str:
        """The name of the API."""
        return _name_of(self.schema)


def _name_of(request: Schema) -> str:
    return request.name.removesuffix("Request")


class Connection(asyncio.BufferedProtocol):
    """An open, negotiated connection. Made by `connect`; used from its event loop only."""

    def __init__(
        self, address: Address, client_id: str, loop: asyncio.AbstractEventLoop, tls: TlsContexts | None = None
    ) -> None:
        self.address = address
        self._hint = hang_up_hint(tls)
        self._client_id = client_id
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._pending: deque[_PendingRequest] = deque()
        self._next_correlation_id = 1
        self._watchdog: asyncio.TimerHandle | None = None
        self._fault: KafkaError | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        self._features: dict[str, int] = {}
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._scratch_filled = 0
        # A frame longer than its arrived part gets memory of its own, and the socket writes right into that memory.
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self.most_bytes = MAX_UNAUTHENTICATED_BYTES
        self.session: SaslSession | None = None
        self._held: list[tuple[_PendingRequest | None, list[Buffer]]] | None = None
        """Requests that wait until the session is renewed; None: requests are written at once."""
        self.received_bytes = 0
        """A sign of life of the server, also between its answers."""

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        waiting = ", ".join(sorted({pending.name for pending in self._pending}))
        why = f"{self.address} closed the connection" + (f" while {waiting} was pending" if waiting else "")
        if not self._versions:
            why += f" ({self._hint})"
        reason = client_fault(exc) if isinstance(exc, ssl.SSLError) else exc
        self._fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{why}: {reason}" if exc else why))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._scratch[self._scratch_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        try:
            if self._frame is not None:
                self._frame_filled += nbytes
                if self._frame_filled == len(self._frame):
                    frame, self._frame = self._frame, None
                    self._answer(frame)
            else:
                self._scratch_filled += nbytes
                self._take_frames()
        except KafkaError as fault:
            self._fail(fault)

    def _take_frames(self) -> None:
        position, filled = 0, self._scratch_filled
        while filled - position >= 4:
            (length,) = _LENGTH.unpack_from(self._scratch, position)
            self._check_length(length)
            start, end = position + 4, position + 4 + length
            if end > filled:
                self._frame = memoryview(bytearray(length))
                self._frame_filled = filled - start
                self._frame[: self._frame_filled] = self._scratch[start:filled]
                self._scratch_filled = 0
                return
            position = end
            self._answer(memoryview(bytes(self._scratch[start:end])))
        rest = filled - position
        if position and rest:
            self._scratch[:rest] = bytes(self._scratch[position:filled])
        self._scratch_filled = rest

    def _check_length(self, length: int) -> None:
        if not 4 <= length <= self.most_bytes:
            raise KafkaError(
                ErrorCode.NETWORK_EXCEPTION,
                f"{self.address} does not speak Kafka's protocol (an answer of {length} bytes): "
                "is this the port of another service, or a port that expects TLS?",
            )

    def _answer(self, frame: memoryview) -> None:
        if not self._pending:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self.address} sent an answer without a request")
        pending = self._pending[0]
        version = pending.version
        if pending.schema.api_key == API_VERSIONS and frame[4:6] == _ERROR_35:
            version = 0  # KIP-511: error 35 comes in the form of version 0, whatever was asked
        try:
            correlation_id, response = decode_response(pending.response_type, version, frame)
        except MalformedMessage as malformed:
            detail = f"the answer of {self.address} to {pending.name} v{version} cannot be read: {malformed.detail}"
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, detail) from malformed
        if correlation_id != pending.correlation_id:
            raise KafkaError(
                ErrorCode.NETWORK_EXCEPTION,
                f"{self.address} answered request {correlation_id} where {pending.correlation_id} was next",
            )
        self._pending.popleft()
        if not pending.future.done():
            pending.future.set_result(response)

    # Called by clients

    @property
    def is_open(self) -> bool:
        return self._fault is None and self._transport is not None

    def version_of(self, request_type: type[Any], max_version: int = ANY_VERSION) -> int:
        """The newest version of this request, up to `max_version`, that both sides know.

        Raises KafkaError(UNSUPPORTED_VERSION) that names both ranges.
        """
        schema = schema_of(request_type)
        least, most = schema.versions
        low, high = self._versions.get(api_key_of(request_type), (0, -1))
        version = min(high, most, max_version)
        if version < max(low, least):
            offered = f"offers {low}-{high}" if high >= 0 else "does not offer it"
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} {offered}, this client needs {_name_of(schema)} {least}-{most}",
            )
        return version

    def offers(self, request_type: type[Any], version: int = 0) -> bool:
        """Whether both sides know this request in this version or a newer version."""
        low, high = self._versions.get(api_key_of(request_type), (0, -1))
        return low <= max(version, low) <= min(high, schema_of(request_type).versions.last)

    def feature_level(self, name: str) -> int:
        """The level of this feature that the cluster had finalized when the connection was made (KIP-584); 0: none."""
        return self._features.get(name, 0)

    async def ask(
        self, request: object, response_type: type[R], *, timeout_ms: int, max_version: int = ANY_VERSION
    ) -> R:
        """The answer to this request. Raises KafkaError: REQUEST_TIMED_OUT, NETWORK_EXCEPTION, UNSUPPORTED_VERSION."""
        return await self.send(request, response_type, timeout_ms=timeout_ms, max_version=max_version)

    def send(
        self, request: object, response_type: type[R], *, timeout_ms: int, max_version: int = ANY_VERSION
    ) -> asyncio.Future[R]:
        """Write the request at once and return the future of its answer: several requests may be on their way."""
        return self._send(request, response_type, self.version_of(type(request), max_version), timeout_ms)

    def send_unanswered(self, request: object, *, max_version: int = ANY_VERSION) -> None:
        """Write a request that gets no answer (Produce with acks=0)."""
        version = self.version_of(type(request), max_version)
        chunks = encode_request(request, version, self._correlation_id(), self._client_id)
        if self._held is not None:
            self._held.append((None, chunks))
        else:
            self._write(chunks)

    def _send(self, request: object, response_type: type[R], version: int, timeout_ms: int) -> asyncio.Future[R]:
        correlation_id = self._correlation_id()
        chunks = encode_request(request, version, correlation_id, self._client_id)
        future: asyncio.Future[R] = self._loop.create_future()
        if self._fault is not None:
            future.set_exception(self._fault)
            return future
        deadline = self._loop.time() + timeout_ms / 1000
        schema = schema_of(type(request))
        pending = _PendingRequest(schema, version, response_type, correlation_id, deadline, future)
        if self._held is not None and not isinstance(request, StepOfSasl):
            self._held.append((pending, chunks))
        else:
            self._pending.append(pending)
            self._watch(deadline)
            self._write(chunks)
        return future

    def _correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        return correlation_id

    def _write(self, chunks: list[Buffer]) -> None:
        if self._fault is not None:
            raise self._fault
        assert self._transport is not None, "a connection is used after it was made"
        self._transport.writelines([frame_prefix(chunks), *chunks])

    def close(self, reason: str = "closed by this client") -> None:
        """Close at once; pending requests fail with the reason."""
        self._fail(KafkaError(ErrorCode.NETWORK_EXCEPTION, f"connection to {self.address}: {reason}"))

    def _fail(self, fault: KafkaError) -> None:
        if self._fault is not None:
            return
        self._fault = fault
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self.session is not None:
            self.session.end()
        if self._transport is not None:
            self._transport.abort()
        held, self._held = self._held or (), None
        self._pending.extend(pending for pending, _ in held if pending is not None)
        while self._pending:
            pending = self._pending.popleft()
            if not pending.future.done():
                pending.future.set_exception(KafkaError(fault.code, fault.detail))

    def _watch(self, deadline: float) -> None:
        if self._watchdog is not None:
            if self._watchdog.when() <= deadline:
                return
            self._watchdog.cancel()
        self._watchdog = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._watchdog = None
        now = self._loop.time()
        late = [pending for pending in self._pending if pending.deadline <= now]
        for pending in late:
            if not pending.future.done():
                detail = f"{self.address} did not answer {pending.name} v{pending.version} in time"
                pending.future.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail))
        if late:
            self.close(f"{late[0].name} was not answered in time")
        elif self._pending:
            self._watch(min(pending.deadline for pending in self._pending))

    # SASL

    def hold(self) -> None:
        """Let requests wait until `release`, but for requests of an authentication."""
        self._held = []

    def release(self) -> None:
        """Write the requests that waited."""
        held, self._held = self._held or (), None
        for pending, chunks in held:
            if pending is not None:
                self._pending.append(pending)
                self._watch(pending.deadline)
            self._write(chunks)

    async def _negotiate(self, version: int, timeout_ms: int) -> None:
        """Get the server's API versions with this version of ApiVersions."""
        request = ApiVersionsRequest(client_software_name="tailrace", client_software_version=__version__)
        response = await self._send(request, ApiVersionsResponse, version, timeout_ms)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
            known = {api.api_key: api.max_version for api in response.api_keys}
            await self._negotiate(min(known.get(API_VERSIONS, 0), version - 1), timeout_ms)
            return
        if response.error_code:
            detail = f"{self.address} refused ApiVersions with error {response.error_code}"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self._features = {feature.name: feature.max_version_level for feature in response.finalized_features}


class ConnectionRefused(KafkaError):
    """Raised when no process listens at the address, though its machine answers."""


async def connect(
    address: Address,
    *,
    client_id: str,
    timeout_ms: int = 10_000,
    tls: TlsContexts | None = None,
    sasl: SaslConfig | None = None,
) -> Connection:
    """Open a connection, with `tls` encrypted, get the server's API versions, and with `sasl` authenticate this end.

    A server that hangs up on ApiVersions v3, or answers in a form of its own, is asked again in version 0.
    Raises KafkaError(NETWORK_EXCEPTION) that names the address and what to look at; its subclass ConnectionRefused if
    the port is closed.
    """
    failure = KafkaError
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            try:
                connection = await _open(address, client_id, NEGOTIATED_WITH, timeout_ms, tls)
            except KafkaError:
                connection = await _open(address, client_id, 0, timeout_ms, tls)
            if sasl is not None:
                connection.session = SaslSession(connection, sasl, timeout_ms)
                await connection.session.begin()
            connection.most_bytes = MAX_RESPONSE_BYTES
            return connection
    except TimeoutError:
        detail = f"{address} did not answer within {timeout_ms} ms: is it a Kafka port, and is it reachable from here?"
    except ssl.SSLError as fault:
        detail = f"no TLS with {address}: {client_fault(fault)}"
    except OSError as fault:
        if isinstance(fault, ConnectionRefusedError):
            failure = ConnectionRefused
        reason = fault.strerror or str(fault) or "it hung up" + (" within the TLS handshake" if tls else "")
        detail = f"cannot connect to {address}: {reason}"
    except UnicodeError as fault:  # the name has an empty part, or a part of more than 63 characters
        detail = f"cannot connect to {address}: {fault}"
    raise failure(ErrorCode.NETWORK_EXCEPTION, detail)


async def _open(address: Address, client_id: str, version: int, timeout_ms: int, tls: TlsContexts | None) -> Connection:
    loop = asyncio.get_running_loop()
    connection = Connection(address, client_id, loop, tls)
    if tls is None:
        await loop.create_connection(lambda: connection, address.host, address.port)
    else:
        await loop.create_connection(
            lambda: connection,
            address.host,
            address.port,
            ssl=tls.current(loop.time()),
            server_hostname=address.host,
            ssl_handshake_timeout=timeout_ms / 1000,
            ssl_shutdown_timeout=_GOODBYE_SECONDS,
        )
    try:
        await connection._negotiate(version, timeout_ms)
    except BaseException:
        connection.close("negotiation failed")
        raise
    return connection
