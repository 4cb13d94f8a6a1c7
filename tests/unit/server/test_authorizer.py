"""The authorizer of the ACLs of an image: kept decisions, topics by id, views, and rules that are not known yet."""

import pytest

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.acls import RemoveAccessControlEntryRecord, acl_record
from tailrace.metadata.records.topics import TopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.model.access import CLUSTER, Operation, SecuredResource, SecuredType
from tailrace.model.acls.bindings import AclBinding
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.server import authorizer
from tailrace.server.authorizer import StandardAuthorizer

ALICE = ClientIdentity("PLAINTEXT", "10.0.0.1", "User:alice")
ADMIN = ClientIdentity("PLAINTEXT", "10.0.0.1", "User:admin")
TOPIC_ID = bytes(range(16))
RULE = AclBinding(2, "orders", 3, "User:alice", "*", Operation.READ, 3)
ADDED = acl_record(b"1" * 16, RULE)
REMOVED = RemoveAccessControlEntryRecord(id=b"1" * 16)


class AuthorizedImage:
    """An authorizer, and the image that it reads."""

    def __init__(self, *, allows_without_rule: bool = False) -> None:
        self.image: ClusterImage = EMPTY_IMAGE
        self.is_loaded = True
        self.authorizer = StandardAuthorizer(
            image=lambda: self.image,
            is_loaded=lambda: self.is_loaded,
            super_users=("User:admin",),
            allows_without_rule=allows_without_rule,
        )

    def apply(self, *records: object) -> None:
        self.image, _ = apply_all(self.image, records)  # type: ignore[arg-type]

    def may_read(self, name: str = "orders", topic_id: bytes = bytes(16), identity: ClientIdentity = ALICE) -> bool:
        resource = SecuredResource(SecuredType.TOPIC, name, topic_id)
        return self.authorizer.permits(identity, Operation.READ, resource)


def test_a_kept_decision_holds_until_the_rules_change() -> None:
    node = AuthorizedImage()
    assert not node.may_read()
    version = node.authorizer.version
    node.apply(ADDED)
    assert node.authorizer.version is not version
    version = node.authorizer.version
    assert node.may_read()
    node.apply(TopicRecord(name="orders", topic_id=TOPIC_ID))
    assert node.authorizer.version is version
    assert node.may_read()
    node.apply(REMOVED)
    assert not node.may_read()


def test_the_rules_of_a_whole_new_image_are_taken() -> None:
    node = AuthorizedImage()
    node.apply(ADDED)
    assert node.may_read()
    other = RULE._replace(resource_name="bills")
    node.image, _ = apply_all(EMPTY_IMAGE, [acl_record(b"2" * 16, other)])
    assert (node.may_read(), node.may_read("bills")) == (False, True)


def test_a_topic_is_found_by_its_id_and_a_missing_id_is_refused() -> None:
    node = AuthorizedImage()
    node.apply(ADDED)
    assert not node.may_read("", TOPIC_ID)
    node.apply(TopicRecord(name="orders", topic_id=TOPIC_ID))
    assert node.may_read("", TOPIC_ID)
    assert not AuthorizedImage(allows_without_rule=True).may_read("", TOPIC_ID)


def test_a_view_has_the_rules_of_its_topic() -> None:
    node = AuthorizedImage()
    node.apply(ADDED)
    assert node.may_read("orders.shared-8")
    assert not node.may_read("bills.shared-8")


def test_the_default_decides_on_resources_without_rules() -> None:
    node = AuthorizedImage(allows_without_rule=True)
    assert node.may_read()
    node.apply(acl_record(b"2" * 16, RULE._replace(principal="User:bob")))
    assert not node.may_read()
    assert node.may_read("other")


def test_before_the_rules_are_known_a_client_has_to_retry_and_a_super_user_is_permitted() -> None:
    node = AuthorizedImage(allows_without_rule=True)
    node.is_loaded = False
    assert node.may_read(identity=ADMIN)
    with pytest.raises(KafkaError) as refusal:
        node.may_read()
    assert refusal.value.code is ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(KafkaError, match="does not know the ACLs"):
        node.authorizer.permits(ALICE, Operation.DESCRIBE, CLUSTER)
    with pytest.raises(KafkaError, match="does not know the ACLs"):
        node.authorizer.permits_any(ALICE, Operation.WRITE, SecuredType.TOPIC)
    assert node.authorizer.permits_any(ADMIN, Operation.WRITE, SecuredType.TOPIC)


def test_the_memory_of_kept_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "MOST_KEPT", 10)
    node = AuthorizedImage()
    node.apply(ADDED)
    for number in range(100):
        assert not node.may_read(f"topic-{number}")
        assert len(node.authorizer._kept) <= 10
    assert node.may_read()


def test_a_super_user_is_the_exact_principal() -> None:
    node = AuthorizedImage()
    assert node.may_read(identity=ADMIN)
    for principal in ("User:admin2", "User:Admin", "Group:admin", "User:*"):
        assert not node.may_read(identity=ADMIN._replace(principal=principal))
