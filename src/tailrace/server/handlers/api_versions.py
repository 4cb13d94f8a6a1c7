"""ApiVersions (18): which requests this node serves, in which versions.

- The answer of an unknown version is error 35 in version 0, with the whole table (KIP-511).
- The name and version of the client software must look like words (KIP-511), else INVALID_REQUEST.
- No feature of Kafka's is announced: clients then use transactions as before KIP-890. Supported are our extensions.
"""

import re
from collections.abc import Iterable

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from tailrace.protocol.messages.group_details import DETAILS_FEATURE
from tailrace.protocol.registry import Api
from tailrace.server.context import RequestContext

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_LONGEST_SOFTWARE = 256
_FIRST_WITH_SOFTWARE = 3
_EXTENSIONS = (SupportedFeatureKey(name=DETAILS_FEATURE, min_version=1, max_version=1),)


class ApiVersionsHandler:
    """Announces the given APIs."""

    def __init__(self, apis: Iterable[Api]) -> None:
        self._table = tuple(
            ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
            for api in sorted(apis, key=lambda api: api.key)
        )
        self._answer = ApiVersionsResponse(api_keys=self._table, supported_features=_EXTENSIONS)

    def handle(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if context.api_version >= _FIRST_WITH_SOFTWARE:
            _check_software("client_software_name", request.client_software_name)
            _check_software("client_software_version", request.client_software_version)
        return self._answer

    def unsupported_version(self) -> ApiVersionsResponse:
        """The answer, to be sent in version 0, to a client that speaks a version we do not know."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._table)


def _check_software(field: str, text: str) -> None:
    if len(text) > _LONGEST_SOFTWARE or not _SOFTWARE.fullmatch(text):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{field} must consist of letters, digits, '-' and '.'")
