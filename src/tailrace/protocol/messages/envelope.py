"""Envelope (58): a client's request, passed on by the broker that got it to the one that can carry it out (KIP-590)."""

from tailrace.protocol.schema import Int16, message


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeRequest:
    """The request with its header, whose it is, and from where."""

    request_data: bytes
    request_principal: bytes | None
    client_host_address: bytes
    """4 or 16 bytes."""


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeResponse:
    """The answer with its header. An error here is of the passing on."""

    response_data: bytes | None = None
    error_code: Int16 = 0
