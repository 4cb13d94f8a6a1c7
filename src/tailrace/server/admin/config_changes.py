"""AlterConfigs (33) and IncrementalAlterConfigs (44).

AlterConfigs replaces all settings of a resource (KIP-133); IncrementalAlterConfigs changes setting by setting
(KIP-339). A broker changes only its own settings, or the settings of all brokers under the empty name, as in Kafka: the
broker that gets the request checks the name, and the controller checks everything else. The answer is sent when the
change is committed and this broker has applied the change.
"""

from collections import Counter
from typing import Any

from tailrace.metadata.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigsAltered,
    ControllerResponse,
    ResourceChanges,
)
from tailrace.metadata.image import ConfigResource, ResourceType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tailrace.protocol.schema import replace
from tailrace.server.context import RequestContext
from tailrace.server.dispatch import Handler
from tailrace.server.ports import Controller

_Request = AlterConfigsRequest | IncrementalAlterConfigsRequest
_Resource = AlterConfigsResource | IncrementalAlterConfigsResource


class AlterConfigsHandler:
    """Sends changes of settings to the controller, for both APIs. The APIs differ in the effect on settings that the
    request does not name."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: _Request, context: RequestContext) -> None:
        refusals: dict[int, KafkaError] = {}
        wanted: dict[int, ResourceChanges] = {}
        resources: tuple[_Resource, ...] = request.resources
        times_named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        for place, resource in enumerate(resources):
            try:
                # Checked before the command: otherwise one entry would be refused, and the other entry carried out.
                if times_named[resource.resource_type, resource.resource_name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "a resource is named twice in one request")
                wanted[place] = _changes(resource)
            except KafkaError as refusal:
                refusals[place] = refusal

        def answer(outcome: ControllerResponse | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                errors = dict.fromkeys(wanted, outcome)
            else:
                assert isinstance(outcome, ConfigsAltered)
                answered = zip(wanted, outcome.errors, strict=True)
                errors = {place: error for place, error in answered if error is not None}
            context.respond(_response(request, refusals | errors))

        command = AlterConfigs(
            resources=tuple(wanted.values()),
            validate_only=request.validate_only,
            requested_by=context.requested_by,
        )
        self._controller.submit(command, answer)


class OwnBrokerConfigs:
    """Refuses changes of the settings of other brokers, and passes all other requests to `handler`."""

    def __init__(self, handler: Handler, *, node_id: int) -> None:
        self._handler = handler
        self._node_id = node_id

    def handle(self, request: _Request, context: RequestContext) -> Any:
        resources: tuple[_Resource, ...] = request.resources
        refusals = {
            place: self._refusal(resource)
            for place, resource in enumerate(resources)
            if self._belongs_to_another_broker(resource)
        }
        if not refusals:
            return self._handler.handle(request, context)
        refused = _response(request, refusals)
        if len(refusals) == len(resources):
            return refused
        own = tuple(resource for place, resource in enumerate(resources) if place not in refusals)
        rest = replace(request, resources=own)

        def complete(response: Any) -> Any:
            carried_out = iter(response.responses)
            both = tuple(
                refusal if place in refusals else next(carried_out) for place, refusal in enumerate(refused.responses)
            )
            return replace(response, responses=both)

        passed_on = context.intercepted(lambda response: context.respond(complete(response)))
        response = self._handler.handle(rest, passed_on)
        return None if response is None else complete(response)

    def _belongs_to_another_broker(self, resource: _Resource) -> bool:
        return resource.resource_type == ResourceType.BROKER and resource.resource_name not in ("", str(self._node_id))

    def _refusal(self, resource: _Resource) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {self._node_id}; ask broker {resource.resource_name!r} to change its settings",
        )


def _changes(resource: _Resource) -> ResourceChanges:
    owner = ConfigResource(resource.resource_type, resource.resource_name)
    if isinstance(resource, AlterConfigsResource):
        changes = tuple(ConfigChange(name=config.name, value=config.value) for config in resource.configs)
        return ResourceChanges(resource=owner, changes=changes, replaces_all=True)
    return ResourceChanges(
        resource=owner,
        changes=tuple(
            ConfigChange(name=config.name, operation=_operation(config.config_operation), value=config.value)
            for config in resource.configs
        ),
    )


def _operation(number: int) -> ConfigOperation:
    try:
        return ConfigOperation(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no operation {number} on a setting") from None


def _response(
    request: _Request, errors: dict[int, KafkaError]
) -> AlterConfigsResponse | IncrementalAlterConfigsResponse:
    resources: tuple[_Resource, ...] = request.resources
    responses = tuple(
        AlterConfigsResourceResponse(
            error_code=errors[place].code if place in errors else ErrorCode.NONE,
            error_message=errors[place].detail or None if place in errors else None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for place, resource in enumerate(resources)
    )
    if isinstance(request, AlterConfigsRequest):
        return AlterConfigsResponse(responses=responses)
    return IncrementalAlterConfigsResponse(responses=responses)
