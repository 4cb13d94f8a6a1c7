"""DescribeClientQuotas (48) and AlterClientQuotas (49): limits of users, clients and addresses (KIP-546)."""

from tailrace.protocol.schema import Float64, Int8, Int16, Int32, message, struct


@struct
class QuotaComponent:
    """A part of a filter: the entities of one type with this name, of the default, or all."""

    entity_type: str
    match_type: Int8
    """0 the name in `match`, 1 the default entity, 2 every entity of the type."""
    match: str | None


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """Asks for the quotas of the entities that match all components."""

    components: tuple[QuotaComponent, ...]
    strict: bool
    """Without entities that have more types than the components."""


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
