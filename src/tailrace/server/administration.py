"""The audit of administration: requests that change the cluster, with their outcome (decision 0115).

A line names what is changed, and no value: values of settings and passwords may be secrets.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import GeneratorType
from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID, format_topic_id
from tailrace.protocol.messages import configs, groups, log_dirs, offsets, quorum, registrations, replicas, security
from tailrace.protocol.messages import topics as topic_messages
from tailrace.protocol.registry import Api
from tailrace.server.audit import ADMINISTRATION, NO_AUDIT, Audit, Fields, request_fields, shortened
from tailrace.server.context import RequestContext
from tailrace.server.dispatch import Handler, HandlerTable
from tailrace.server.response_errors import error_codes
from tailrace.server.slices import Stepwise

MOST_SUBJECTS: Final = 20
"""The most names in a line."""

Subjects = Callable[[Any], Iterable[str]]


def _topics(request: Any) -> Iterable[str]:
    for topic in request.topics:
        name, topic_id = getattr(topic, "name", None), getattr(topic, "topic_id", ZERO_TOPIC_ID)
        yield f"topic {format_topic_id(topic_id) if name is None else name}"
    for name in getattr(request, "topic_names", ()):
        yield f"topic {name}"


def _settings(request: Any) -> Iterable[str]:
    for resource in request.resources:
        names = ",".join(entry.name for entry in resource.configs)
        yield f"settings of type {resource.resource_type} {resource.resource_name}: {names}"


def _users(request: security.AlterUserScramCredentialsRequest) -> Iterable[str]:
    for deletion in request.deletions:
        yield f"user {deletion.name}: delete mechanism {deletion.mechanism}"
    for upsertion in request.upsertions:
        yield f"user {upsertion.name}: set mechanism {upsertion.mechanism}"


def _rules(request: security.CreateAclsRequest) -> Iterable[str]:
    for rule in request.creations:
        yield (
            f"rule type {rule.resource_type} {rule.resource_name!r} pattern {rule.resource_pattern_type}"
            f" principal {rule.principal!r} host {rule.host!r} operation {rule.operation}"
            f" permission {rule.permission_type}"
        )


def _rule_filters(request: security.DeleteAclsRequest) -> Iterable[str]:
    for wanted in request.filters:
        yield (
            f"rules type {wanted.resource_type_filter} {wanted.resource_name_filter!r}"
            f" pattern {wanted.pattern_type_filter} principal {wanted.principal_filter!r} host {wanted.host_filter!r}"
            f" operation {wanted.operation} permission {wanted.permission_type}"
        )


def _quotas(request: configs.AlterClientQuotasRequest) -> Iterable[str]:
    for entry in request.entries:
        entity = ",".join(f"{part.entity_type}={part.entity_name}" for part in entry.entity)
        names = ",".join(operation.key for operation in entry.ops)
        yield f"quota of {entity}: {names}"


SUBJECTS: Final[Mapping[type[Any], Subjects]] = {
    topic_messages.CreateTopicsRequest: _topics,
    topic_messages.DeleteTopicsRequest: _topics,
    topic_messages.CreatePartitionsRequest: _topics,
    topic_messages.DeleteRecordsRequest: _topics,
    configs.AlterConfigsRequest: _settings,
    configs.IncrementalAlterConfigsRequest: _settings,
    configs.AlterClientQuotasRequest: _quotas,
    security.AlterUserScramCredentialsRequest: _users,
    security.CreateAclsRequest: _rules,
    security.DeleteAclsRequest: _rule_filters,
    groups.DeleteGroupsRequest: lambda request: (f"group {name}" for name in request.groups_names),
    offsets.OffsetDeleteRequest: lambda request: (f"offsets of group {request.group_id}",),
    replicas.AlterPartitionReassignmentsRequest: _topics,
    replicas.ElectLeadersRequest: lambda _: (),
    log_dirs.AlterReplicaLogDirsRequest: lambda _: (),
    registrations.UpdateFeaturesRequest: lambda _: (),
    registrations.UnregisterBrokerRequest: lambda request: (f"broker {request.broker_id}",),
    quorum.AddRaftVoterRequest: lambda request: (f"voter {request.voter_id}",),
    quorum.RemoveRaftVoterRequest: lambda request: (f"voter {request.voter_id}",),
}
"""The requests of administration, and the names that they change."""


def audited(handlers: HandlerTable, audit: Audit) -> HandlerTable:
    """The handlers; handlers of administration record each request and its outcome."""
    if audit is NO_AUDIT:
        return handlers
    return {
        api: handler if api.request not in SUBJECTS else AuditedHandler(api, handler, audit)
        for api, handler in handlers.items()
    }


class AuditedHandler:
    """A handler whose requests are recorded when they are answered."""

    def __init__(self, api: Api, handler: Handler, audit: Audit) -> None:
        self._api = api
        self._handler = handler
        self._audit = audit

    def handle(self, request: Any, context: RequestContext) -> Any:
        def take(response: Any) -> None:
            self._record(request, context, error_codes(response))
            context.respond(response)

        try:
            response = self._handler.handle(request, context.intercepted(take))
        except KafkaError as refusal:
            self._record(request, context, (refusal.code,))
            raise
        if type(response) is GeneratorType:
            return self._in_steps(request, context, response)
        if response is not None:
            self._record(request, context, error_codes(response))
        return response

    def _in_steps(self, request: Any, context: RequestContext, steps: Stepwise[Any]) -> Stepwise[Any]:
        try:
            response = yield from steps
        except KafkaError as refusal:
            self._record(request, context, (refusal.code,))
            raise
        if response is not None:
            self._record(request, context, error_codes(response))
        return response

    def _record(self, request: Any, context: RequestContext, codes: Iterable[int]) -> None:
        errors = Counter(_name_of(code) for code in codes if code)
        if set(errors) == {ErrorCode.NOT_CONTROLLER.name}:
            return  # the active controller records the request

        def fields() -> Fields:
            found = [shortened(subject) for subject in islice(SUBJECTS[self._api.request](request), MOST_SUBJECTS + 1)]
            return {
                **request_fields(context),
                "request": self._api.name,
                "validate_only": bool(getattr(request, "validate_only", False)),
                "subjects": found[:MOST_SUBJECTS],
                "has_more_subjects": len(found) > MOST_SUBJECTS,
                "errors": dict(errors),
            }

        self._audit.record(ADMINISTRATION, context.identity, fields)


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
