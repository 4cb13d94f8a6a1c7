"""AlterConfigs (33) and IncrementalAlterConfigs (44).

AlterConfigs replaces all that a resource has (KIP-133); IncrementalAlterConfigs changes setting by setting (KIP-339).
A broker is asked for its own settings, or for those of all brokers under the empty name, as in Kafka. The answer goes
out when the change is committed and this broker has acted on it.
"""

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
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller

_Request = AlterConfigsRequest | IncrementalAlterConfigsRequest
_Resource = AlterConfigsResource | IncrementalAlterConfigsResource


class AlterConfigsHandler:
    """Has the controller change settings: both APIs, which differ in what a request says of the others."""

    def __init__(self, *, controller: Controller, node_id: int) -> None:
        self._controller = controller
        self._node_id = node_id

    def handle(self, request: _Request, context: RequestContext) -> None:
        refusals: dict[int, KafkaError] = {}
        wanted: dict[int, ResourceChanges] = {}
        resources: tuple[_Resource, ...] = request.resources
        for place, resource in enumerate(resources):
            try:
                self._check_broker(resource)
                wanted[place] = _changes(resource)
            except KafkaError as refusal:
                refusals[place] = refusal

        def answer(outcome: ControllerResponse | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                errors = dict.fromkeys(wanted, outcome)
            else:
                assert isinstance(outcome, ConfigsAltered)
                told = zip(wanted, outcome.errors, strict=True)
                errors = {place: error for place, error in told if error is not None}
            context.respond(_response(request, refusals | errors))

        command = AlterConfigs(resources=tuple(wanted.values()), validate_only=request.validate_only)
        self._controller.submit(command, answer)

    def _check_broker(self, resource: _Resource) -> None:
        name = resource.resource_name
        if resource.resource_type == ResourceType.BROKER and name and name != str(self._node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {self._node_id}; ask broker {name!r} to change its settings"
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
