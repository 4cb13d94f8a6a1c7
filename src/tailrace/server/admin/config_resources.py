"""ListConfigResources (74): v0 is ListClientMetricsResources; v1 of any type (KIP-1142)."""

from collections.abc import Iterator

from tailrace.metadata.image import ResourceType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.configs import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller

_FIRST_WITH_TYPES = 1
_ALL = frozenset(ResourceType)


class ListConfigResourcesHandler:
    """Names the topics and brokers, and the groups and client metrics that have settings. Loggers have none here."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: ListConfigResourcesRequest, context: RequestContext) -> ListConfigResourcesResponse:
        wanted = {int(ResourceType.CLIENT_METRICS)}
        if context.api_version >= _FIRST_WITH_TYPES:
            wanted = set(request.resource_types) or {int(kind) for kind in _ALL}
        unknown = wanted - _ALL
        if unknown:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"resources of type {min(unknown)} do not exist")
        resources = tuple(
            ListedConfigResource(resource_type=kind, resource_name=name) for kind, name in self._all() if kind in wanted
        )
        return ListConfigResourcesResponse(config_resources=resources)

    def _all(self) -> Iterator[tuple[int, str]]:
        image = self._controller.image
        for topic in sorted(image.topics):
            yield ResourceType.TOPIC, topic
        for broker_id in sorted(image.brokers):
            yield ResourceType.BROKER, str(broker_id)
        for kind, name in sorted(image.configs):
            if kind in (ResourceType.CLIENT_METRICS, ResourceType.GROUP):
                yield kind, name
