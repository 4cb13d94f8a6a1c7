"""Three nodes with SASL where ACLs decide: the nodes are super users, and Alice has the rules for her work."""

from collections.abc import Callable, Iterator
from functools import partial
from secrets import token_hex
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from interop.librdkafka import DEADLINE_S
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.interop

MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
CONFIG: Final = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.jaas.config": f'{MODULE} required username="node" password="node-secret";',
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": "User:node",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=CONFIG) as nodes:
        yield nodes


def settings_of(cluster: Cluster, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
        "log_level": 0,
    }


def allow(
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    user: str = "alice",
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)


def set_password(admin: AdminClient, user: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
    wanted = UserScramCredentialUpsertion(user, info, password.encode())
    admin.alter_user_scram_credentials([wanted])[user].result(DEADLINE_S)


def test_a_user_works_with_the_rules_of_the_cluster_and_with_no_others(cluster: Cluster) -> None:
    admin = AdminClient(settings_of(cluster, "node"))
    set_password(admin, "alice", "alice-secret")
    names = ("orders", "secret")
    topics = [NewTopic(name, num_partitions=3, replication_factor=3) for name in names]
    for creation in admin.create_topics(topics).values():
        creation.result(DEADLINE_S)
    rules = [
        allow(ResourceType.TOPIC, "orders", AclOperation.WRITE),
        allow(ResourceType.TOPIC, "orders", AclOperation.READ),
        allow(ResourceType.GROUP, "readers", AclOperation.READ),
    ]
    for addition in admin.create_acls(rules).values():
        addition.result(DEADLINE_S)

    reports: list[tuple[str, object]] = []
    producer = confluent_kafka.Producer({**settings_of(cluster, "alice"), "enable.idempotence": True})
    for topic in names:
        producer.produce(topic, b"one", on_delivery=lambda error, message: reports.append((message.topic(), error)))
    producer.flush(DEADLINE_S)
    errors = dict(reports)
    assert errors["orders"] is None
    assert isinstance(errors["secret"], confluent_kafka.KafkaError)
    assert errors["secret"].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED

    consumer = confluent_kafka.Consumer(
        {**settings_of(cluster, "alice"), "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(DEADLINE_S)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"one")
    consumer.close()

    of_alice = AdminClient(settings_of(cluster, "alice"))
    seen = of_alice.list_topics(timeout=DEADLINE_S).topics
    assert [name for name in seen if name != "orders" and not name.startswith("load-")] == []  # of the test below
    (refused,) = of_alice.create_topics([NewTopic("new", num_partitions=1)]).values()
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        refused.result(DEADLINE_S)
    assert refusal.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


def fields_of(rule: AclBinding) -> tuple[Any, ...]:
    """The fields of a rule, for a filter."""
    return (
        rule.restype,
        rule.name,
        rule.resource_pattern_type,
        rule.principal,
        rule.host,
        rule.operation,
        rule.permission_type,
    )


def error_of_a_record(producer: confluent_kafka.Producer, topic: str) -> int:
    """The error code of a new record; 0: it is written."""
    codes: list[int] = []
    try:
        producer.produce(topic, b"bob", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
    except confluent_kafka.KafkaException as refusal:  # librdkafka knows already that the topic is refused
        return int(refusal.args[0].code())
    assert producer.flush(DEADLINE_S) == 0
    return codes[0]


def writes(producer: confluent_kafka.Producer, topic: str) -> bool:
    return error_of_a_record(producer, topic) == 0


def is_refused(producer: confluent_kafka.Producer, topic: str) -> bool:
    return bool(error_of_a_record(producer, topic) == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_rules_and_passwords_change_under_load_and_concern_their_user_alone(cluster: Cluster) -> None:
    """Bob is denied and let in again and again, with a new password each time; Alice writes all the while."""
    admin = AdminClient(settings_of(cluster, "node"))
    set_password(admin, "alice", "alice-secret")
    topic = f"load-{token_hex(3)}"  # a second run finds no topic of the first
    admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=3)])[topic].result(DEADLINE_S)
    rules = [allow(ResourceType.TOPIC, topic, AclOperation.WRITE, user) for user in ("alice", "bob")]
    for addition in admin.create_acls(rules).values():
        addition.result(DEADLINE_S)
    denial = allow(ResourceType.TOPIC, topic, AclOperation.WRITE, "bob", AclPermissionType.DENY)
    faults: list[object] = []
    written = 0

    def on_delivery(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        nonlocal written
        written += error is None
        faults.extend([error] if error is not None else [])

    alice = confluent_kafka.Producer({**settings_of(cluster, "alice"), "acks": "all"})

    def load(what: str, holds: Callable[[], bool]) -> None:
        """Write as Alice until the condition holds, and a few records more."""
        least = written + 20

        def is_reached() -> bool:
            alice.produce(topic, b"alice", on_delivery=on_delivery)
            alice.poll(0)
            return written >= least and holds()

        wait_until(is_reached, what, deadline_s=DEADLINE_S)

    for number in range(3):
        set_password(admin, "bob", f"secret {number}")
        bob = confluent_kafka.Producer({**settings_of(cluster, "bob"), "sasl.password": f"secret {number}"})
        load("Bob writes", partial(writes, bob, topic))
        admin.create_acls([denial])[denial].result(DEADLINE_S)
        load("Bob is refused", partial(is_refused, bob, topic))
        for removal in admin.delete_acls([AclBindingFilter(*fields_of(denial))]).values():
            assert len(removal.result(DEADLINE_S)) == 1
        load("Bob writes again", partial(writes, bob, topic))
    assert alice.flush(DEADLINE_S) == 0
    assert not faults
