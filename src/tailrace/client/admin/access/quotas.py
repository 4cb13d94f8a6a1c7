"""Quotas of clients: described and altered (KIP-546)."""

from collections.abc import Mapping
from typing import Final

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode
from tailrace.model.security.quotas import EntityFilter, EntityParts, entity_of
from tailrace.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaComponent,
    QuotaEntity,
    QuotaOperation,
)

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_EVERY_ENTITY: Final = EntityFilter({})


async def describe_client_quotas(
    router: Router, wanted: EntityFilter = _EVERY_ENTITY
) -> dict[EntityParts, dict[str, float]]:
    """The quotas of the entities that match a filter, by entity and key; without a filter all quotas.

    An entity is a tuple of types with names, such as `(("user", "alice"), ("client-id", None))`; None is the default.
    Rates are per second, a percentage is of a thread of the broker. Raises KafkaError INVALID_REQUEST.
    """
    exact = (
        QuotaComponent(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in wanted.exact.items()
    )
    every = (QuotaComponent(entity_type=kind, match_type=_ANY, match=None) for kind in sorted(wanted.any_name))
    request = DescribeClientQuotasRequest(components=(*exact, *every), strict=wanted.is_strict)

    async def attempt() -> dict[EntityParts, dict[str, float]]:
        connection = await router.any_connection()
        response = await router.ask(connection, request, DescribeClientQuotasResponse)
        check(response.error_code, response.error_message or "the quotas cannot be described")
        return {
            entity_of({part.entity_type: part.entity_name for part in entry.entity}): {
                value.key: value.value for value in entry.values
            }
            for entry in response.entries or ()
        }

    return await router.retry(attempt)


async def alter_client_quotas(
    router: Router, changes: Mapping[EntityParts, Mapping[str, float | None]], *, validate_only: bool = False
) -> None:
    """Set quotas, by entity and key; None in place of a value removes the quota.

    Keys of users and client ids: producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage (of a
    thread of the broker), controller_mutation_rate (partitions per second). Key of addresses: connection_creation_rate
    (connections per second). Raises the KafkaError of the first entity that cannot be changed, mostly INVALID_REQUEST;
    the other entities are changed.
    """
    entries = tuple(
        AlteredQuotas(
            entity=tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity),
            ops=tuple(
                QuotaOperation(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()
            ),
        )
        for entity, quotas in changes.items()
    )
    request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)

    async def attempt() -> None:
        connection = await router.any_connection()
        response = await router.ask(connection, request, AlterClientQuotasResponse)
        for result in response.entries:
            if result.error_code == ErrorCode.NOT_CONTROLLER:
                await router.refresh(())
            check(result.error_code, result.error_message or "the quotas cannot be changed")

    await router.retry(attempt)
