"""CreateDelegationToken (38), RenewDelegationToken (39), ExpireDelegationToken (40) and DescribeDelegationToken (41).

Tokens are handed on by their owners in place of a password (KIP-48). v2 is flexible; v3 of creation and description has
a requester beside the owner (KIP-373).
"""

from tailrace.protocol.schema import Int16, Int32, Int64, field, message, struct


@struct
class TokenPrincipal:
    """A user: the owner of a token, or a user that may renew it."""

    principal_type: str
    principal_name: str


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    """Asks for a token; without an owner it is the requester's own."""

    owner_principal_type: str | None = field(versions="3+", default=None)
    owner_principal_name: str | None = field(versions="3+", default=None)
    renewers: tuple[TokenPrincipal, ...]
    max_lifetime_ms: Int64


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    """The token."""

    error_code: Int16 = 0
    principal_type: str
    principal_name: str
    token_requester_principal_type: str = field(versions="3+", default="")
    token_requester_principal_name: str = field(versions="3+", default="")
    issue_timestamp_ms: Int64 = -1
    expiry_timestamp_ms: Int64 = -1
    max_timestamp_ms: Int64 = -1
    token_id: str
    hmac: bytes
    throttle_time_ms: Int32 = 0


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    """Asks that a token expires later."""

    hmac: bytes
    renew_period_ms: Int64


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    """The time at which the token expires now."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    """Asks that a token expires sooner."""

    hmac: bytes
    expiry_time_period_ms: Int64


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    """The time at which the token expires now."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    """Asks for the tokens of some owners, or of all."""

    owners: tuple[TokenPrincipal, ...] | None


@struct
class DescribedDelegationToken:
    """A token of its owner."""

    principal_type: str
    principal_name: str
    token_requester_principal_type: str = field(versions="3+", default="")
    token_requester_principal_name: str = field(versions="3+", default="")
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: str
    hmac: bytes
    renewers: tuple[TokenPrincipal, ...]


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    """The tokens."""

    error_code: Int16 = 0
    tokens: tuple[DescribedDelegationToken, ...]
    throttle_time_ms: Int32 = 0
