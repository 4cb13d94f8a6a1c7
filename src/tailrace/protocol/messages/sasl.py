"""SaslHandshake (17) and SaslAuthenticate (36): a client's identity, before any other request (KIP-43, KIP-152)."""

from tailrace.protocol.schema import Int16, Int64, field, message


@message(api_key=17, versions="0-1")
class SaslHandshakeRequest:
    """Chooses a mechanism. v1: the tokens that follow travel in SaslAuthenticate."""

    mechanism: str


@message(api_key=17, versions="0-1")
class SaslHandshakeResponse:
    """Whether the mechanism is offered, and which ones are."""

    error_code: Int16 = 0
    mechanisms: tuple[str, ...]


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    """A token of the mechanism."""

    auth_bytes: bytes


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The other side's token. v1 adds how long the session lasts (KIP-368)."""

    error_code: Int16 = 0
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: Int64 = field(versions="1+", default=0)
