"""AlterConfigs (33), IncrementalAlterConfigs (44): changes that are in force, and changes that are refused."""

import pytest

from tailrace.metadata.image import ResourceType
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath, alter, describe, entry


def test_a_changed_setting_is_shown_and_in_force(node: AdminPath) -> None:
    alter(node, ResourceType.TOPIC, "orders", ("retention.ms", 0, "60000"), ("segment.bytes", 1, None))
    result = describe(node, "orders")
    assert entry(result, "retention.ms").value == "60000"
    assert (entry(result, "segment.bytes").value, entry(result, "segment.bytes").config_source) == ("1000000", 4)
    config = node.table.get("orders", 0).config
    assert (config.retention_ms, config.segment_bytes) == (60000, 1000000)


def test_brokers_settings_are_in_force_at_once_in_topics_without_their_own(node: AdminPath) -> None:
    node.create_topics("others")
    alter(node, ResourceType.BROKER, "", ("log.segment.bytes", 0, "7000"), ("log.retention.ms", 0, "9"))
    own, inherited = node.table.get("orders", 0).config, node.table.get("others", 0).config
    assert (own.segment_bytes, own.retention_ms) == (5000, 9)
    assert (inherited.segment_bytes, inherited.retention_ms) == (7000, 9)
    shown = entry(describe(node, "others", synonyms=True), "retention.ms")
    assert (shown.value, shown.config_source) == ("9", 3)
    assert [(s.name, s.value, s.source) for s in shown.synonyms] == [
        ("log.retention.ms", "9", 3),
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]
    node.create_topics("new")
    assert node.table.get("new", 0).config.segment_bytes == 7000


def test_settings_given_while_it_runs_are_in_force_after_a_restart() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders")
    alter(node, ResourceType.BROKER, "", ("log.segment.bytes", 0, "7000"))
    node.stop()
    node = AdminPath("/data", files=files, start=2)
    assert node.table.get("orders", 0).config.segment_bytes == 7000
    assert entry(describe(node, "1", kind=ResourceType.BROKER), "log.segment.bytes").value == "7000"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_replacement_resets_settings_that_it_does_not_name(node: AdminPath, version: int) -> None:
    resource = AlterConfigsResource(
        resource_type=ResourceType.TOPIC,
        resource_name="orders",
        configs=(AlterableConfig(name="retention.ms", value="9"),),
    )
    (answer,) = node.send(AlterConfigsRequest(resources=(resource,), validate_only=False), version).response.responses
    assert (answer.error_code, answer.error_message, answer.resource_name) == (0, None, "orders")
    config = node.table.get("orders", 0).config
    assert (config.retention_ms, config.segment_bytes) == (9, 1_000_000)


