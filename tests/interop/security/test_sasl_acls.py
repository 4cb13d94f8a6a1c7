"""Three nodes with SASL where ACLs decide: the nodes are super users, and Alice has the rules for her work."""

from collections.abc import Iterator
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
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


def allow(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW)


def test_a_user_works_with_the_rules_of_the_cluster_and_with_no_others(cluster: Cluster) -> None:
    admin = AdminClient(settings_of(cluster, "node"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    for change in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("alice", info, b"alice-secret")]
    ).values():
        change.result(DEADLINE_S)
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
    assert [name for name in of_alice.list_topics(timeout=DEADLINE_S).topics if name != "orders"] == []
    (refused,) = of_alice.create_topics([NewTopic("new", num_partitions=1)]).values()
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        refused.result(DEADLINE_S)
    assert refusal.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
