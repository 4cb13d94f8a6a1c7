"""The settings in force of topics and brokers; see `AsyncAdmin`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting in force."""

    name: str
    value: str | None
    """None where it is hidden or has no value."""
    source: int
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        return self.source == 5


async def describe_configs(
    router: Router, resource_type: int, names: Sequence[str], node_id: int | None
) -> dict[str, list[ConfigEntry]]:
    """The settings of each of these resources. `node_id`: the broker that is asked, None for any."""
    resources = tuple(
        DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
        for name in names
    )

    async def attempt() -> dict[str, list[ConfigEntry]]:
        if node_id is None:
            connection = await router.any_connection()
        else:
            connection = await router.node_connection(node_id)
        response = await connection.ask(
            DescribeConfigsRequest(resources=resources),
            DescribeConfigsResponse,
            timeout_ms=router.request_timeout_ms,
        )
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