@pytest.mark.parametrize("version", [0, 1])
def test_validate_only_changes_no_setting(node: AdminPath, version: int) -> None:
    answer = alter(node, ResourceType.TOPIC, "orders", ("retention.ms", 0, "9"), version=version, validate_only=True)
    assert answer.error_code == ErrorCode.NONE
    assert node.table.get("orders", 0).config.retention_ms == 7_200_000


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (ResourceType.TOPIC, "orders", ("retention.ms", 0, "soon"), ErrorCode.INVALID_CONFIG),
        (ResourceType.TOPIC, "orders", ("retention.ms", 4, "9"), ErrorCode.INVALID_REQUEST),
        (ResourceType.TOPIC, "orders", ("retention.ms", 0, None), ErrorCode.INVALID_REQUEST),
        (ResourceType.TOPIC, "missing", ("retention.ms", 0, "9"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ResourceType.TOPIC, "orders", ("retention.ms", 2, "9"), ErrorCode.INVALID_CONFIG),
        (ResourceType.BROKER, "1", ("log.roll.ms", 2, "9"), ErrorCode.INVALID_CONFIG),
        (ResourceType.BROKER, "1", ("num.partitions", 0, "9"), ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "2", ("log.roll.ms", 0, "9"), ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "one", ("log.roll.ms", 0, "9"), ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "1", ("root", 0, "INFO"), ErrorCode.INVALID_REQUEST),
        (99, "1", ("root", 0, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_a_message(
    node: AdminPath, kind: int, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    answer = alter(node, kind, name, change)
    assert (answer.error_code, answer.resource_type, answer.resource_name) == (code, kind, name)
    assert answer.error_message


def test_an_unknown_setting_of_a_topic_is_refused_in_kafkas_words(node: AdminPath) -> None:
    """Programs match the text."""
    replacement = AlterConfigsResource(
        resource_type=ResourceType.TOPIC,
        resource_name="orders",
        configs=(AlterableConfig(name="retention.sm", value="9"),),
    )
    answers = (
        alter(node, ResourceType.TOPIC, "orders", ("retention.sm", 0, "9")),
        *node.send(AlterConfigsRequest(resources=(replacement,), validate_only=False), 2).response.responses,
    )
    for answer in answers:
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert answer.error_message == "Unknown topic config name: retention.sm; did you mean retention.ms?"


def test_a_bad_change_of_a_setting_does_not_harm_the_next(node: AdminPath) -> None:
    resources = tuple(
        AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=(AlterableConfig(name="log.roll.ms", value="9"),)
        )
        for kind, name in ((ResourceType.BROKER, "2"), (ResourceType.TOPIC, "orders"), (ResourceType.BROKER, "1"))
    )
    response = node.send(AlterConfigsRequest(resources=resources, validate_only=False), 2).response
    assert [answer.error_code for answer in response.responses] == [42, 40, 0]


@pytest.mark.parametrize("operation", [0, 9], ids=["both good", "one with an operation that is none"])
def test_a_resource_that_is_named_twice_is_left_as_it_is(node: AdminPath, operation: int) -> None:
    """INVALID_REQUEST for both, also if a second error befalls either: which of the two was meant is not known."""

    def resource(name: str, operation: int) -> IncrementalAlterConfigsResource:
        config = IncrementallyAlterableConfig(name="retention.ms", config_operation=operation, value="1000")
        return IncrementalAlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configs=(config,))

    node.create_topics("others")
    resources = (resource("orders", operation), resource("others", 0), resource("orders", 0))
    response = node.send(IncrementalAlterConfigsRequest(resources=resources, validate_only=False), 1).response
    assert [answer.error_code for answer in response.responses] == [42, 0, 42]
    assert [node.table.get(topic, 0).config.retention_ms for topic in ("orders", "others")] == [7_200_000, 1000]


def test_the_cleanup_policy_of_the_metadata_log_can_only_be_read(node: AdminPath) -> None:
    """KIP-630: "The __cluster_metadata topic will have a cleanup.policy value of snapshot. This configuration can only
    be read. Updates to this configuration will not be allowed."""
    (policy,) = describe(node, "__cluster_metadata", synonyms=True, documentation=True).configs
    assert (policy.name, policy.value, policy.read_only) == ("cleanup.policy", "snapshot", True)
    assert describe(node, "__cluster_metadata", keys=("retention.ms",)).configs == ()
    for change in (("cleanup.policy", 0, "compact"), ("cleanup.policy", 0, "snapshot"), ("retention.ms", 0, "1")):
        refusal = alter(node, ResourceType.TOPIC, "__cluster_metadata", change)
        assert refusal.error_code == ErrorCode.POLICY_VIOLATION
        assert "can only be read" in (refusal.error_message or "")


def test_a_brokers_setting_that_kafka_knows_is_altered_without_effect(node: AdminPath) -> None:
    """Settings that Kafka can change while it runs; librdkafka's tests alter the first of them."""
    for name, value in (("sasl.kerberos.min.time.before.relogin", "58000"), ("num.replica.fetchers", "2")):
        assert alter(node, ResourceType.BROKER, "1", (name, 0, value)).error_code == 0
        found = entry(describe(node, "1", kind=ResourceType.BROKER), name)
        assert (found.value, found.config_source, found.read_only) == (value, 2, False)
    for name, message in (
        ("auto.leader.rebalance.enable", "cannot be changed while the broker runs"),
        ("num.replica.fetcher", "did you mean num.replica.fetchers?"),
        ("ssl.keystore.location", "cannot be changed while the broker runs"),
        ("ssl.provider", "unknown setting"),
    ):
        refusal = alter(node, ResourceType.BROKER, "1", (name, 0, "false"))
        assert refusal.error_code == ErrorCode.INVALID_REQUEST
        assert message in (refusal.error_message or "")


def test_the_in_sync_replicas_that_all_topics_need_are_changed_for_all_brokers_while_they_run(node: AdminPath) -> None:
    """kafka-configs --alter --entity-type brokers --entity-default --add-config min.insync.replicas=2"""
    assert alter(node, ResourceType.BROKER, "", ("min.insync.replicas", 0, "2")).error_code == 0
    found = entry(describe(node, "orders", synonyms=True), "min.insync.replicas")
    assert (found.value, found.config_source) == ("2", 3)
    assert node.table.get("orders", 0).config.min_insync_replicas == 2
    assert alter(node, ResourceType.BROKER, "", ("min.insync.replicas", 1, None)).error_code == 0
    assert node.table.get("orders", 0).config.min_insync_replicas == 1
