"""Settings of topics and brokers, and quotas of clients.

DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44) and ListConfigResources (74).
DescribeClientQuotas (48) and AlterClientQuotas (49): limits of users, clients and addresses (KIP-546).
"""

from tailrace.protocol.schema import Float64, Int8, Int16, Int32, field, message, struct


@struct
class DescribeConfigsResource:
    """A topic or broker; null, and in practice no keys, ask for all its settings."""

    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """Asks for settings. v3 adds the documentation of the settings."""

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
    """A setting: its value (null if secret) and its source."""

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
    """The settings of one resource, or an error."""

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


@struct
class AlterableConfig:
    """A setting and its new value."""

    name: str
    value: str | None


@struct
class AlterConfigsResource:
    """The settings of a topic or broker: settings that are not named go back to their defaults."""

    resource_type: Int8
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    """Replaces the settings of each resource (KIP-133), or only checks whether it could."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


@struct
class AlterConfigsResourceResponse:
    """Whether one resource has its new settings."""

    error_code: Int16 = 0
    error_message: str | None
    resource_type: Int8
    resource_name: str


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    """The outcome for each resource."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]


@struct
class IncrementallyAlterableConfig:
    """A change of one setting: 0 sets the value, 1 takes the value back, 2 and 3 add to and take from a list."""

    name: str
    config_operation: Int8
    value: str | None


@struct
class IncrementalAlterConfigsResource:
    """Changes of a topic's or broker's settings; a setting that is not named keeps its value."""

    resource_type: Int8
    resource_name: str
    configs: tuple[IncrementallyAlterableConfig, ...]


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """Changes single settings (KIP-339), or only checks the changes."""

    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: bool


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """The outcome for each resource."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """Asks for the names of resources with settings (KIP-1142); no types: of every type. Version 0: client metrics
    only."""

    resource_types: tuple[Int8, ...] = field(versions="1+", default=())


@struct
class ListedConfigResource:
    """A resource that may have settings. A resource without a type is a client metrics resource."""

    resource_name: str
    resource_type: Int8 = field(versions="1+", default=16)


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """The resources of the types in the request."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: tuple[ListedConfigResource, ...]


# Quotas


@struct
class QuotaComponent:
    """A part of a filter: the entities of one type with this name, of the default, or every entity."""

    entity_type: str
    match_type: Int8
    """0 the name in `match`, 1 the default entity, 2 every entity of the type."""
    match: str | None


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """Asks for the quotas of the entities that match all components."""

    components: tuple[QuotaComponent, ...]
    strict: bool
    """True: leave out entities that have more types than the components."""


@struct
class QuotaEntity:
    """A type and a name; null is the default of the type."""

    entity_type: str
    entity_name: str | None


@struct
class QuotaValue:
    """A limit."""

    key: str
    value: Float64


@struct
class DescribedQuotas:
    """An entity with its limits."""

    entity: tuple[QuotaEntity, ...]
    values: tuple[QuotaValue, ...]


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    """The quotas; null entries with an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None
    entries: tuple[DescribedQuotas, ...] | None


@struct
class QuotaOperation:
    """A limit to set or to remove."""

    key: str
    value: Float64
    remove: bool


@struct
class AlteredQuotas:
    """An entity and the changes of its limits."""

    entity: tuple[QuotaEntity, ...]
    ops: tuple[QuotaOperation, ...]


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    """Changes quotas, or only checks whether it could."""

    entries: tuple[AlteredQuotas, ...]
    validate_only: bool


@struct
class AlteredQuotasResult:
    """Whether the limits of an entity were changed."""

    error_code: Int16 = 0
    error_message: str | None
    entity: tuple[QuotaEntity, ...]


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    """The outcome of each entity."""

    throttle_time_ms: Int32 = 0
    entries: tuple[AlteredQuotasResult, ...]
