"""DescribeConfigs (32): the settings in force and where each comes from."""

from tailrace.protocol.schema import Int8, Int16, Int32, field, message, struct


@struct
class DescribeConfigsResource:
    """A topic or broker; null keys ask for all its settings."""

    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """Asks for settings. v3 adds the documentation of each."""

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = field(versions="3+", default=False)


@struct
class DescribeConfigsSynonym:
    """A place where the setting could come from, the strongest first."""

    name: str
    value: str | None
    source: Int8


@struct
class DescribeConfigsResourceResult:
    """One setting: its value (null if secret) and its source."""

    name: str
    value: str | None
    read_only: bool
    config_source: Int8 = -1
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsSynonym, ...]
    config_type: Int8 = field(versions="3+", default=0)
    documentation: str | None = field(versions="3+", default="")


@struct
class DescribeConfigsResult:
    """The settings of one resource, or why there are none."""

    error_code: Int16 = 0
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...]


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """The settings in force, resource by resource. v3 adds types and documentation."""

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...]
