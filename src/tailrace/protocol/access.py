"""The accesses that a request needs: operations on the resources that it names (KIP-11 and its followers).

Kafka's documentation has the table (`Security`, `Protocols`). The meaning of a refusal is up to the handler: an error
for the element, an error for the whole request, or a list without the resource.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from tailrace.model.access import CLUSTER, Operation, SecuredResource, SecuredType
from tailrace.model.ids import ZERO_TOPIC_ID

ResourcesOf = Callable[[Any], Iterable[SecuredResource]]
ElementResource = Callable[[Any, Any], SecuredResource]
"""Returns the resource of an element of a request: of the request and the element."""


class Access(NamedTuple):
    """An operation, and the resources of a request that the operation touches."""

    operation: Operation
    resources_of: ResourcesOf
    array: str = ""
    """The array of the request whose elements, if it has elements, are refused each by itself. Empty: a refusal is of
    the whole request."""
    of_element: ElementResource | None = None
    """Returns the resource of an element of `array`; not used without `array`."""


Accesses = tuple[Access, ...]

EVERYONE: Final[Accesses] = ()
"""The accesses of a request that needs no permission: the request is part of the way to an identity, is about facts
that any client must know, or is about the client's own objects. A handler may leave objects that the client may not
describe out of a list."""


def on_cluster(operation: Operation, is_needed: Callable[[Any], bool] = lambda _: True) -> Accesses:
    """The operation on the cluster, for requests that need the operation."""
    return (Access(operation, lambda request: (CLUSTER,) if is_needed(request) else ()),)


def on_topics(operation: Operation, *path: str) -> Accesses:
    """The operation on each topic that the request names; `path`: the fields on the way to the topics."""
    return (
        Access(
            operation,
            lambda request: map(topic_resource, _along(request, path)),
            path[0] if len(path) == 1 else "",
            lambda _, element: topic_resource(element),
        ),
    )


def on_all_topics(operation: Operation, array: str) -> Accesses:
    """The operation on each topic that the request names, or the whole request is refused."""
    return (Access(operation, lambda request: map(topic_resource, _along(request, (array,)))),)


def on_groups(operation: Operation, *path: str) -> Accesses:
    """The operation on each group that the request names; `path`: the fields on the way to the group's name."""
    return _on_named(SecuredType.GROUP, operation, path)


def on_each_group(operation: Operation, array: str) -> Accesses:
    """The operation on each group of an array of names; each group is refused by itself."""
    return _on_each_named(SecuredType.GROUP, operation, array)


def on_transactional_ids(operation: Operation, *path: str) -> Accesses:
    """The operation on each transactional id that the request names; a producer without a transactional id needs no
    access."""
    return _on_named(SecuredType.TRANSACTIONAL_ID, operation, path)


def on_each_transactional_id(operation: Operation, array: str) -> Accesses:
    """The operation on each transactional id of an array of names; each transactional id is refused by itself."""
    return _on_each_named(SecuredType.TRANSACTIONAL_ID, operation, array)


def on_fetched_topics() -> Accesses:
    """Fetch: a consumer reads the topics, a replica acts for the cluster. An incremental fetch names changes only: its
    handler knows the other topics."""
    return (
        Access(
            Operation.READ,
            lambda request: () if _is_from_replica(request) else map(topic_resource, request.topics),
        ),
        *on_cluster(Operation.CLUSTER_ACTION, _is_from_replica),
    )


def on_fetched_groups() -> Accesses:
    """OffsetFetch: the groups, of which the request has one outside of `groups` before v8."""
    return (
        Access(
            Operation.DESCRIBE,
            lambda request: (
                SecuredResource(SecuredType.GROUP, group.group_id) for group in (request.groups or (request,))
            ),
            "groups",
            lambda _, group: SecuredResource(SecuredType.GROUP, group.group_id),
        ),
    )


def on_producer() -> Accesses:
    """InitProducerId: the transactional id; without a transactional id, idempotent writes, which WRITE on any topic
    permits too."""
    needs_id = on_cluster(Operation.IDEMPOTENT_WRITE, lambda request: not request.transactional_id)
    return (*on_transactional_ids(Operation.WRITE, "transactional_id"), *needs_id)


