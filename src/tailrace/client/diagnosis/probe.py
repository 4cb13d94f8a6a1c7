"""Probes of a server, step by step: its addresses, a connection, one request. Each failure has its own error.

A client retries after a fault; a probe reports the fault. A probe blocks, has a connection of its own, and a limit for
every wait.
"""

import errno
import socket
import ssl
import struct
import time
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import NEGOTIATED_WITH, Address
from tailrace.protocol.headers import decode_response, encode_request, frame_prefix
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.registry import api_of

R = TypeVar("R")

_MAX_ANSWER_BYTES = 16 << 20
_LENGTH = struct.Struct(">i")
_TLS_HANDSHAKE = b"\x16\x03"
_TLS_ALERT = b"\x15\x03"
_CLIENT_ID = "tailrace-doctor"


class Trouble(StrEnum):
    """The trouble between a client and a server."""

    UNRESOLVED = "unresolved"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed out"
    CLOSED = "closed"
    SILENT = "silent"
    TLS = "tls"
    PLAIN = "plain"
    CERTIFICATE_WANTED = "client certificate wanted"
    HTTP = "http"
    NOT_KAFKA = "not kafka"


class ProbeFault(Exception):
    """A failed step."""

    def __init__(self, trouble: Trouble, detail: str) -> None:
        super().__init__(detail)
        self.trouble = trouble
        self.detail = detail


class Target(NamedTuple):
    """An address of a host."""

    family: int
    socket_address: tuple[Any, ...]

    @property
    def ip(self) -> str:
        return str(self.socket_address[0])

    def __str__(self) -> str:
        return str(Address(self.ip, int(self.socket_address[1])))


