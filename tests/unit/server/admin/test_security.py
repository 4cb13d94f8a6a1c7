"""ACLs, quotas and delegation tokens (29-31, 38-41, 48, 49) on a node that has none of them."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    QuotaComponent,
    QuotaEntity,
    QuotaOperation,
)
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
NO_QUOTAS = (ErrorCode.UNSUPPORTED_VERSION, "a Tailrace cluster has no client quotas yet")
TOPIC, READ, ALLOW = 2, 3, 3
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


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


def part(entity_type: str, match_type: int = SPECIFIED, match: str | None = None) -> QuotaComponent:
    return QuotaComponent(entity_type=entity_type, match_type=match_type, match=match)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "components",
    [(), (part("user"),), (part("user", EXACT, "alice"), part("client-id", DEFAULT)), (part("ip", EXACT, "10.0.0.1"),)],
)
@pytest.mark.parametrize("strict", [False, True])
def test_a_filter_finds_no_client_quotas(
    node: AdminPath, version: int, components: tuple[QuotaComponent, ...], *, strict: bool
) -> None:
    found = node.send(DescribeClientQuotasRequest(components=components, strict=strict), version).response
    assert (error_of(found), found.entries) == ((ErrorCode.NONE, None), ())


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ((part(""),), ErrorCode.INVALID_REQUEST),
        ((part("user"), part("user")), ErrorCode.INVALID_REQUEST),
        ((part("group"),), ErrorCode.UNSUPPORTED_VERSION),
        ((part("user", 3),), ErrorCode.INVALID_REQUEST),
        ((part("user", EXACT, None),), ErrorCode.INVALID_REQUEST),
        ((part("user", DEFAULT, "alice"),), ErrorCode.INVALID_REQUEST),
        ((part("user", SPECIFIED, "alice"),), ErrorCode.INVALID_REQUEST),
        ((part("ip"), part("user")), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_of_client_quotas_that_kafka_refuses_is_refused(
    node: AdminPath, components: tuple[QuotaComponent, ...], code: ErrorCode
) -> None:
    found = node.send(DescribeClientQuotasRequest(components=components, strict=False), 1).response
    assert (found.error_code, found.entries) == (code, None)
    assert found.error_message


def altered(name: str | None, *operations: QuotaOperation, entity_type: str = "user") -> AlteredQuotas:
    return AlteredQuotas(entity=(QuotaEntity(entity_type=entity_type, entity_name=name),), ops=operations)


A_RATE = QuotaOperation(key="producer_byte_rate", value=1024.0, remove=False)
NO_RATE = QuotaOperation(key="producer_byte_rate", value=0.0, remove=True)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_client_quota_is_refused_and_a_removal_succeeds_entity_by_entity(
    node: AdminPath, version: int, *, validate_only: bool
) -> None:
    entries = (altered("alice", A_RATE), altered(None, NO_RATE), altered("bob", NO_RATE, A_RATE), altered("carol"))
    response = node.send(AlterClientQuotasRequest(entries=entries, validate_only=validate_only), version).response
    fine = (ErrorCode.NONE, None)
    assert [error_of(result) for result in response.entries] == [NO_QUOTAS, fine, NO_QUOTAS, fine]
    assert [result.entity for result in response.entries] == [entry.entity for entry in entries]


@pytest.mark.parametrize(
    "entry",
    [
        AlteredQuotas(entity=(), ops=(NO_RATE,)),
        altered("a", NO_RATE, entity_type="group"),
        altered("", NO_RATE),
        AlteredQuotas(entity=altered("a").entity + altered("::1", entity_type="ip").entity, ops=(NO_RATE,)),
    ],
)
def test_an_entity_of_client_quotas_that_cannot_be_is_refused(node: AdminPath, entry: AlteredQuotas) -> None:
    response = node.send(AlterClientQuotasRequest(entries=(entry,), validate_only=False), 1).response
    assert [result.error_code for result in response.entries] == [ErrorCode.INVALID_REQUEST]


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