def on_added_partitions() -> Accesses:
    """AddPartitionsToTxn: the producer's transaction and topics; from v4 on a broker sends the request for
    producers."""
    return (
        *on_transactional_ids(Operation.WRITE, "v3_and_below_transactional_id"),
        *on_topics(Operation.WRITE, "v3_and_below_topics"),
        *on_cluster(Operation.CLUSTER_ACTION, lambda request: bool(request.transactions)),
    )


def on_coordinated() -> Accesses:
    """FindCoordinator: the groups or the transactional ids."""
    return (
        Access(
            Operation.DESCRIBE,
            _coordinated,
            "coordinator_keys",
            lambda request, key: SecuredResource(_COORDINATED.get(request.key_type, SecuredType.GROUP), key),
        ),
    )


def on_configured(operation: Operation) -> Accesses:
    """The operation on the resources whose settings are read or changed; settings of brokers are the cluster's."""
    return (
        Access(
            operation,
            lambda request: map(_configured, request.resources),
            "resources",
            lambda _, element: _configured(element),
        ),
    )


def on_described_controllers() -> Accesses:
    """DescribeCluster: any client may know the brokers, as from Metadata; only administrators learn the controllers."""
    return on_cluster(Operation.ALTER, lambda request: request.endpoint_type == _CONTROLLERS)


def on_token_owner() -> Accesses:
    """CreateDelegationToken: the owner, if the token is not for the client itself."""
    return (Access(Operation.CREATE_TOKENS, _token_owner),)


def on_token_owners() -> Accesses:
    """DescribeDelegationToken: the named owners. A client sees tokens of its own in any case."""
    return (
        Access(
            Operation.DESCRIBE_TOKENS,
            lambda request: (_user(owner.principal_type, owner.principal_name) for owner in request.owners or ()),
        ),
    )


def topic_resource(named: Any) -> SecuredResource:
    """The resource of a topic's name or id, or of an element that has either."""
    if isinstance(named, str):
        return SecuredResource(SecuredType.TOPIC, named)
    if isinstance(named, bytes):
        return SecuredResource(SecuredType.TOPIC, "", named)
    name = getattr(named, "name", None) or getattr(named, "topic", None) or ""
    return SecuredResource(SecuredType.TOPIC, name, getattr(named, "topic_id", ZERO_TOPIC_ID))


def _is_from_replica(request: Any) -> bool:
    sender: int = max(request.replica_id, request.replica_state.replica_id)
    return sender >= 0


_CONTROLLERS: Final = 2
"""The `endpoint_type` of controllers (KIP-919)."""
_COORDINATED: Final = {0: SecuredType.GROUP, 1: SecuredType.TRANSACTIONAL_ID}
"""The type of the resource, by `key_type`."""
_CONFIGURED: Final = {2: SecuredType.TOPIC, 32: SecuredType.GROUP}
"""The type of the resource, by `resource_type` of a request about settings."""


def _coordinated(request: Any) -> Iterator[SecuredResource]:
    kind = _COORDINATED.get(request.key_type)
    if kind is not None:  # else the request is refused for its type
        names = request.coordinator_keys or (request.key,)
        yield from (SecuredResource(kind, name) for name in names)


def _configured(named: Any) -> SecuredResource:
    kind = _CONFIGURED.get(named.resource_type)
    return CLUSTER if kind is None else SecuredResource(kind, named.resource_name)


def _token_owner(request: Any) -> Iterator[SecuredResource]:
    if request.owner_principal_name:
        yield _user(request.owner_principal_type, request.owner_principal_name)


def _user(kind: str | None, name: str) -> SecuredResource:
    return SecuredResource(SecuredType.USER, f"{kind or ''}:{name}")


def _on_named(kind: SecuredType, operation: Operation, path: tuple[str, ...]) -> Accesses:
    def resources_of(request: Any) -> Iterator[SecuredResource]:
        for name in _along(request, path):
            if name or kind is SecuredType.GROUP:
                yield SecuredResource(kind, name)

    return (Access(operation, resources_of),)


def _on_each_named(kind: SecuredType, operation: Operation, array: str) -> Accesses:
    named = _on_named(kind, operation, (array,))[0].resources_of
    return (Access(operation, named, array, lambda _, name: SecuredResource(kind, name)),)


def _along(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """The values at the end of a path of fields; an array on the way stands for its elements."""
    if isinstance(value, tuple):
        for element in value:
            yield from _along(element, path)
    elif value is None:  # an array or a name that is not given
        return
    elif not path:
        yield value
    else:
        yield from _along(getattr(value, path[0]), path[1:])
