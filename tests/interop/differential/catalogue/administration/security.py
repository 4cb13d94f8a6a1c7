"""Access control lists, quotas and SCRAM users: no more of them are left than before."""

from collections.abc import Mapping

from interop.differential.script import Script, ask, every_version
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
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
    TokenPrincipal,
)

TOPIC, READ, ALLOW = 2, 3, 3
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


def security() -> Script:
    yield from _acls()
    yield from _quotas()
    yield from _scram_users()
    yield from _delegation_tokens()


def _acls() -> Script:
    wanted = DescribeAclsRequest(
        resource_type_filter=TOPIC,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=READ,
        permission_type=ALLOW,
    )
    yield from ask("access control lists are described", wanted, *every_version(DescribeAclsRequest))
    creation = AclCreation(
        resource_type=TOPIC,
        resource_name="orders",
        principal="User:alice",
        host="*",
        operation=READ,
        permission_type=ALLOW,
    )
    deletion = DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter=None,
        principal_filter="User:alice",
        host_filter=None,
        operation=READ,
        permission_type=ALLOW,
    )
    for number in (0, 1, 3):
        created = CreateAclsRequest(creations=(creation,) * number)
        yield from ask(f"{number} bindings are created", created, *every_version(CreateAclsRequest))
        deleted = DeleteAclsRequest(filters=(deletion,) * number)
        yield from ask(f"{number} bindings are deleted", deleted, *every_version(DeleteAclsRequest))


def _part(entity_type: str, match_type: int = SPECIFIED, match: str | None = None) -> QuotaComponent:
    return QuotaComponent(entity_type=entity_type, match_type=match_type, match=match)


def _quotas() -> Script:
    filters = {
        "all": (),
        "all users": (_part("user"),),
        "a user and the default client": (_part("user", EXACT, "alice"), _part("client-id", DEFAULT)),
        "an address": (_part("ip", EXACT, "10.0.0.1"),),
        "no type": (_part(""),),
        "a type twice": (_part("user"), _part("user")),
        "an unknown type": (_part("group"),),
        "an unknown match": (_part("user", 3),),
        "an exact match without a name": (_part("user", EXACT),),
        "a default match with a name": (_part("user", DEFAULT, "alice"),),
        "any match with a name": (_part("user", SPECIFIED, "alice"),),
        "an address and a user": (_part("ip"), _part("user")),
    }
    for name, components in filters.items():
        request = DescribeClientQuotasRequest(components=components, strict=name == "all users")
        yield from ask(f"quotas of {name}", request, *every_version(DescribeClientQuotasRequest))
    rate = QuotaOperation(key="producer_byte_rate", value=1024.0, remove=False)
    no_rate = QuotaOperation(key="producer_byte_rate", value=0.0, remove=True)
    alice, everyone = (QuotaEntity(entity_type="user", entity_name=name) for name in ("alice", None))
    changes = {
        "nothing": (),
        "a removal": (AlteredQuotas(entity=(alice,), ops=(no_rate,)),),
        "a removal from the default": (AlteredQuotas(entity=(everyone,), ops=(no_rate,)),),
        "no entity": (AlteredQuotas(entity=(), ops=(no_rate,)),),
        "an unknown entity": (
            AlteredQuotas(entity=(QuotaEntity(entity_type="group", entity_name="a"),), ops=(no_rate,)),
        ),
        "an entity twice": (AlteredQuotas(entity=(alice, everyone), ops=(no_rate,)),),
        "an address and a user": (
            AlteredQuotas(entity=(alice, QuotaEntity(entity_type="ip", entity_name="10.0.0.1")), ops=(no_rate,)),
        ),
        "an entity without a name": (
            AlteredQuotas(entity=(QuotaEntity(entity_type="user", entity_name=""),), ops=(no_rate,)),
        ),
        "a limit": (AlteredQuotas(entity=(alice,), ops=(rate,)),),
    }
    for name, entries in changes.items():
        altered = AlterClientQuotasRequest(entries=entries, validate_only=name == "a limit")
        yield from ask(f"quotas are altered: {name}", altered, *every_version(AlterClientQuotasRequest))
    yield from _kept_quotas()
    yield from _wrong_quotas()


def _altered(entity: Mapping[str, str | None], **values: float | None) -> AlterClientQuotasRequest:
    parts = tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.items())
    ops = tuple(QuotaOperation(key=key, value=value or 0.0, remove=value is None) for key, value in values.items())
    return AlterClientQuotasRequest(entries=(AlteredQuotas(entity=parts, ops=ops),), validate_only=False)


