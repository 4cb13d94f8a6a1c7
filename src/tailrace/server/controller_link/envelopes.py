"""Envelopes of one node, and their answers (Envelope, 58; KIP-590).

A request travels whole, with its header, and so does its answer. The principal is written as Kafka writes its own.
"""

from collections.abc import Callable
from ipaddress import ip_address
from itertools import count
from struct import Struct
from typing import Any, Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse, PrincipalData
from tailrace.protocol.registry import api_of
from tailrace.protocol.schema import decode, encode_bytes

_VERSION: Final = Struct(">h")
_PRINCIPAL_VERSION: Final = 0
_NOWHERE: Final = "127.0.0.1"
_ADDRESS_SIZES: Final = (4, 16)


class Client(NamedTuple):
    """On whose behalf a request is passed on."""

    client_id: str | None
    correlation_id: int
    principal: str
    """As `User:name`."""
    host: str
    """As groups report it: `/127.0.0.1`."""


class Sealed:
    """A request that is ready for envelopes: one per attempt."""

    __slots__ = ("_data", "client", "number", "request", "sender_id", "version")

    def __init__(self, request: Any, version: int, client: Client, number: int, sender_id: bytes) -> None:
        self.request = request
        self.version = version
        self.client = client
        self.number = number
        self.sender_id = sender_id
        self._data: bytes | None = None

    def envelope(self, leader_epoch: int) -> EnvelopeRequest:
        """For the active controller of this epoch."""
        client = self.client
        if self._data is None:  # once: it may be long, and attempts many
            self._data = b"".join(encode_request(self.request, self.version, client.correlation_id, client.client_id))
        return EnvelopeRequest(
            request_data=self._data,
            request_principal=encode_principal(client.principal),
            client_host_address=encode_address(client.host),
            leader_epoch=leader_epoch,
            sender_id=self.sender_id,
            request_number=self.number,
        )

    def answer(self, response: EnvelopeResponse) -> Any:
        """The answer in the envelope. Raises KafkaError UNKNOWN_SERVER_ERROR if there is none.

        An error of the passing on is none that a client expects, and is not for it to see, as in Kafka; but for
        REQUEST_TIMED_OUT: it may have been carried out, and its outcome is forgotten.
        """
        if response.error_code == ErrorCode.REQUEST_TIMED_OUT:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the active controller does not remember what came of it")
        if response.error_code or response.response_data is None:
            raise _not_passed_on(f"error {response.error_code}")
        try:
            correlation_id, answer = decode_response(
                api_of(type(self.request)).response, self.version, response.response_data
            )
        except MalformedMessage as fault:
            raise _not_passed_on(fault.detail) from None
        if correlation_id != self.client.correlation_id:
            raise _not_passed_on(f"correlation id {correlation_id} instead of {self.client.correlation_id}")
        return answer


def _not_passed_on(fault: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the request could not be passed on: {fault}")


class Envelopes:
    """Numbers the requests of one process, so that none is carried out twice."""

    def __init__(self, sender_id: bytes) -> None:
        """`sender_id`: 16 bytes that no other process has, nor an earlier start of this one."""
        self._sender_id = sender_id
        self._numbers: Callable[[], int] = count().__next__

    def seal(self, request: Any, version: int, client: Client) -> Sealed:
        return Sealed(request, version, client, self._numbers(), self._sender_id)


def encode_principal(principal: str) -> bytes:
    """The bytes of a principal like `User:alice`."""
    kind, _, name = principal.partition(":")
    data = PrincipalData(type=kind, name=name)
    return _VERSION.pack(_PRINCIPAL_VERSION) + encode_bytes(data, _PRINCIPAL_VERSION)


def decode_principal(data: bytes | None) -> str:
    """Raises KafkaError PRINCIPAL_DESERIALIZATION_FAILURE."""
    try:
        if data is None or len(data) < _VERSION.size or _VERSION.unpack_from(data)[0] != _PRINCIPAL_VERSION:
            raise MalformedMessage("no principal that this release knows")
        found = decode(PrincipalData, _PRINCIPAL_VERSION, data, _VERSION.size)
    except MalformedMessage as fault:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, fault.detail) from None
    return f"{found.type}:{found.name}"


def encode_address(host: str) -> bytes:
    """The bytes of an address like `/127.0.0.1` or `/::1%lo`."""
    text = host.removeprefix("/").partition("%")[0]
    try:
        return ip_address(text or _NOWHERE).packed
    except ValueError:
        return ip_address(_NOWHERE).packed


def decode_address(data: bytes) -> str:
    """Raises KafkaError INVALID_REQUEST."""
    if len(data) not in _ADDRESS_SIZES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"an address of {len(data)} bytes")
    return f"/{ip_address(data)}"
