"""The settings of topics and brokers: described and altered."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.client.errors import check
from tailrace.client.names import Names, several
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode
from tailrace.net.connection import Connection
from tailrace.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)

TOPIC = 2
BROKER = 4
"""Resource types of DescribeConfigs."""

CONFIG_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
DYNAMIC_TOPIC_CONFIG = 1

_SET, _DELETE = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting and its value in force."""

    name: str
    value: str | None
    """None for a hidden setting, or a setting without a value."""
    source: int
    is_read_only: bool
    is_sensitive: bool


async def describe_configs(router: Router, resource_type: int, name: str) -> list[ConfigEntry]:
    """The settings in force for a topic (type 2, by name) or a broker (type 4, by its id; no name: of every broker)."""
    return (await _describe(router, resource_type, [name]))[name]


async def describe_topic_configs(router: Router, names: Names) -> dict[str, list[ConfigEntry]]:
    """The settings in force per topic, with one request."""
    return await _describe(router, TOPIC, several(names))


async def _connection_for(router: Router, resource_type: int, name: str) -> Connection:
    """A broker answers for its own settings, any broker for other resources."""
    if resource_type == BROKER and name:
        return await router.node_connection(int(name))
    return await router.any_connection()


async def _describe(router: Router, resource_type: int, names: Sequence[str]) -> dict[str, list[ConfigEntry]]:
    resources = tuple(
        DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
        for name in names
    )

    async def attempt() -> dict[str, list[ConfigEntry]]:
        connection = await _connection_for(router, resource_type, names[0] if names else "")
        response = await router.ask(connection, DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
        for result in response.results:
            detail = f"the settings of {result.resource_name!r} cannot be described"
            check(result.error_code, result.error_message or detail)
        return {result.resource_name: _by_name(result.configs) for result in response.results}

    return await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))


def _by_name(entries: Iterable[DescribeConfigsResourceResult]) -> list[ConfigEntry]:
    return sorted(map(_config_entry, entries), key=lambda entry: entry.name)


def _config_entry(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=entry.config_source,
        is_read_only=entry.read_only,
        is_sensitive=entry.is_sensitive,
    )


async def alter_configs(
    router: Router, resource_type: int, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Change settings of a topic (type 2) or a broker (type 4; no name: of all brokers); None: back to the default.

    Makes all changes or none. Raises KafkaError(UNSUPPORTED_VERSION) for Kafka before 2.3.
    """
    configs = tuple(
        IncrementallyAlterableConfig(name=setting, config_operation=_DELETE if value is None else _SET, value=value)
        for setting, value in changes.items()
    )
    resource = IncrementalAlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)

    async def attempt() -> None:
        connection = await _connection_for(router, resource_type, name)
        response = await router.ask(connection, request, IncrementalAlterConfigsResponse)
        (result,) = response.responses
        check(result.error_code, result.error_message or f"the settings of {name!r} cannot be changed")

    await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
