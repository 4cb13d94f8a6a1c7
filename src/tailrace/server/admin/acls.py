"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31) of a cluster with an authorizer (KIP-140).

A broker answers DescribeAcls from its own image, and forwards the changes to the active controller. The answer to a
change is sent when the change is committed and applied: so the client's next request meets the new rules.
"""

from tailrace.metadata.deciding.acls import AclDeletion, AclsCreated, AclsDeleted, CreateAcls, DeleteAcls, matching
from tailrace.model.acls.bindings import AclBinding, AclFilter
from tailrace.protocol.messages.security import (
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller
from tailrace.server.slices import STEP, Stepwise, mapped, mapped_in


class DescribeAclsHandler:
    """Lists the rules that match a filter, by resource."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: DescribeAclsRequest, context: RequestContext) -> Stepwise[DescribeAclsResponse]:
        by_resource: dict[tuple[int, str, int], list[AclDescription]] = {}
        for number, rule in enumerate(matching(self._controller.image, _filter(request)), 1):
            if not number % STEP:
                yield
            described = AclDescription(
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            by_resource.setdefault(rule[:3], []).append(described)
        resources = yield from mapped(
            lambda found: DescribeAclsResource(
                resource_type=found[0][0],
                resource_name=found[0][1],
                pattern_type=found[0][2],
                acls=tuple(found[1]),
            ),
            by_resource.items(),
        )
        return DescribeAclsResponse(error_message=None, resources=resources)


def _filter(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        resource_type=wanted.resource_type_filter,
        resource_name=wanted.resource_name_filter,
        pattern_type=wanted.pattern_type_filter,
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=wanted.operation,
        permission=wanted.permission_type,
    )


class CreateAclsHandler:
    """Sends new rules to the controller."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: CreateAclsRequest, context: RequestContext) -> None:
        rules = tuple(
            AclBinding(
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
                pattern_type=wanted.resource_pattern_type,
                principal=wanted.principal,
                host=wanted.host,
                operation=wanted.operation,
                permission=wanted.permission_type,
            )
            for wanted in request.creations
        )
        self._controller.submit(CreateAcls(rules=rules), context.answering(request, _created))


def _created(outcome: AclsCreated) -> Stepwise[CreateAclsResponse]:
    results = yield from mapped(
        lambda error: (
            AclCreationResult(error_message=None)
            if error is None
            else AclCreationResult(error_code=error.code, error_message=error.detail)
        ),
        outcome.errors,
    )
    return CreateAclsResponse(results=results)


class DeleteAclsHandler:
    """Sends filters of rules to remove to the controller."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: DeleteAclsRequest, context: RequestContext) -> None:
        command = DeleteAcls(filters=tuple(_filter(wanted) for wanted in request.filters))
        self._controller.submit(command, context.answering(request, _deleted))


def _deleted(outcome: AclsDeleted) -> Stepwise[DeleteAclsResponse]:
    results = yield from mapped_in(
        outcome.outcomes, lambda deletion: deletion.removed, lambda _, rule: _removed(rule), _result
    )
    return DeleteAclsResponse(filter_results=results)


def _removed(rule: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=rule.resource_type,
        resource_name=rule.resource_name,
        pattern_type=rule.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def _result(deletion: AclDeletion, removed: tuple[DeleteAclsMatchingAcl, ...]) -> DeleteAclsFilterResult:
    if deletion.error is None:
        return DeleteAclsFilterResult(error_message=None, matching_acls=removed)
    return DeleteAclsFilterResult(error_code=deletion.error.code, error_message=deletion.error.detail, matching_acls=())
