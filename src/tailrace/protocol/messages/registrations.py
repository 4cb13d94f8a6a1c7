"""BrokerRegistration (62), BrokerHeartbeat (63), UnregisterBroker (64), ControllerRegistration (70).

Processes register with the controller (KIP-631, KIP-919), and administrators remove processes that will not come back.

UpdateFeatures (57): the level of a feature that the whole cluster uses (KIP-584).
"""

from tailrace.protocol.schema import ZERO_UUID, Int8, Int16, Int32, Int64, UInt16, Uuid, field, message, struct


@struct
class RegisteredListener:
    """An address at which a process listens."""

    name: str
    host: str
    port: UInt16
    security_protocol: Int16


@struct
class RegisteredFeature:
    """The levels of a feature that a process can work with. Before v4 of 62, not below 1 (KIP-1022)."""

    name: str
    min_supported_version: Int16
    max_supported_version: Int16


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationRequest:
    """A broker has started. v2 adds its log directories (KIP-858), v3 the epoch before a clean stop (KIP-966)."""

    broker_id: Int32
    cluster_id: str
    incarnation_id: Uuid
    listeners: tuple[RegisteredListener, ...]
    features: tuple[RegisteredFeature, ...]
    rack: str | None
    is_migrating_zk_broker: bool = field(versions="1+", default=False)
    log_dirs: tuple[Uuid, ...] = field(versions="2+", default=())
    previous_broker_epoch: Int64 = field(versions="3+", default=-1)
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this broker (`model.proofs`)."""
    directory_secret: Uuid = field(versions="0+", tag=10101, default=ZERO_UUID)
    """Ours: proves that the sender has these log directories."""


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationResponse:
    """The epoch in which the broker is known from now on."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    broker_epoch: Int64 = -1


@message(api_key=63, versions="0-1", flexible="0+")
class BrokerHeartbeatRequest:
    """A broker is alive. v1 adds the log directories that have failed (KIP-858)."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64
    """The highest offset of the metadata log that the broker has applied."""
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: tuple[Uuid, ...] = field(versions="1+", tag=0, default=())
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this broker (`model.proofs`)."""


@message(api_key=63, versions="0-1", flexible="0+")
class BrokerHeartbeatResponse:
    """The controller's state of the broker."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    """A broker will not come back."""

    broker_id: Int32


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    """Whether the broker is forgotten."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationRequest:
    """The listeners of a controller and the features that it supports (KIP-919)."""

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: bool
    listeners: tuple[RegisteredListener, ...]
    features: tuple[RegisteredFeature, ...]
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this controller (`model.proofs`)."""


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationResponse:
    """Whether the active controller has noted the registration."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


# Features


@struct
class FeatureUpdateKey:
    """The new level of a feature; below 1 removes the feature. v1 says whether the level may be lowered, and whether
    metadata may be lost by this."""

    feature: str
    max_version_level: Int16
    allow_downgrade: bool = field(versions="0", default=False)
    upgrade_type: Int8 = field(versions="1+", default=1)
    """1 upgrade, 2 downgrade that loses nothing, 3 downgrade that may lose something."""


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Asks for levels, which are set together or not at all. v1 has `validate_only`, which only checks the change."""

    timeout_ms: Int32 = 60_000
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: bool = field(versions="1+", default=False)


@struct
class UpdatableFeatureResult:
    """The outcome for one feature; not in v2 and later, where all changes succeed or fail together (KIP-1022)."""

    feature: str = field(versions="0-1", default="")
    error_code: Int16 = field(versions="0-1", default=0)
    error_message: str | None = field(versions="0-1", default="")


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """Whether the features have the wanted levels."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None
    results: tuple[UpdatableFeatureResult, ...] = field(versions="0-1", default=())
