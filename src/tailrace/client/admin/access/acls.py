"""Access control lists: listed, added and removed (KIP-140)."""

from collections.abc import Iterator

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.acls.bindings import AclBinding, AclFilter
from tailrace.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_ALL = AclFilter()


async def describe_acls(router: Router, wanted: AclFilter = _ALL) -> list[AclBinding]:
    """The rules that match a filter, in order; without a filter every rule. Raises KafkaError SECURITY_DISABLED (54) if
    the cluster has no authorizer."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )

    async def attempt() -> list[AclBinding]:
        connection = await router.any_connection()
        response = await router.ask(connection, request, DescribeAclsResponse)
        check(response.error_code, response.error_message or "the ACLs cannot be described")
        return sorted(_described(response))

    return await router.retry(attempt)


def _described(response: DescribeAclsResponse) -> Iterator[AclBinding]:
    for resource in response.resources:
        for rule in resource.acls:
            yield AclBinding(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                pattern_type=resource.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission=rule.permission_type,
            )


async def create_acls(router: Router, *rules: AclBinding) -> None:
    """Add rules. A rule that exists is no error. Raises the KafkaError of the first rule that cannot be added; the
    other rules are added."""
    request = CreateAclsRequest(
        creations=tuple(
            AclCreation(
                resource_type=rule.resource_type,
                resource_name=rule.resource_name,
                resource_pattern_type=rule.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in rules
        )
    )

    async def attempt() -> None:
        connection = await router.any_connection()
        response = await router.ask(connection, request, CreateAclsResponse)
        for result in response.results:
            check(result.error_code, result.error_message or "an ACL cannot be added")

    await router.retry(attempt)


async def delete_acls(router: Router, *filters: AclFilter) -> list[AclBinding]:
    """Remove the rules that match any of the filters; returns the removed rules, in order. Raises the KafkaError of the
    first filter that cannot be carried out; the other filters are carried out."""
    request = DeleteAclsRequest(
        filters=tuple(
            DeleteAclsFilter(
                resource_type_filter=wanted.resource_type,
                resource_name_filter=wanted.resource_name,
                pattern_type_filter=wanted.pattern_type,
                principal_filter=wanted.principal,
                host_filter=wanted.host,
                operation=wanted.operation,
                permission_type=wanted.permission,
            )
            for wanted in filters
        )
    )

    async def attempt() -> list[AclBinding]:
        connection = await router.any_connection()
        response = await router.ask(connection, request, DeleteAclsResponse)
        removed: set[AclBinding] = set()
        for result in response.filter_results:
            check(result.error_code, result.error_message or "ACLs cannot be removed")
            for rule in result.matching_acls:
                check(rule.error_code, rule.error_message or "an ACL cannot be removed")
                removed.add(
                    AclBinding(
                        resource_type=rule.resource_type,
                        resource_name=rule.resource_name,
                        pattern_type=rule.pattern_type,
                        principal=rule.principal,
                        host=rule.host,
                        operation=rule.operation,
                        permission=rule.permission_type,
                    )
                )
        return sorted(removed)

    return await router.retry(attempt)
