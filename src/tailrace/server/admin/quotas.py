"""DescribeClientQuotas (48) and AlterClientQuotas (49): quotas of users, client ids and addresses (KIP-546).

Every broker answers descriptions from its image; changes go to the controller. The answer to a change is sent when the
change is committed and applied by this broker.
"""

from typing import Final

from tailrace.metadata.deciding.quotas import AlterQuotas, QuotaAlteration, QuotasAltered, matching
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.quotas import (
    CLIENT_ID,
    ENTITY_TYPES,
    IP,
    LONGEST_NAME,
    USER,
    EntityFilter,
    EntityParts,
    entity_of,
)
from tailrace.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    AlteredQuotasResult,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaComponent,
    QuotaEntity,
    QuotaValue,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller
from tailrace.server.slices import STEP, Stepwise, mapped

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_MATCH_NAMES: Final = {_EXACT: "EXACT", _DEFAULT: "DEFAULT", _ANY: "SPECIFIED"}


class DescribeClientQuotasHandler:
    """Lists the quotas of the entities that match a filter."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(
        self, request: DescribeClientQuotasRequest, context: RequestContext
    ) -> Stepwise[DescribeClientQuotasResponse]:
        found: dict[EntityParts, list[QuotaValue]] = {}
        for number, ((entity, key), value) in enumerate(matching(self._controller.image, _filter(request)), 1):
            if not number % STEP:
                yield
            found.setdefault(entity, []).append(QuotaValue(key=key, value=value))
        entries = yield from mapped(
            lambda entry: DescribedQuotas(entity=_shown(entry[0]), values=tuple(entry[1])), found.items()
        )
        return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _shown(entity: EntityParts) -> tuple[QuotaEntity, ...]:
    return tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity)


def _filter(request: DescribeClientQuotasRequest) -> EntityFilter:
    exact: dict[str, str | None] = {}
    any_name: set[str] = set()
    for component in request.components:
        _check_component(component, {*exact, *any_name})
        if component.match_type == _ANY:
            any_name.add(component.entity_type)
        else:
            exact[component.entity_type] = component.match
    types = {*exact, *any_name}
    if IP in types and not types.isdisjoint((USER, CLIENT_ID)):
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component."
        )
    return EntityFilter(exact, frozenset(any_name), request.strict)


def _check_component(component: QuotaComponent, earlier: set[str]) -> None:
    kind, match_type = component.entity_type, component.match_type
    if not kind:
        raise _invalid("Invalid empty entity type.")
    if kind in earlier:
        raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in ENTITY_TYPES:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind[:LONGEST_NAME]}")
    if match_type not in _MATCH_NAMES:
        raise _invalid(f"Unknown match type {match_type}")
    if match_type == _EXACT and component.match is None:
        raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if match_type != _EXACT and component.match is not None:
        name = _MATCH_NAMES[match_type]
        raise _invalid(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)


class AlterClientQuotasHandler:
    """Sends changes of quotas to the controller."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: AlterClientQuotasRequest, context: RequestContext) -> Stepwise[None]:
        alterations = yield from mapped(_alteration, request.entries)
        command = AlterQuotas(alterations=alterations, validate_only=request.validate_only)
        self._controller.submit(command, context.answering(request, _altered))


def _alteration(wanted: AlteredQuotas) -> QuotaAlteration:
    # The last part of each type counts, as in Kafka.
    entity = entity_of({part.entity_type: part.entity_name for part in wanted.entity})
    return QuotaAlteration(
        entity, tuple((operation.key, None if operation.remove else operation.value) for operation in wanted.ops)
    )


def _altered(outcome: QuotasAltered) -> Stepwise[AlterClientQuotasResponse]:
    entries = yield from mapped(lambda result: _result(*result), outcome.outcomes.items())
    return AlterClientQuotasResponse(entries=entries)


def _result(entity: EntityParts, error: KafkaError | None) -> AlteredQuotasResult:
    if error is None:
        return AlteredQuotasResult(error_message=None, entity=_shown(entity))
    return AlteredQuotasResult(error_code=error.code, error_message=error.detail, entity=_shown(entity))