def _kept_quotas() -> Script:
    entities: dict[str, tuple[dict[str, str | None], str]] = {
        "a user": ({"user": "carol"}, "producer_byte_rate"),
        "the default user": ({"user": None}, "controller_mutation_rate"),
        "a client": ({"client-id": "no such client"}, "request_percentage"),
        "a client of a user": ({"user": "carol", "client-id": "app"}, "consumer_byte_rate"),
        "an address": ({"ip": "10.9.8.7"}, "connection_creation_rate"),
    }
    for name, (entity, key) in entities.items():
        components = tuple(_part(kind, DEFAULT if of is None else EXACT, of) for kind, of in entity.items())
        described = DescribeClientQuotasRequest(components=components, strict=True)
        for value in (1_000_000.0, 2_000_000.0, None):
            yield from ask(f"quotas of {name}: {value}", _altered(entity, **{key: value}))
            yield from ask(f"quotas of {name} after {value}", described)


def _wrong_quotas() -> Script:
    wrong: dict[str, AlterClientQuotasRequest] = {
        "zero": _altered({"user": "carol"}, producer_byte_rate=0.0),
        "a negative value": _altered({"user": "carol"}, request_percentage=-1.0),
        "a fraction": _altered({"user": "carol"}, consumer_byte_rate=1.5),
        "too many bytes": _altered({"user": "carol"}, consumer_byte_rate=1e20),
        "too many connections": _altered({"ip": "10.9.8.7"}, connection_creation_rate=3e9),
        "a key of addresses": _altered({"user": "carol"}, connection_creation_rate=1.0),
        "a key of users": _altered({"ip": "10.9.8.7"}, producer_byte_rate=1.0),
        "an unknown key": _altered({"user": "carol"}, speed=1.0),
        "the removal of an unknown key": _altered({"user": "carol"}, speed=None),
        "an address in words": _altered({"ip": "10.9.8.700"}, connection_creation_rate=1.0),
    }
    for name, request in wrong.items():
        yield from ask(f"wrong quotas: {name}", request, *every_version(AlterClientQuotasRequest))


def _scram_users() -> Script:
    users = {
        "all users": None,
        "no users": (),
        "an unknown user": ("alice",),
        "a user twice": ("alice", "alice"),
    }
    for what, names in users.items():
        wanted = None if names is None else tuple(ScramUserName(name=name) for name in names)
        yield from ask(f"credentials of {what}", DescribeUserScramCredentialsRequest(users=wanted))
    yield from ask("no credential changes", AlterUserScramCredentialsRequest(deletions=(), upsertions=()))
    deletions = {
        "an unknown user": (("alice", 1),),
        "no name": (("", 1),),
        "an unknown mechanism": (("alice", 9),),
        "twice": (("alice", 1), ("alice", 1)),
        "both mechanisms": (("alice", 1), ("alice", 2)),
    }
    for what, changes in deletions.items():
        request = AlterUserScramCredentialsRequest(
            deletions=tuple(ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in changes),
            upsertions=(),
        )
        yield from ask(f"a credential is deleted: {what}", request)
    refused = {
        "an unknown mechanism": ("alice", 9, 4_096),
        "no name": ("", 1, 4_096),
        "few iterations": ("alice", 1, 4_095),
        "many iterations": ("alice", 2, 16_385),
    }
    for what, (name, mechanism, iterations) in refused.items():
        upsertion = ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"salted"
        )
        request = AlterUserScramCredentialsRequest(deletions=(), upsertions=(upsertion,))
        yield from ask(f"a credential is set: {what}", request)


def _delegation_tokens() -> Script:
    alice = TokenPrincipal(principal_type="User", principal_name="alice")
    for renewers in ((), (alice,), (TokenPrincipal(principal_type="Group", principal_name="a"),)):
        request = CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)
        names = ", ".join(each.principal_name for each in renewers)
        yield from ask(f"a token with the renewers ({names})", request, *every_version(CreateDelegationTokenRequest))
    for kind, name in (("User", "alice"), ("User", ""), (None, "alice"), ("User", None)):
        owned = CreateDelegationTokenRequest(
            owner_principal_type=kind, owner_principal_name=name, renewers=(), max_lifetime_ms=60_000
        )
        yield from ask(f"a token of the owner {kind}:{name}", owned, 3)
    for hmac in (b"", b"secret"):
        renewed = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=60_000)
        yield from ask(f"a token of {len(hmac)} bytes is renewed", renewed, *every_version(RenewDelegationTokenRequest))
        expired = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=-1)
        yield from ask(f"a token of {len(hmac)} bytes expires", expired, *every_version(ExpireDelegationTokenRequest))
    for owners in (None, (), (alice,)):
        described = DescribeDelegationTokenRequest(owners=owners)
        of = "all" if owners is None else len(owners)
        yield from ask(f"tokens of {of} owners", described, *every_version(DescribeDelegationTokenRequest))