def resolve(host: str, port: int) -> list[Target]:
    """Every address of a host, in the order of clients' attempts. Raises ProbeFault(UNRESOLVED)."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        raise ProbeFault(Trouble.UNRESOLVED, getattr(fault, "strerror", None) or str(fault)) from None
    return list(dict.fromkeys(Target(int(family), tuple(address)) for family, _, _, _, address in found))


class Probe:
    """A connection to one address. Every method raises ProbeFault if its step fails."""

    def __init__(self, target: Target, *, timeout_s: float, server_name: str | None = None) -> None:
        """Connect; with a server name over TLS, with any certificate: `certificate_fault` checks the certificate."""
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = socket.socket(target.family, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            self._connect(target)
            if server_name is not None:
                self._start_tls(server_name)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _connect(self, target: Target) -> None:
        try:
            self._socket.connect(target.socket_address)
        except TimeoutError:
            raise ProbeFault(Trouble.TIMED_OUT, f"no answer within {self._timeout_s:g} s") from None
        except ConnectionRefusedError:
            raise ProbeFault(Trouble.REFUSED, "nothing listens there") from None
        except OSError as fault:
            name = errno.errorcode.get(fault.errno or 0, "")
            raise ProbeFault(Trouble.UNREACHABLE, f"{fault.strerror or fault} ({name})") from None

    def _start_tls(self, server_name: str) -> None:
        try:
            self._socket = _trusting_context().wrap_socket(self._socket, server_hostname=server_name)
        except ssl.SSLError as fault:
            raise ProbeFault(Trouble.PLAIN, f"no TLS: {fault.reason or fault}") from None
        except TimeoutError:
            raise ProbeFault(Trouble.SILENT, f"no TLS handshake within {self._timeout_s:g} s") from None
        except OSError as fault:
            raise ProbeFault(Trouble.CLOSED, f"closed the connection on a TLS hello ({fault})") from None

    def send_raw(self, data: bytes) -> bytes:
        """The first bytes of the answer to these bytes; empty if the server closes the connection."""
        return self._exchange(data, 64)

    def ask_versions(self) -> ApiVersionsResponse:
        """Ask the server for its APIs; later requests use the versions in the answer."""
        response = self._ask(ApiVersionsRequest(client_software_name="tailrace", client_software_version=__version__))
        if response.error_code:
            detail = f"ApiVersions was answered with error {_error_name(response.error_code)}"
            raise ProbeFault(Trouble.NOT_KAFKA, detail)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        return response

    def _ask(self, request: ApiVersionsRequest) -> ApiVersionsResponse:
        answer = self._answer_to(request, NEGOTIATED_WITH)
        version = NEGOTIATED_WITH
        if answer[4:6] == _ERROR_35:  # KIP-511: in the form of version 0
            answer, version = self._answer_to(request, 0), 0
        return self._decode(ApiVersionsResponse, version, answer)

    def ask(self, request: object, response_type: type[R], *, max_version: int) -> R:
        """The answer to a request, in the newest version of both sides."""
        api = api_of(type(request))
        low, high = self._versions.get(api.key, (0, -1))
        version = min(high, api.max_version, max_version)
        if version < max(low, api.min_version):
            raise ProbeFault(Trouble.NOT_KAFKA, f"{api.name} {low}-{high} is served, which this client cannot ask for")
        return self._decode(response_type, version, self._answer_to(request, version))

    def _answer_to(self, request: object, version: int) -> bytes:
        self._correlation_id += 1
        chunks = encode_request(request, version, self._correlation_id, _CLIENT_ID)
        head = self._exchange(frame_prefix(chunks) + b"".join(chunks), 4)
        if not head:
            raise ProbeFault(Trouble.CLOSED, f"closed the connection on {api_of(type(request)).name}")
        if (trouble := _foreign_words(head)) is not None:
            raise ProbeFault(trouble, _NAMES_OF_FOREIGN_WORDS[trouble])
        (length,) = _LENGTH.unpack(head.ljust(4, b"\0"))
        if len(head) < 4 or not 4 <= length <= _MAX_ANSWER_BYTES:
            raise ProbeFault(
                Trouble.NOT_KAFKA, f"the answer starts with {head.hex(' ')}, which is not Kafka's protocol"
            )
        return self._receive(length)

    def _exchange(self, data: bytes, most: int) -> bytes:
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise ProbeFault(Trouble.SILENT, f"took nothing within {self._timeout_s:g} s") from None
        except OSError:
            return b""
        return self._receive(most, is_partial_allowed=True)

    def _receive(self, length: int, *, is_partial_allowed: bool = False) -> bytes:
        """This number of bytes, or fewer bytes if the stream ends before."""
        received = bytearray()
        deadline = time.monotonic() + self._timeout_s
        while len(received) < length:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self._socket.recv(length - len(received))
            except TimeoutError:
                if received and is_partial_allowed:
                    break
                raise ProbeFault(Trouble.SILENT, f"no answer within {self._timeout_s:g} s") from None
            except ssl.SSLError as fault:
                raise ProbeFault(_trouble_of_tls(fault), f"TLS alert: {fault.reason or fault}") from None
            except OSError:
                chunk = b""
            if not chunk:
                break
            received += chunk
        if len(received) < length and not is_partial_allowed:
            raise ProbeFault(Trouble.CLOSED, f"closed the connection after {len(received)} of {length} bytes")
        return bytes(received)

    def _decode(self, response_type: type[R], version: int, answer: bytes) -> R:
        try:
            correlation_id, response = decode_response(response_type, version, answer)
        except KafkaError as fault:
            raise ProbeFault(Trouble.NOT_KAFKA, f"the answer cannot be read: {fault.detail}") from None
        if correlation_id != self._correlation_id:
            raise ProbeFault(Trouble.NOT_KAFKA, f"the answer is to request {correlation_id}, which was not sent")
        return response


_ERROR_35 = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2)

_NAMES_OF_FOREIGN_WORDS = {
    Trouble.HTTP: "an HTTP server answers there",
    Trouble.TLS: "TLS is spoken there",
}


def identify(target: Target, *, timeout_s: float) -> Trouble | None:
    """The protocol at an address that does not answer Kafka's requests: TLS, HTTP, or None if unknown."""
    for words in (_tls_hello(), b"GET / HTTP/1.0\r\n\r\n"):
        try:
            with Probe(target, timeout_s=timeout_s) as probe:
                trouble = _foreign_words(probe.send_raw(words))
        except ProbeFault:
            continue
        if trouble is not None:
            return trouble
    return None


def certificate_fault(target: Target, *, server_name: str, timeout_s: float) -> str | None:
    """The reason why this machine does not trust the server's certificate; None for a trusted certificate."""
    try:
        with (
            socket.create_connection(target.socket_address[:2], timeout=timeout_s) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=server_name),
        ):
            return None
    except ssl.SSLCertVerificationError as fault:
        return fault.verify_message
    except OSError as fault:
        return str(fault)


def _foreign_words(head: bytes) -> Trouble | None:
    if head.startswith((_TLS_HANDSHAKE, _TLS_ALERT)):
        return Trouble.TLS
    return Trouble.HTTP if head.startswith(b"HTTP") else None


def _trusting_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = _trusting_context().wrap_bio(incoming, outgoing)
    with suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return outgoing.read()


def _trouble_of_tls(fault: ssl.SSLError) -> Trouble:
    reason = (fault.reason or "").upper()
    return Trouble.CERTIFICATE_WANTED if "CERTIFICATE" in reason else Trouble.CLOSED


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
