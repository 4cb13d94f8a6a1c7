"""kafka-acls and clients of others against a node where ACLs decide."""

import subprocess
from collections.abc import Iterator

import confluent_kafka
import pytest

from interop.kafka_tools import command, run
from tailrace.client.blocking import Admin
from tailrace.model.access import Operation, SecuredType
from tailrace.model.acls.bindings import AclBinding, PatternType, Permission
from tailrace.testing import Cluster

pytestmark = pytest.mark.interop

ANONYMOUS = "User:ANONYMOUS"
SECURED = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": ANONYMOUS}
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def secured() -> Iterator[Cluster]:
    with Cluster(config=SECURED) as cluster:
        yield cluster


@pytest.mark.usefixtures("kafka_tools")
def test_kafka_acls_adds_lists_and_removes_rules(secured: Cluster) -> None:
    def acls(*options: str) -> str:
        return run("kafka-acls", "--bootstrap-server", secured.bootstrap_servers, *options).out

    acls("--add", "--allow-principal", "User:alice", "--consumer", "--topic", "orders", "--group", "readers")
    acls("--add", "--deny-principal", "User:*", "--operation", "Write", "--topic", "ord")
    with Admin(secured.bootstrap_servers) as admin:
        rules = admin.describe_acls()
    found = {
        (rule.resource_type, rule.resource_name, rule.principal, rule.operation, rule.permission) for rule in rules
    }
    assert found == {
        (SecuredType.TOPIC, "orders", "User:alice", Operation.READ, Permission.ALLOW),
        (SecuredType.TOPIC, "orders", "User:alice", Operation.DESCRIBE, Permission.ALLOW),
        (SecuredType.GROUP, "readers", "User:alice", Operation.READ, Permission.ALLOW),
        (SecuredType.TOPIC, "ord", "User:*", Operation.WRITE, Permission.DENY),
    }
    listed = acls("--list", "--topic", "orders")
    assert "principal=User:alice, host=*, operation=READ, permissionType=ALLOW" in listed
    assert "ord`" not in listed.replace("orders", "")
    acls("--remove", "--force", "--topic", "orders")
    acls("--remove", "--force", "--deny-principal", "User:*", "--operation", "Write", "--topic", "ord")
    acls("--remove", "--force", "--group", "readers")
    with Admin(secured.bootstrap_servers) as admin:
        assert admin.describe_acls() == []


def test_a_client_with_rules_for_its_work_produces_in_transactions_and_consumes(secured: Cluster) -> None:
    """The node's own requests need no rules: the client is no super user any more, and has only what it needs."""

    def rule(kind: SecuredType, name: str, operation: Operation) -> AclBinding:
        return AclBinding(kind, name, PatternType.LITERAL, ANONYMOUS, "*", operation, Permission.ALLOW)

    config = {**SECURED, "super.users": "User:admin"}
    with Cluster(config=SECURED) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics({"orders": 1, "secret": 1})
            admin.create_acls(
                rule(SecuredType.TOPIC, "orders", Operation.READ),
                rule(SecuredType.TOPIC, "orders", Operation.WRITE),
                rule(SecuredType.TRANSACTIONAL_ID, "pay", Operation.WRITE),
                rule(SecuredType.GROUP, "readers", Operation.READ),
            )
        cluster.stop()
        file = cluster.config_file()
        file.write_text(file.read_text().replace(SECURED["super.users"], config["super.users"]))
        cluster.start()
        _produce_and_consume(cluster)


def _produce_and_consume(cluster: Cluster) -> None:
    bootstrap = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
    producer = confluent_kafka.Producer({**bootstrap, "transactional.id": "pay"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("orders", b"one")
    producer.commit_transaction(PATIENCE_S)
    consumer = confluent_kafka.Consumer(
        {**bootstrap, "group.id": "readers", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"one")
    consumer.commit(message, asynchronous=False)
    consumer.close()
    assert list(producer.list_topics(timeout=PATIENCE_S).topics) == ["orders"]
    with pytest.raises(confluent_kafka.KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED|ransactional"):
        confluent_kafka.Producer({**bootstrap, "transactional.id": "other"}).init_transactions(PATIENCE_S)


@pytest.mark.usefixtures("kafka_tools")
def test_kafka_topics_of_a_client_without_rules_is_refused() -> None:
    with Cluster(config={**SECURED, "super.users": "User:admin"}) as cluster:
        asked = command(
            "kafka-topics", "--bootstrap-server", cluster.bootstrap_servers, "--create", "--topic", "orders"
        )
        done = subprocess.run(asked, capture_output=True, encoding="utf-8", timeout=100, check=False)
    assert done.returncode == 1
    assert "Authorization failed." in done.stdout
