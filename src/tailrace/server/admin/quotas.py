"""DescribeClientQuotas (48) and AlterClientQuotas (49): a node keeps no quotas (KIP-546).

A filter is checked by Kafka's rules, and finds no quotas. A limit would have no effect, so each entity with a limit is
refused with UNSUPPORTED_VERSION, the code of a cluster that does not know a kind of limit yet. The removal of a limit
succeeds, as in Kafka, where the removal of a missing limit is not an error. `validate_only` changes nothing about the
answer.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    AlteredQuotasResult,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaComponent,
    QuotaEntity,
)
from tailrace.server.context import RequestContext

_IP: Final = "ip"
_ENTITY_TYPES: Final = frozenset(("user", "client-id", _IP))
_EXACT, _DEFAULT, _ANY = 0, 1, 2
_MATCH_NAMES: Final = {_EXACT: "EXACT", _DEFAULT: "DEFAULT", _ANY: "SPECIFIED"}


class DescribeClientQuotasHandler:
    """Finds no quotas."""

    def handle(self, request: DescribeClientQuotasRequest, context: RequestContext) -> DescribeClientQuotasResponse:
        types: set[str] = set()
        for component in request.components:
            _check_component(component, types)
            types.add(component.entity_type)
        if _IP in types and len(types) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be used with "
                "user or clientId filter component."
            )
        return DescribeClientQuotasResponse(error_message=None, entries=())


def _check_component(component: QuotaComponent, earlier: Iterable[str]) -> None:
    kind, match_type = component.entity_type, component.match_type
    if not kind:
        raise _invalid("Invalid empty entity type.")
    if kind in earlier:
        raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in _ENTITY_TYPES:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
    if match_type not in _MATCH_NAMES:
        raise _invalid(f"Unknown match type {match_type}")
    if match_type == _EXACT and component.match is None:
        raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if match_type != _EXACT and component.match is not None:
        name = _MATCH_NAMES[match_type]
        raise _invalid(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")


class AlterClientQuotasHandler:
    """Refuses limits and confirms removals."""

    def handle(self, request: AlterClientQuotasRequest, context: RequestContext) -> AlterClientQuotasResponse:
        return AlterClientQuotasResponse(entries=tuple(map(_altered, request.entries)))


def _altered(wanted: AlteredQuotas) -> AlteredQuotasResult:
    by_type = {part.entity_type: part for part in wanted.entity}  # the last part of each type counts, as in Kafka
    entity = tuple(by_type.values())
    error = _fault(entity)
    if error is None and not all(operation.remove for operation in wanted.ops):
        error = KafkaError(ErrorCode.UNSUPPORTED_VERSION, "a Tailrace cluster has no client quotas yet")
    if error is None:
        return AlteredQuotasResult(error_message=None, entity=entity)
    return AlteredQuotasResult(error_code=error.code, error_message=error.detail, entity=entity)


def _fault(entity: Sequence[QuotaEntity]) -> KafkaError | None:
    """The reason why this entity is not valid; None for a valid entity."""
    if not entity:
        return _invalid("Invalid empty client quota entity")
    for part in entity:
        if part.entity_type not in _ENTITY_TYPES:
            return _invalid(f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_name == "":
            return _invalid(f"Empty {part.entity_type} not supported")
    if len(entity) > 1 and any(part.entity_type == _IP for part in entity):
        return _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    return None


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)
