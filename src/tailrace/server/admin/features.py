"""UpdateFeatures (57) and UnregisterBroker (64): changes of the cluster itself.

UpdateFeatures: v1 two kinds of downgrades, and validate_only; v2 no results (KIP-1022).

All levels change or none, in every version. A refusal is the error of the whole answer and names the feature, as in
Kafka since 4.0.
"""

from typing import Final

from tailrace.metadata.broker_commands import FeatureUpdate, UnregisterBroker, UpdateFeatures
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.registrations import (
    FeatureUpdateKey,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller

_FIRST_WITH_TYPES = 1
_ALLOWS_DOWNGRADE: Final = {1: False, 2: True, 3: True}
"""Whether each type of upgrade allows a downgrade. A downgrade that loses metadata is always refused, so 3 has the same
effect as 2."""


class UpdateFeaturesHandler:
    """Sends changes of finalized levels to the controller."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: UpdateFeaturesRequest, context: RequestContext) -> None:
        updates = tuple(_update(update, context.api_version) for update in request.feature_updates)
        results = tuple(UpdatableFeatureResult(feature=update.feature, error_message=None) for update in updates)
        response = UpdateFeaturesResponse(error_message=None, results=results)
        command = UpdateFeatures(updates=updates, validate_only=request.validate_only)
        self._controller.submit(command, context.answering(request, lambda _: response))


def _update(wanted: FeatureUpdateKey, version: int) -> FeatureUpdate:
    if version < _FIRST_WITH_TYPES:
        allows_downgrade = wanted.allow_downgrade
    elif wanted.upgrade_type in _ALLOWS_DOWNGRADE:
        allows_downgrade = _ALLOWS_DOWNGRADE[wanted.upgrade_type]
    else:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"there is no type {wanted.upgrade_type}: 1 is an upgrade, 2 a safe downgrade, 3 an unsafe one",
        )
    return FeatureUpdate(feature=wanted.feature, level=wanted.max_version_level, allows_downgrade=allows_downgrade)


class UnregisterBrokerHandler:
    """UnregisterBroker (64): removes the registration of a broker that will not come back (KIP-631).

    Kafka also removes the registration of a running broker. Here the broker has to be stopped first: a silent broker is
    fenced within `broker.session.timeout.ms`.
    """

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: UnregisterBrokerRequest, context: RequestContext) -> None:
        command = UnregisterBroker(broker_id=BrokerId(request.broker_id))
        self._controller.submit(command, context.answering(request, lambda _: UnregisterBrokerResponse()))
