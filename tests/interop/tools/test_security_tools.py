"""Administrators' tools that look for ACLs, quotas and users on a node that has none of them."""

import re
import subprocess
from collections.abc import Iterator

import kafka
import kafka.admin
import kafka.errors
import pytest

from interop.kafka_tools import command, run
from interop.librdkafka import ConfluentAdmin, librdkafka
from tailrace.testing import Cluster

pytestmark = pytest.mark.interop

NO_AUTHORIZER = "SecurityDisabledException: No Authorizer is configured."
OF_ALICE = ("--allow-principal", "User:alice", "--operation", "READ", "--topic", "orders")


@pytest.fixture
def kafka_python(tailrace_cluster: Cluster) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=tailrace_cluster.bootstrap_servers)
    yield client
    client.close()


def refusal(cluster: Cluster, script: str, *options: str) -> str:
    """The output of a tool that fails."""
    asked = command(script, "--bootstrap-server", cluster.bootstrap_servers, *options)
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", timeout=100, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.usefixtures("kafka_tools")
@pytest.mark.parametrize("options", [("--list",), ("--add", *OF_ALICE), ("--remove", "--force", *OF_ALICE)])
def test_kafka_acls_says_that_there_is_no_authorizer(tailrace_cluster: Cluster, options: tuple[str, ...]) -> None:
    assert NO_AUTHORIZER in refusal(tailrace_cluster, "kafka-acls", *options)


@pytest.mark.usefixtures("kafka_tools")
@pytest.mark.parametrize(
    "entity",
    [
        ("--entity-type", "users"),
        ("--entity-type", "users", "--entity-default"),
        ("--entity-type", "users", "--entity-name", "alice"),
        ("--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-name", "app"),
        ("--entity-type", "clients"),
        ("--entity-type", "ips"),
    ],
)
def test_kafka_configs_finds_no_quotas_and_no_users(tailrace_cluster: Cluster, entity: tuple[str, ...]) -> None:
    shown = run("kafka-configs", "--bootstrap-server", tailrace_cluster.bootstrap_servers, "--describe", *entity)
    assert shown.out == ""


@pytest.mark.usefixtures("kafka_tools")
def test_kafka_configs_sets_shows_and_removes_quotas(tailrace_cluster: Cluster) -> None:
    def configs(*options: str) -> str:
        return run("kafka-configs", "--bootstrap-server", tailrace_cluster.bootstrap_servers, *options).out

    alice = ("--entity-type", "users", "--entity-name", "carol")
    app = (*alice, "--entity-type", "clients", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "10.9.8.7")
    try:
        configs("--alter", *alice, "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
        configs("--alter", *app, "--add-config", "consumer_byte_rate=2048")
        configs("--alter", *address, "--add-config", "connection_creation_rate=7")
        shown = configs("--describe", *alice)
        assert "Quota configs for user-principal 'carol' are" in shown
        assert "producer_byte_rate=1024.0" in shown
        assert "request_percentage=12.5" in shown
        assert "connection_creation_rate=7.0" in configs("--describe", "--entity-type", "ips")
        both = configs("--describe", *app)
        assert "Quota configs for user-principal 'carol', the default client-id are consumer_byte_rate=2048.0" in both
        said = refusal(tailrace_cluster, "kafka-configs", "--alter", *alice, "--add-config", "producer_byte_rate=-1")
        assert "Quota producer_byte_rate must be greater than 0" in said
    finally:
        configs("--alter", *alice, "--delete-config", "producer_byte_rate,request_percentage")
        configs("--alter", *app, "--delete-config", "consumer_byte_rate")
        configs("--alter", *address, "--delete-config", "connection_creation_rate")
    assert configs("--describe", *alice) == ""


@pytest.mark.usefixtures("kafka_tools")
def test_kafka_broker_api_versions_lists_the_apis(tailrace_cluster: Cluster) -> None:
    listed = run("kafka-broker-api-versions", "--bootstrap-server", tailrace_cluster.bootstrap_servers).out
    for name, key, versions in (
        *(("DescribeAcls", 29, "1 to 3"), ("CreateAcls", 30, "1 to 3"), ("DeleteAcls", 31, "1 to 3")),
        *(("CreateDelegationToken", 38, "1 to 3"), ("RenewDelegationToken", 39, "1 to 2")),
        *(("ExpireDelegationToken", 40, "1 to 2"), ("DescribeDelegationToken", 41, "1 to 3")),
        *(("DescribeClientQuotas", 48, "0 to 1"), ("AlterClientQuotas", 49, "0 to 1")),
        *(("DescribeUserScramCredentials", 50, "0"), ("AlterUserScramCredentials", 51, "0")),
    ):
        assert re.search(rf"\b{name}\({key}\): {versions} \[usable: ", listed), (name, listed)


def test_kafka_python_gets_the_codes(kafka_python: kafka.KafkaAdminClient) -> None:
    everything = kafka.admin.ACLFilter(
        principal=None,
        host=None,
        operation=kafka.admin.ACLOperation.ANY,
        permission_type=kafka.admin.ACLPermissionType.ANY,
        resource_pattern=kafka.admin.ResourcePatternFilter(
            kafka.admin.ResourceType.ANY, None, kafka.admin.ACLResourcePatternType.ANY
        ),
    )
    with pytest.raises(kafka.errors.SecurityDisabledError, match="No Authorizer is configured."):
        kafka_python.describe_acls(everything)
    binding = kafka.admin.ACL(
        principal="User:alice",
        host="*",
        operation=kafka.admin.ACLOperation.READ,
        permission_type=kafka.admin.ACLPermissionType.ALLOW,
        resource_pattern=kafka.admin.ResourcePattern(kafka.admin.ResourceType.TOPIC, "orders"),
    )
    created = kafka_python.create_acls([binding])
    assert (created["succeeded"], created["failed"]) == ([], [kafka.errors.SecurityDisabledError])
    ((_, removed, error),) = kafka_python.delete_acls([everything])
    assert (removed, error) == ([], kafka.errors.SecurityDisabledError)
    assert kafka_python.describe_user_scram_credentials() == {}


def test_librdkafka_gets_the_codes(tailrace_cluster: Cluster) -> None:
    admin: ConfluentAdmin = librdkafka().ConfluentAdmin(tailrace_cluster.bootstrap_servers)
    assert admin.acls() == []  # the binding for Python keeps the error to itself
    assert admin.allow_reading("alice", "orders") == "SECURITY_DISABLED"
    assert admin.remove_acls() == "SECURITY_DISABLED"
    assert admin.scram_users() == []
