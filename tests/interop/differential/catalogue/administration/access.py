"""A node with users and ACLs: users and rules, wrong input, and what a client without rights sees of each API."""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

from interop.differential.script import Script, ask, every_version, key_versions
from tailrace.protocol.messages import (
    configs,
    groups,
    list_offsets,
    membership,
    metadata,
    offsets,
    topics,
    transactions,
)
from tailrace.protocol.messages.api_versions import SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.protocol.messages.security import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)

ADMIN, BOB = "admin", "bob"
_SALT: Final = b"salt of the script"
_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = 2, 3, 4, 5
_LITERAL, _PREFIXED = 3, 4


def secret_of(user: str) -> str:
    """The password of a user of the script."""
    return f"{user}-secret"


def access() -> Script:
    yield from _login(ADMIN)
    yield from _users()
    yield from _login(BOB)
    yield from ask("topics of the administrator", _topics("orders", "secret"), 7, connection=ADMIN)
    yield from _rules()
    yield from _refused("without rights")
    yield from _some_rights()
    yield from _refused("with some rights")


def _login(user: str, connection: str = "") -> Script:
    connection = connection or user
    token = f"\0{user}\0{secret_of(user)}".encode()
    yield from ask(f"{connection} begins", SaslHandshakeRequest(mechanism="PLAIN"), 1, connection=connection)
    yield from ask(f"{connection} is let in", SaslAuthenticateRequest(auth_bytes=token), 2, connection=connection)


def _asked_alone(what: str, request: Any) -> Script:
    """A request on a connection of its own: Kafka closes the connection on numbers that it does not know."""
    connection = f"the connection for {what}"
    yield from _login(ADMIN, connection)
    yield from ask(what, request, 3, connection=connection)


def _upsertion(name: str, mechanism: int = 1, iterations: int = 4_096) -> ScramCredentialUpsertion:
    digest = {1: "sha256", 2: "sha512"}.get(mechanism, "sha256")
    salted = hashlib.pbkdf2_hmac(digest, secret_of(name).encode(), _SALT, iterations)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=_SALT, salted_password=salted
    )


def _users() -> Script:
    def alter(what: str, *wanted: ScramCredentialUpsertion, gone: tuple[tuple[str, int], ...] = ()) -> Script:
        deletions = tuple(ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in gone)
        request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=wanted)
        return ask(f"users: {what}", request, connection=ADMIN)

    def describe(what: str, *names: str) -> Script:
        users = tuple(ScramUserName(name=name) for name in names) if names else None
        return ask(f"users are described: {what}", DescribeUserScramCredentialsRequest(users=users), connection=ADMIN)

    yield from alter("Bob is made", _upsertion(BOB))
    yield from alter("a second mechanism", _upsertion(BOB, 2, 8_192))
    yield from alter("carol and dave", _upsertion("carol"), _upsertion("dave"))
    yield from alter("a user twice", _upsertion("erin"), _upsertion("erin", 2))
    yield from alter("a user is set and deleted at once", _upsertion("carol"), gone=(("carol", 1),))
    yield from alter("one good and one bad", _upsertion("frank"), _upsertion("grace", iterations=1))
    yield from alter("many iterations", _upsertion("grace", iterations=16_385))
    yield from alter("an unknown mechanism", _upsertion("grace", 9))
    yield from describe("all")
    yield from describe("two of three", BOB, "nobody", "carol")
    yield from describe("a user twice", BOB, BOB)
    yield from alter("a deletion", gone=(("dave", 1),))
    yield from alter("a deletion of what is gone", gone=(("dave", 1),))
    yield from alter("another mechanism of a user", gone=(("carol", 2),))
    yield from describe("all, later")


def _topics(*names: str) -> topics.CreateTopicsRequest:
    created = tuple(
        topics.CreatableTopic(name=name, num_partitions=2, replication_factor=1, assignments=(), configs=())
        for name in names
    )
    return topics.CreateTopicsRequest(topics=created, timeout_ms=30_000, validate_only=False)


