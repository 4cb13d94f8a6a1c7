"""The first requests of a connection: ApiVersions (18), what this node speaks (KIP-511), and a client's identity.

SaslHandshake (17) and SaslAuthenticate (36) come before any other request (KIP-43, KIP-152).
"""

from tailrace.protocol.schema import Int16, Int32, Int64, field, message, struct


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsRequest:
    """Asks which requests the node serves. v3 adds the client's library, by name and version (KIP-511)."""

    client_software_name: str = field(versions="3+", default="")
    client_software_version: str = field(versions="3+", default="")


@struct
class ApiVersion:
    """The versions of one request that a client may use."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


@struct
class SupportedFeatureKey:
    """A feature that this node could run with, and its range (KIP-584)."""

    name: str = field(versions="3+", default="")
    min_version: Int16 = field(versions="3+", default=0)
    max_version: Int16 = field(versions="3+", default=0)


@struct
class FinalizedFeatureKey:
    """A feature level that the whole cluster has agreed on."""

    name: str = field(versions="3+", default="")
    max_version_level: Int16 = field(versions="3+", default=0)
    min_version_level: Int16 = field(versions="3+", default=0)


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsResponse:
    """The requests that the node serves. v1 adds the throttle time, v3 the features (KIP-584).

    To a version that it does not know, a node answers with error 35 in the body of v0.
    """

    error_code: Int16 = 0
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: Int32 = field(versions="1+", default=0)
    supported_features: tuple[SupportedFeatureKey, ...] = field(versions="3+", tag=0, default=())
    finalized_features_epoch: Int64 = field(versions="3+", tag=1, default=-1)
    finalized_features: tuple[FinalizedFeatureKey, ...] = field(versions="3+", tag=2, default=())
    zk_migration_ready: bool = field(versions="3+", tag=3, default=False)


@message(api_key=17, versions="0-1")
class SaslHandshakeRequest:
    """Chooses a mechanism. v1: the tokens that follow travel in SaslAuthenticate."""

    mechanism: str


@message(api_key=17, versions="0-1")
class SaslHandshakeResponse:
    """Whether the mechanism is offered, and the mechanisms that are."""

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
