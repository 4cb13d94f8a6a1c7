"""The decision on access: which principal may do what to which resource (decision 0089).

A node without security permits everything. With `authorizer.class.name` the rules (ACLs) of the metadata log decide
(decision 0110).
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Protocol

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.acls import ACLS
from tailrace.metadata.views import Views
from tailrace.model.access import Operation, SecuredResource, SecuredType
from tailrace.model.acls.bindings import AclBinding, PatternType, Permission
from tailrace.model.acls.rules import AccessQuestion, AclDecision, AclRules, DecisionReason
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.model.views import parse_view

MOST_KEPT: Final = 20_000
"""The most decisions that are kept: about 6 MB."""


class Authorizer(Protocol):
    """Decides on access, from memory and at once: every resource of every request needs a decision."""

    @property
    def version(self) -> object:
        """An object that is another object when decisions may have changed. A kept decision holds as long as the
        version is the same object."""
        ...

    @property
    def asks_addresses(self) -> bool:
        """Whether two addresses of a principal may get different decisions."""
        ...

    def permits(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> bool:
        """Whether the client may perform the operation on the resource. False for the id of a topic that does not
        exist. Raises KafkaError REQUEST_TIMED_OUT, which clients retry, while the rules are not known."""
        ...

    def explain(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> str:
        """The reason for the present decision of `permits`, for a person."""
        ...

    def permits_any(self, identity: ClientIdentity, operation: Operation, kind: SecuredType) -> bool:
        """Whether there can be a resource of this type on which the client may perform the operation. Raises
        KafkaError as `permits`."""
        ...


class _PermitAll:
    version: object = None
    asks_addresses = False

    def permits(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> bool:
        return True

    def explain(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> str:
        return "there is no authorizer"

    def permits_any(self, identity: ClientIdentity, operation: Operation, kind: SecuredType) -> bool:
        return True


PERMIT_ALL: Final[Authorizer] = _PermitAll()
"""The authorizer of a node without security."""


class StandardAuthorizer:
    """Decides by the rules of the committed image.

    Decisions are kept until the rules change. A view of a topic is the topic itself: its rules are those of its source.
    """

    def __init__(
        self,
        *,
        image: Callable[[], ClusterImage],
        is_loaded: Callable[[], bool],
        super_users: Iterable[str],
        allows_without_rule: bool,
    ) -> None:
        """`is_loaded`: whether the image has the rules that were in force when the node started.
        `allows_without_rule`: the decision on a resource that no rule is about."""
        self._image = image
        self._is_loaded = is_loaded
        self._super_users = frozenset(super_users)
        self._allows_without_rule = allows_without_rule
        self._views = Views()
        self._table: Mapping[bytes, AclBinding] = {}
        self._rules = AclRules()
        self._seen: Mapping[str, Mapping[Hashable, object]] | None = None
        """The tables of the image that the rules are of: the same object in the next image if no table has changed."""
        self._kept: dict[tuple[str, str, Operation, SecuredResource], bool] = {}

    @property
    def version(self) -> object:
        return ACLS.of(self._image())

    @property
    def asks_addresses(self) -> bool:
        if self._image().tables is not self._seen:
            self._take_changes()
        return self._rules.has_addresses

    def permits(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> bool:
        if self._image().tables is not self._seen:
            self._take_changes()
        kept = self._kept.get((identity.principal, identity.address, operation, resource))
        return self._decide(identity, operation, resource) if kept is None else kept

    def _decide(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> bool:
        is_permitted = identity.principal in self._super_users
        if not is_permitted:
            self._check_is_loaded()
            name = self._name_in_rules(resource)
            if name is None:
                return False
            is_permitted = self._by_rules(identity, operation, resource.type, name).is_allowed
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[identity.principal, identity.address, operation, resource] = is_permitted
        return is_permitted

    def _by_rules(self, identity: ClientIdentity, operation: Operation, kind: SecuredType, name: str) -> AclDecision:
        question = AccessQuestion(identity.principal, identity.address, operation, kind, name)
        return self._rules.decide(question, allows_without_rule=self._allows_without_rule)

    def explain(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> str:
        if identity.principal in self._super_users:
            return DecisionReason.SUPER_USER.value
        name = self._name_in_rules(resource)
        if name is None:
            return "no topic has this id"
        decision = self._by_rules(identity, operation, resource.type, name)
        if decision.rule is None:
            return decision.reason.value
        rule = decision.rule
        return (
            f"the rule {Permission(rule.permission).name} {Operation(rule.operation).name} for {rule.principal}"
            f" from {rule.host} on {PatternType(rule.pattern_type).name} {rule.resource_name}"
        )

    def _name_in_rules(self, resource: SecuredResource) -> str | None:
        """The name that rules about the resource have; None for the id of a topic that does not exist."""
        name = resource.name
        if resource.type is SecuredType.TOPIC:
            if not name and resource.topic_id != ZERO_TOPIC_ID:
                topic = self._views.topic_by_id(self._image(), resource.topic_id)
                if topic is None:
                    return None
                name = topic.name
            if (view := parse_view(name)) is not None and name not in self._image().topics:
                name = view.topic
        return name

    def permits_any(self, identity: ClientIdentity, operation: Operation, kind: SecuredType) -> bool:
        if identity.principal in self._super_users:
            return True
        if self._image().tables is not self._seen:
            self._take_changes()
        self._check_is_loaded()
        return self._rules.allows_any(
            identity.principal, identity.address, operation, kind, allows_without_rule=self._allows_without_rule
        )

    def _check_is_loaded(self) -> None:
        if not self._is_loaded():
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "this node does not know the ACLs of the cluster yet")

    def _take_changes(self) -> None:
        """Exchange the rules that have changed in the index."""
        image = self._image()
        self._seen = image.tables
        table = ACLS.of(image)
        if table is self._table:
            return
        for acl_id in self._table.keys() - table.keys():
            self._rules.remove(self._table[acl_id])
        for acl_id in table.keys() - self._table.keys():
            self._rules.add(table[acl_id])
        self._table = table
        self._kept.clear()