def _rule(
    kind: int,
    name: str,
    operation: int,
    *,
    pattern: int = _LITERAL,
    principal: str = "User:bob",
    host: str = "*",
    permission: int = 3,
) -> AclCreation:
    return AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def _filter(**changes: Any) -> dict[str, Any]:
    everything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return everything | changes


_GOOD: Final = (
    _rule(_TOPIC, "payments", 3, principal="User:alice"),
    _rule(_TOPIC, "payments", 4, principal="User:alice", permission=2),
    _rule(_TOPIC, "pay", 3, pattern=_PREFIXED, principal="User:alice", host="10.0.0.1"),
    _rule(_TOPIC, "*", 8, principal="User:*"),
    _rule(_GROUP, "readers", 3, principal="User:alice"),
    _rule(_TRANSACTIONAL_ID, "sink", 4, principal="User:alice"),
    _rule(_CLUSTER, "kafka-cluster", 12, principal="User:alice"),
)
_BAD: Final = {
    "an unknown type": _rule(0, "orders", 3),
    "any type": _rule(1, "orders", 3),
    "a type that does not exist": _rule(99, "orders", 3),
    "no name": _rule(_TOPIC, "", 3),
    "another cluster": _rule(_CLUSTER, "mine", 12),
    "any pattern": _rule(_TOPIC, "orders", 3, pattern=1),
    "a matching pattern": _rule(_TOPIC, "orders", 3, pattern=2),
    "any operation": _rule(_TOPIC, "orders", 1),
    "an unknown operation": _rule(_TOPIC, "orders", 0),
    "an operation that does not exist": _rule(_TOPIC, "orders", 99),
    "any permission": _rule(_TOPIC, "orders", 3, permission=1),
    "an unknown permission": _rule(_TOPIC, "orders", 3, permission=0),
    "a principal without a type": _rule(_TOPIC, "orders", 3, principal="bob"),
    "no principal": _rule(_TOPIC, "orders", 3, principal=""),
    "no host": _rule(_TOPIC, "orders", 3, host=""),
    "an operation that a topic does not have": _rule(_TOPIC, "orders", 12),
}
_FILTERS: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "topics": {"resource_type_filter": _TOPIC},
    "a name": {"resource_type_filter": _TOPIC, "resource_name_filter": "payments"},
    "a literal name": {"resource_name_filter": "payments", "pattern_type_filter": 3},
    "a prefix": {"resource_name_filter": "pay", "pattern_type_filter": 4},
    "what matches": {"resource_type_filter": _TOPIC, "resource_name_filter": "payments", "pattern_type_filter": 2},
    "the wildcard": {"resource_name_filter": "*", "pattern_type_filter": 3},
    "a principal": {"principal_filter": "User:alice"},
    "every principal": {"principal_filter": "User:*"},
    "a host": {"host_filter": "10.0.0.1"},
    "reads": {"operation": 3},
    "denials": {"permission_type": 2},
    "nothing": {"resource_name_filter": "absent"},
    "an unknown type": {"resource_type_filter": 0},
    "an unknown pattern": {"pattern_type_filter": 0},
    "an unknown operation": {"operation": 0},
    "an unknown permission": {"permission_type": 0},
    "numbers that do not exist": {"resource_type_filter": 99, "operation": 99},
}


_STRANGE: Final = {
    "an unknown type",
    "an unknown pattern",
    "an unknown operation",
    "an unknown permission",
    "numbers that do not exist",
}
"""Filters with a number that has no meaning."""


