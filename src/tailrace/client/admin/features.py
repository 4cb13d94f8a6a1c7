"""The levels of features that a cluster supports and has; see `AsyncAdmin`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode
from tailrace.model.version import __version__
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

_GRACE_MS = 5_000
"""The margin of an answer beyond the time that the server was given."""


class UpgradeType(IntEnum):
    """In which direction a level may go, as on the wire (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    """Only if nothing is lost by it."""
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """The levels that the asked node supports, and those that the cluster has."""

    supported: Mapping[str, tuple[int, int]]
    """The lowest and the highest level of each feature."""
    finalized: Mapping[str, int]
    epoch: int
    """Rises with the cluster's metadata; -1 where there is none."""


async def describe_features(router: Router) -> FeatureDescription:
    """The features of the cluster."""
    request = ApiVersionsRequest(client_software_name="tailrace", client_software_version=__version__)

    async def attempt() -> FeatureDescription:
        connection = await router.any_connection()
        response = await connection.ask(request, ApiVersionsResponse, timeout_ms=router.request_timeout_ms)
        check(response.error_code, "the features cannot be described")
        return FeatureDescription(
            supported={each.name: (each.min_version, each.max_version) for each in response.supported_features},
            finalized={each.name: each.max_version_level for each in response.finalized_features},
            epoch=response.finalized_features_epoch,
        )

    return await router.retry(attempt)


async def update_features(
    router: Router,
    levels: Mapping[str, int],
    *,
    upgrade_type: UpgradeType,
    validate_only: bool,
    timeout_ms: int,
) -> None:
    """Give features these levels, all or none; 0 removes one. Raises KafkaError."""
    updates = tuple(
        FeatureUpdateKey(
            feature=name,
            max_version_level=level,
            allow_downgrade=upgrade_type is not UpgradeType.UPGRADE,
            upgrade_type=upgrade_type,
        )
        for name, level in levels.items()
    )
    request = UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=updates, validate_only=validate_only)

    async def attempt() -> None:
        connection = await router.controller_connection()
        response = await connection.ask(request, UpdateFeaturesResponse, timeout_ms=timeout_ms + _GRACE_MS)
        if response.error_code == ErrorCode.NOT_CONTROLLER:
            await router.refresh(())
        check(response.error_code, response.error_message or "the levels cannot be changed")
        for result in response.results:
            check(result.error_code, result.error_message or f"the level of {result.feature} cannot be changed")

    await router.retry(attempt)
