"""DescribeConfigs (32), and ListConfigResources (74): v0 of client metrics, v1 of any type (KIP-1142).

v1 sources and synonyms; v2 as v1; v3 types and documentation (KIP-569); v4 flexible. A null list of keys means every
key; keys that do not exist are left out of the answer, as in Kafka. A resource that is named twice is refused, unlike
in Kafka: every 10 bytes of a request would cause 3,000 bytes of the answer, without limit. A view has the settings of
its topic, and they can only be read through the view (decision 0057).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tailrace.metadata.image import ConfigResource, ResourceType
from tailrace.metadata.views import Views
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import METADATA_TOPIC, topic_name_fault
from tailrace.model.settings import current_name
from tailrace.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from tailrace.server.admin.config_entries import (
    DescribedConfig,
    InheritedEntries,
    LiveSettings,
    broker_entries,
    client_metrics_entries,
    metadata_topic_entries,
    shared_broker_entries,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller
from tailrace.server.slices import Stepwise, mapped, once


class DescribeConfigsHandler:
    """Settings of topics, groups, client metrics and this broker. Each resource has an error of its own."""

    def __init__(self, *, controller: Controller, settings: LiveSettings, views: Views) -> None:
        self._controller = controller
        self._settings = settings
        self._views = views

    def handle(self, request: DescribeConfigsRequest, context: RequestContext) -> Stepwise[DescribeConfigsResponse]:
        times = yield from once((resource.resource_type, resource.resource_name) for resource in request.resources)
        inherited = self._settings.inherited_at(self._controller.image)
        # A resource has a hundred settings, so a step handles few resources.
        results = yield from mapped(
            lambda resource: self._describe(resource, request, times, inherited), request.resources, step=2
        )
        return DescribeConfigsResponse(results=results)

    def _describe(
        self,
        resource: DescribeConfigsResource,
        request: DescribeConfigsRequest,
        times: Mapping[tuple[int, str], int],
        inherited: InheritedEntries,
    ) -> DescribeConfigsResult:
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{resource.resource_name!r} is named twice")
            entries = self._entries(resource, inherited)
        except KafkaError as refusal:
            return DescribeConfigsResult(
                error_code=refusal.code,
                error_message=refusal.detail,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=(),
            )
        return DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(_results(entries, resource.configuration_keys, request)),
        )

    def _entries(self, resource: DescribeConfigsResource, inherited: InheritedEntries) -> Iterable[DescribedConfig]:
        name = resource.resource_name
        if resource.resource_type == ResourceType.TOPIC:
            return self._topic_entries(name, resource.configuration_keys or (), inherited)
        if resource.resource_type == ResourceType.BROKER:
            return self._broker_entries(name)
        if resource.resource_type == ResourceType.GROUP:
            return inherited.group(self._overrides(ResourceType.GROUP, name))
        if resource.resource_type == ResourceType.CLIENT_METRICS:
            return client_metrics_entries(self._overrides(ResourceType.CLIENT_METRICS, name))
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"resources of type {resource.resource_type} have no settings here; ask for topics (2), brokers (4), client"
            " metrics (16) or groups (32)",
        )

    def _overrides(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a group, or a subscription to client metrics, has a name")
        return self._controller.image.overrides(ConfigResource(kind, name))

    def _topic_entries(
        self, name: str, keys: tuple[str, ...], inherited: InheritedEntries
    ) -> Iterable[DescribedConfig]:
        fault = topic_name_fault(name)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if name == METADATA_TOPIC:
            return metadata_topic_entries()
        image = self._controller.image
        if name in image.topics:
            return inherited.topic(image.topic_overrides(name), keys)
        view = self._views.named(image, name)
        if view is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        entries = inherited.topic(image.topic_overrides(view.source.name), keys)
        return (replace(entry, read_only=True) for entry in entries)

    def _broker_entries(self, name: str) -> Iterable[DescribedConfig]:
        in_force = self._settings.at(self._controller.image)
        if not name:
            return shared_broker_entries(in_force)
        if name != str(in_force.node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {in_force.node_id}; ask broker {name!r} itself for its settings",
            )
        return broker_entries(in_force)


def _results(
    entries: Iterable[DescribedConfig], keys: tuple[str, ...] | None, request: DescribeConfigsRequest
) -> Iterator[DescribeConfigsResourceResult]:
    wanted = frozenset(map(current_name, keys or ()))  # an empty list means every key, as in Kafka
    for entry in entries:
        setting = entry.setting
        if wanted and setting.name not in wanted:
            continue
        synonyms = entry.synonyms if request.include_synonyms else ()
        yield DescribeConfigsResourceResult(
            name=setting.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=setting.sensitive,
            synonyms=tuple(DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in synonyms),
            config_type=setting.type,
            documentation=setting.doc if request.include_documentation else None,
        )


_FIRST_WITH_TYPES = 1
_ALL = frozenset(ResourceType)


class ListConfigResourcesHandler:
    """Lists the topics and brokers, and the groups and client metrics with settings. Resources of type logger do not
    exist here."""

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
