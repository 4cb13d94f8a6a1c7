"""UpdateFeatures (57): which level of a feature the whole cluster uses (KIP-584)."""

from tailrace.protocol.schema import Int8, Int16, Int32, field, message, struct


@struct
class FeatureUpdateKey:
    """The level that a feature is to have; below 1 removes it. v1 says how it may come to that."""

    feature: str
    max_version_level: Int16
    allow_downgrade: bool = field(versions="0", default=False)
    upgrade_type: Int8 = field(versions="1+", default=1)
    """1 upgrade, 2 downgrade that loses nothing, 3 downgrade that may lose something."""


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Asks for all of these levels or none. v1 may only ask whether it could be done."""

    timeout_ms: Int32 = 60_000
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: bool = field(versions="1+", default=False)


@struct
class UpdatableFeatureResult:
    """One feature; gone in v2, since all succeed or fail together (KIP-1022)."""

    feature: str = field(versions="0-1", default="")
    error_code: Int16 = field(versions="0-1", default=0)
    error_message: str | None = field(versions="0-1", default="")


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """Whether the levels are as they were wanted."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None
    results: tuple[UpdatableFeatureResult, ...] = field(versions="0-1", default=())
