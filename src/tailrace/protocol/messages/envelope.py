"""Envelope (58): a client's request, passed on by the receiving broker to the active controller (KIP-590).

Between our own nodes an envelope has more fields, tagged from 10000 on, that Kafka's nodes skip: the leader epoch that
the request is meant for and a number from its sender, so that a request that comes twice or late is carried out once.
The answer names the end offset of the metadata log behind the request's effects.
"""

from tailrace.protocol.schema import ZERO_UUID, Int16, Int32, Int64, Uuid, field, message

FORWARDING_FEATURE = "tailrace.forwarding"
"""Announced as a supported feature, level 1: the tagged fields of Envelope and AlterPartition."""


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeRequest:
    """The request with its header, its principal, and the client's address."""

    request_data: bytes
    request_principal: bytes | None
    client_host_address: bytes
    """4 or 16 bytes."""
    leader_epoch: Int32 = field(versions="0+", tag=10000, default=-1)
    """The epoch of the active controller to which the request goes: a later controller must not carry the request out.
    -1 if the sender is no broker of Tailrace."""
    sender_id: Uuid = field(versions="0+", tag=10001, default=ZERO_UUID)
    """The sending process: one start of one node."""
    request_number: Int64 = field(versions="0+", tag=10002, default=-1)
    """The same number when the request is sent again; higher for each new request of this sender."""


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeResponse:
    """The answer with its header. An error here is a failure to pass the request on."""

    response_data: bytes | None = None
    error_code: Int16 = 0
    metadata_end_offset: Int64 = field(versions="0+", tag=10000, default=-1)
    """The offset of the metadata log below which lies everything that the answer is based on. Only for a sender of
    ours."""


@message(versions="0", flexible="0+")
class PrincipalData:
    """A client's principal, as Kafka's own are written into an envelope: behind the version, an int16."""

    type: str
    name: str
    token_authenticated: bool = False
