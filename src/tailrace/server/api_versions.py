"""ApiVersions (18): the requests that this node serves, with their versions.

- The answer to an unknown version of ApiVersions is error 35 in version 0, with only the versions of ApiVersions
  (KIP-511).
- The name and version of the client software must look like words (KIP-511), else INVALID_REQUEST.
- Features (KIP-584): metadata.version and transaction.version, supported and finalized, and our extensions: key ranges
  and sinks once all brokers know the extension. Clients before v4 cannot read a feature that begins with level 0, so
  their answer leaves such a feature out (KAFKA-17492).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tailrace.metadata.broker_commands import OWN_FEATURES
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import SINKS_FEATURE
from tailrace.protocol.headers import API_VERSIONS
from tailrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from tailrace.protocol.messages.envelope import FORWARDING_FEATURE
from tailrace.protocol.messages.fetch import KEY_RANGES_FEATURES
from tailrace.protocol.messages.groups import DETAILS_FEATURE
from tailrace.protocol.registry import Api
from tailrace.server.context import RequestContext

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_LONGEST_SOFTWARE = 256
_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_LEVEL_0 = 4
_SUPPORTED = (
    *(SupportedFeatureKey(name=name, min_version=first, max_version=last) for name, first, last in OWN_FEATURES),
    *(SupportedFeatureKey(name=name, min_version=1, max_version=1) for name in (DETAILS_FEATURE, FORWARDING_FEATURE)),
)


_SUPPORTED_ABOVE_0 = tuple(feature for feature in _SUPPORTED if feature.min_version > 0)
_KEY_RANGES = tuple(SupportedFeatureKey(name=name, min_version=1, max_version=1) for name in KEY_RANGES_FEATURES)
_SINKS = SupportedFeatureKey(name=SINKS_FEATURE, min_version=1, max_version=1)


class FinalizedFeatures(NamedTuple):
    """The feature levels of the whole cluster."""

    levels: Mapping[str, int]
    epoch: int
    """The levels are the levels after the metadata record at this offset; -1 if the levels are unknown."""
    takes_ranges: bool = False
    """Whether requests of key ranges are served here (KIP-X): all brokers know key ranges, and key ranges are not
    switched off."""
    knows_sinks: bool = False
    """Whether all brokers know sinks."""


NOTHING_FINALIZED: Final = FinalizedFeatures(MappingProxyType({}), -1)


class ApiVersionsHandler:
    """Announces the given APIs, and the features that `finalized` returns at the time of the request."""

    def __init__(self, apis: Iterable[Api], finalized: Callable[[], FinalizedFeatures]) -> None:
        self._table = tuple(
            ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
            for api in sorted(apis, key=lambda api: api.key)
        )
        self._finalized = finalized

    def handle(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if context.api_version >= _FIRST_WITH_SOFTWARE:
            _check_software("client_software_name", request.client_software_name)
            _check_software("client_software_version", request.client_software_version)
        levels, epoch, takes_ranges, knows_sinks = self._finalized()
        supported = _SUPPORTED if context.api_version >= _FIRST_WITH_LEVEL_0 else _SUPPORTED_ABOVE_0
        return ApiVersionsResponse(
            api_keys=self._table,
            supported_features=(*supported, *_KEY_RANGES * takes_ranges, *(_SINKS,) * knows_sinks),
            finalized_features_epoch=epoch,
            finalized_features=tuple(
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(levels.items())
            ),
        )

    def unsupported_version(self) -> ApiVersionsResponse:
        """The answer in version 0 to a client with an unknown version."""
        own = tuple(entry for entry in self._table if entry.api_key == API_VERSIONS)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


def _check_software(field: str, text: str) -> None:
    if len(text) > _LONGEST_SOFTWARE or not _SOFTWARE.fullmatch(text):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{field} must consist of letters, digits, '-' and '.'")