def _rules() -> Script:
    yield from ask("rules are created", CreateAclsRequest(creations=_GOOD), 2, connection=ADMIN)
    yield from ask("rules are created again", CreateAclsRequest(creations=_GOOD[:2]), 3, connection=ADMIN)
    for what, creation in _BAD.items():
        yield from _asked_alone(f"a wrong rule: {what}", CreateAclsRequest(creations=(creation,)))
    for what, changes in _FILTERS.items():
        request = DescribeAclsRequest(**_filter(**changes))
        if what in _STRANGE:
            yield from _asked_alone(f"rules are described: {what}", request)
        else:
            versions = every_version(DescribeAclsRequest)
            yield from ask(f"rules are described: {what}", request, *versions, connection=ADMIN)
    for what in ("an unknown type", "a host", "denials", "what matches", "nothing", "all"):
        removal = DeleteAclsRequest(filters=(DeleteAclsFilter(**_filter(**_FILTERS[what])),))
        if what in _STRANGE:
            yield from _asked_alone(f"rules are deleted: {what}", removal)
        else:
            yield from ask(f"rules are deleted: {what}", removal, 3, connection=ADMIN)


def _some_rights() -> Script:
    rules = (
        _rule(_TOPIC, "ord", 8, pattern=_PREFIXED),
        _rule(_TOPIC, "secret", 3),
        _rule(_TOPIC, "secret", 3, permission=2),
        _rule(_GROUP, "group", 3),
        _rule(_CLUSTER, "kafka-cluster", 8),
    )
    yield from ask("Bob gets rights", CreateAclsRequest(creations=rules), 3, connection=ADMIN)


def _requests() -> Iterator[tuple[str, Any]]:
    names = tuple(metadata.MetadataRequestTopic(name=name) for name in ("orders", "secret", "absent"))
    yield "metadata of topics", metadata.MetadataRequest(topics=names, allow_auto_topic_creation=False)
    yield "metadata of all", metadata.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    yield (
        "metadata with operations",
        metadata.MetadataRequest(
            topics=names[:2],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        ),
    )
    yield "the cluster", metadata.DescribeClusterRequest(include_cluster_authorized_operations=True)
    ends = tuple(
        list_offsets.ListOffsetsTopic(
            name=name, partitions=(list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1),)
        )
        for name in ("orders", "secret", "absent")
    )
    yield "ends", list_offsets.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=ends)
    yield "topics are created", _topics("new", "orders")
    gone = tuple(topics.DeleteTopicState(name=name) for name in ("secret", "absent"))
    yield (
        "topics are deleted",
        topics.DeleteTopicsRequest(topics=gone, topic_names=("secret", "absent"), timeout_ms=30_000),
    )
    described = tuple(
        configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=("retention.ms",))
        for kind, name in ((2, "orders"), (2, "absent"), (4, "1"))
    )
    yield "settings", configs.DescribeConfigsRequest(resources=described)
    yield "groups", groups.ListGroupsRequest(states_filter=(), types_filter=())
    yield "a group", groups.DescribeGroupsRequest(groups=("group", "other"), include_authorized_operations=True)
    yield "groups are deleted", groups.DeleteGroupsRequest(groups_names=("other",))
    yield "a heartbeat", membership.HeartbeatRequest(group_id="other", generation_id=1, member_id="m")
    yield (
        "transactions",
        transactions.ListTransactionsRequest(
            state_filters=(), producer_id_filters=(), duration_filter=-1, transactional_id_pattern=None
        ),
    )
    yield "a producer id", transactions.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
    yield "rules", DescribeAclsRequest(**_filter())
    # Kafka 4.1 leaves a refused request for all users without an answer.
    yield "a user", DescribeUserScramCredentialsRequest(users=(ScramUserName(name=ADMIN),))


def _refused(what: str) -> Script:
    for name, request in _requests():
        versions = key_versions(type(request))
        if name == "metadata of all":
            versions = versions[1:]  # version 0 has no form for all topics but an empty list
        yield from ask(f"Bob {what}: {name}", request, *versions, connection=BOB)
    commit = offsets.OffsetCommitRequest(
        group_id="other",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(
            offsets.OffsetCommitRequestTopic(
                name="orders",
                partitions=(
                    offsets.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=0, committed_metadata=None
                    ),
                ),
            ),
        ),
    )
    yield from ask(f"Bob {what}: a commit", commit, 9, connection=BOB)
