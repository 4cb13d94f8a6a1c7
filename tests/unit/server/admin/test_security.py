"""ACLs and delegation tokens (29-31, 38-41) on a node that has neither of them."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath

NO_AUTHORIZER = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
TOPIC, READ, ALLOW = 2, 3, 3


@pytest.fixture(scope="module")
def node() -> AdminPath:
    return AdminPath("/data", files=SimulatedDisk())


def error_of(part: Any) -> tuple[int, str | None]:
    return part.error_code, part.error_message


@pytest.mark.parametrize("version", [1, 2, 3])
def test_access_control_lists_are_disabled(node: AdminPath, version: int) -> None:
    described = node.send(
        DescribeAclsRequest(
            resource_type_filter=TOPIC,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            operation=READ,
            permission_type=ALLOW,
        ),
        version,
    ).response
    assert (error_of(described), described.resources) == (NO_AUTHORIZER, ())

    creation = AclCreation(
        resource_type=TOPIC,
        resource_name="orders",
        principal="User:alice",
        host="*",
        operation=READ,
        permission_type=ALLOW,
    )
    created = node.send(CreateAclsRequest(creations=(creation, creation)), version).response
    assert [error_of(result) for result in created.results] == [NO_AUTHORIZER, NO_AUTHORIZER]

    wanted = DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=READ,
        permission_type=ALLOW,
    )
    deleted = node.send(DeleteAclsRequest(filters=(wanted, wanted)), version).response
    assert [(error_of(result), result.matching_acls) for result in deleted.filter_results] == [(NO_AUTHORIZER, ())] * 2
    assert node.send(CreateAclsRequest(creations=()), version).response.results == ()


NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(("owner", "shown"), [(None, "ANONYMOUS"), ("", "ANONYMOUS"), ("alice", "alice")])
def test_no_delegation_token_is_made(node: AdminPath, version: int, owner: str | None, shown: str) -> None:
    request = CreateDelegationTokenRequest(
        owner_principal_type="User" if version >= 3 else None,
        owner_principal_name=owner if version >= 3 else None,
        renewers=(TokenPrincipal(principal_type="User", principal_name="alice"),),
        max_lifetime_ms=-1,
    )
    made = node.send(request, version).response
    assert (made.error_code, made.token_id, made.hmac, made.expiry_timestamp_ms) == (NOT_ALLOWED, "", b"", -1)
    assert (made.principal_type, made.principal_name) == ("User", shown if version >= 3 else "ANONYMOUS")


@pytest.mark.parametrize("version", [1, 2])
def test_no_delegation_token_is_found(node: AdminPath, version: int) -> None:
    renewed = node.send(RenewDelegationTokenRequest(hmac=b"secret", renew_period_ms=1), version).response
    expired = node.send(ExpireDelegationTokenRequest(hmac=b"secret", expiry_time_period_ms=-1), version).response
    for answer in (renewed, expired):
        assert (answer.error_code, answer.expiry_timestamp_ms) == (NOT_ALLOWED, -1)
    described = node.send(DescribeDelegationTokenRequest(owners=None), version).response
    assert (described.error_code, described.tokens) == (NOT_ALLOWED, ())
