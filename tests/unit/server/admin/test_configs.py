"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44): where a value in force comes from."""

from collections.abc import Iterable
from typing import Any

import pytest

from tailrace.metadata.commands import TopicSpec
from tailrace.metadata.image import ResourceType
from tailrace.model.errors import ErrorCode
from tailrace.model.settings import SettingType
from tailrace.model.topic_config import TOPIC_SETTINGS
from tailrace.node.settings.config import SettingInForce
from tailrace.node.settings.kafka import WITHOUT_EFFECT
from tailrace.node.settings.table import BROKER_SETTINGS, TOPIC_SETTING_OF
from tailrace.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tailrace.server.admin.config_entries import BROKER_NAMES, OWN_TOPIC_SETTINGS
from tailrace.testing.disk import SimulatedDisk
from testkit.admin_path import AdminPath
from testkit.controller_commands import create_topics


@pytest.fixture
def node() -> AdminPath:
    settings = {"log.retention.hours": "2", "log.segment.bytes": "1000000", "num.partitions": "3"}
    node = AdminPath("/data", files=SimulatedDisk(), settings=settings)
    node.submit(create_topics(TopicSpec(name="orders", configs=(("segment.bytes", "5000"),))))
    node.end_turn()
    return node


def describe(
    node: AdminPath,
    name: str,
    *,
    kind: int = ResourceType.TOPIC,
    keys: tuple[str, ...] | None = None,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=(DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys),),
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    response = node.send(request, version).response
    assert isinstance(response, DescribeConfigsResponse)
    (result,) = response.results
    return result


def entry(result: DescribeConfigsResult, name: str) -> DescribeConfigsResourceResult:
    return next(config for config in result.configs if config.name == name)


def alter(
    node: AdminPath,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> AlterConfigsResourceResponse:
    """Changes are (setting, operation, value)."""
    configs = tuple(
        IncrementallyAlterableConfig(name=setting, config_operation=operation, value=value)
        for setting, operation, value in changes
    )
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    (answer,) = node.send(request, version).response.responses
    assert isinstance(answer, AlterConfigsResourceResponse)
    return answer


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_setting_of_a_topic_is_shown_when_no_key_is_named(node: AdminPath, version: int) -> None:
    result = describe(node, "orders", version=version)
    assert (result.error_code, result.error_message) == (0, None)
    assert [config.name for config in result.configs] == sorted(TOPIC_SETTINGS.keys() - OWN_TOPIC_SETTINGS)
    retention = entry(result, "retention.ms")
    assert (retention.value, retention.config_source, retention.read_only) == ("7200000", 4, False)
    assert (entry(result, "segment.bytes").value, entry(result, "segment.bytes").config_source) == ("5000", 1)
    assert entry(result, "cleanup.policy").config_source == 5
    assert retention.config_type == (SettingType.LONG if version >= 3 else 0)
    assert not retention.synonyms


def test_only_the_requested_keys_are_shown(node: AdminPath) -> None:
    result = describe(node, "orders", keys=("retention.ms", "no.such.key"))
    assert [config.name for config in result.configs] == ["retention.ms"]


def test_a_setting_that_kafka_does_not_have_is_shown_if_it_is_named_or_set(node: AdminPath) -> None:
    (own,) = describe(node, "orders", keys=("key.sharing.enable",)).configs
    assert (own.name, own.value, own.config_source) == ("key.sharing.enable", "true", 5)
    alter(node, ResourceType.TOPIC, "orders", ("key.sharing.enable", 0, "false"))
    assert entry(describe(node, "orders"), "key.sharing.enable").value == "false"
    (index,) = describe(node, "orders", keys=("key.sharing.index",)).configs
    assert (index.name, index.value, index.config_source) == ("key.sharing.index", "auto", 5)
    alter(node, ResourceType.TOPIC, "orders", ("key.sharing.index", 0, "none"))
    assert entry(describe(node, "orders"), "key.sharing.index").value == "none"


def test_no_keys_ask_for_all_settings(node: AdminPath) -> None:
    """In Kafka's schema only null means all; its brokers treat an empty list the same."""
    assert describe(node, "orders", keys=()).configs == describe(node, "orders").configs


def test_synonyms_go_from_the_value_in_force_to_the_last_resort(node: AdminPath) -> None:
    result = describe(node, "orders", synonyms=True)
    assert [(s.name, s.value, s.source) for s in entry(result, "segment.bytes").synonyms] == [
        ("segment.bytes", "5000", 1),
        ("log.segment.bytes", "1000000", 4),
        ("log.segment.bytes", "1073741824", 5),
    ]
    assert [(s.name, s.value, s.source) for s in entry(result, "retention.ms").synonyms] == [
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_documentation_is_sent_on_request(node: AdminPath) -> None:
    assert entry(describe(node, "orders", documentation=True), "retention.ms").documentation
    assert entry(describe(node, "orders"), "retention.ms").documentation is None


def test_a_changed_setting_is_shown_and_in_force(node: AdminPath) -> None:
    alter(node, ResourceType.TOPIC, "orders", ("retention.ms", 0, "60000"), ("segment.bytes", 1, None))
    result = describe(node, "orders")
    assert entry(result, "retention.ms").value == "60000"
    assert (entry(result, "segment.bytes").value, entry(result, "segment.bytes").config_source) == ("1000000", 4)
    config = node.table.get("orders", 0).config
    assert (config.retention_ms, config.segment_bytes) == (60000, 1000000)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_the_settings_of_this_broker_are_shown_and_few_can_be_changed(node: AdminPath, version: int) -> None:
    result = describe(node, "1", kind=ResourceType.BROKER, version=version)
    assert [config.name for config in result.configs] == sorted((*BROKER_SETTINGS, "broker.id"))
    defaults_of_topics = {name for names in BROKER_NAMES.values() for name in names[:1]}
    throttles = {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}
    without_effect = {setting.name for setting in WITHOUT_EFFECT if setting.dynamic}
    assert {one.name for one in result.configs if not one.read_only} == defaults_of_topics | throttles | without_effect
    partitions = entry(result, "num.partitions")
    assert (partitions.value, partitions.config_source) == ("3", 4)
    assert entry(result, "fetch.max.bytes").config_source == 5


def test_a_brokers_synonyms_end_with_the_default(node: AdminPath) -> None:
    result = describe(node, "1", kind=ResourceType.BROKER, synonyms=True, keys=("num.partitions", "fetch.max.bytes"))
    assert [(s.value, s.source) for s in entry(result, "num.partitions").synonyms] == [("3", 4), ("1", 5)]
    assert [(s.value, s.source) for s in entry(result, "fetch.max.bytes").synonyms] == [("4194304", 5)]


def test_no_value_is_no_synonym(node: AdminPath) -> None:
    own = entry(describe(node, "1", kind=ResourceType.BROKER, synonyms=True), "log.roll.ms")
    assert (own.value, own.config_source, own.synonyms) == (None, 5, ())


def test_the_settings_of_all_brokers_together_are_those_that_were_given(node: AdminPath) -> None:
    result = describe(node, "", kind=ResourceType.BROKER)
    assert (result.error_code, result.configs) == (0, ())
    alter(node, ResourceType.BROKER, "", ("log.segment.bytes", 0, "7000"))
    alter(node, ResourceType.BROKER, "1", ("log.segment.bytes", 0, "8000"))
    (shared,) = describe(node, "", kind=ResourceType.BROKER, synonyms=True).configs
    assert (shared.name, shared.value, shared.config_source) == ("log.segment.bytes", "7000", 3)
    assert [(s.value, s.source) for s in shared.synonyms] == [("7000", 3)]


def test_a_brokers_own_setting_wins_over_that_of_all_brokers_and_that_over_its_configuration(node: AdminPath) -> None:
    def in_force() -> list[tuple[str | None, int]]:
        own = entry(describe(node, "1", kind=ResourceType.BROKER, synonyms=True), "log.segment.bytes")
        return [(s.value, s.source) for s in own.synonyms]

    configured = [("1000000", 4), ("1073741824", 5)]
    assert in_force() == configured
    alter(node, ResourceType.BROKER, "", ("log.segment.bytes", 0, "7000"))
    assert in_force() == [("7000", 3), *configured]
    alter(node, ResourceType.BROKER, "1", ("log.segment.bytes", 0, "8000"))
    assert in_force() == [("8000", 2), ("7000", 3), *configured]
    alter(node, ResourceType.BROKER, "", ("log.segment.bytes", 1, None))
    assert in_force() == [("8000", 2), *configured]


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


def test_one_bad_change_does_not_harm_the_next(node: AdminPath) -> None:
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
    """INVALID_REQUEST for both, also if one of them has another error: the one that was meant is not known."""

    def resource(name: str, operation: int) -> IncrementalAlterConfigsResource:
        config = IncrementallyAlterableConfig(name="retention.ms", config_operation=operation, value="1000")
        return IncrementalAlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configs=(config,))

    node.create_topics("others")
    resources = (resource("orders", operation), resource("others", 0), resource("orders", 0))
    response = node.send(IncrementalAlterConfigsRequest(resources=resources, validate_only=False), 1).response
    assert [answer.error_code for answer in response.responses] == [42, 0, 42]
    assert [node.table.get(topic, 0).config.retention_ms for topic in ("orders", "others")] == [7_200_000, 1000]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (ResourceType.TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ResourceType.TOPIC, "or ders", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.BROKER, "2", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER, "one", ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (99, "1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_missing_resources_are_refused_with_a_message(node: AdminPath, kind: int, name: str, code: ErrorCode) -> None:
    result = describe(node, name, kind=kind)
    assert (result.error_code, result.resource_type, result.resource_name) == (code, kind, name)
    assert result.error_message
    assert result.configs == ()


def test_one_bad_resource_does_not_harm_the_next(node: AdminPath) -> None:
    resources = tuple(
        DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=None)
        for name in ("missing", "orders")
    )
    response = node.send(DescribeConfigsRequest(resources=resources), 4).response
    assert [result.error_code for result in response.results] == [3, 0]


def test_every_topic_setting_is_tied_to_the_brokers_settings_that_decide_it() -> None:
    assert set(BROKER_NAMES) == set(TOPIC_SETTINGS)
    assert {name for names in BROKER_NAMES.values() for name in names} <= set(BROKER_SETTINGS)
    for broker_name, topic_name in TOPIC_SETTING_OF.items():
        assert broker_name in BROKER_NAMES[topic_name]


def test_a_resource_that_is_asked_for_twice_is_refused(node: AdminPath) -> None:
    """A request of 4 MiB would have an answer of a gigabyte otherwise."""
    asked = (("orders", ("segment.bytes",)), ("orders", None), ("__consumer_offsets", None))
    resources = tuple(
        DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=keys)
        for name, keys in asked
    )
    response = node.send(DescribeConfigsRequest(resources=resources), 4).response
    assert [(result.error_code, result.configs) for result in response.results] == [
        (ErrorCode.INVALID_REQUEST, ()),
        (ErrorCode.INVALID_REQUEST, ()),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ()),
    ]


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
    """Settings that Kafka can change while it runs; librdkafka's tests alter the first one."""
    for name, value in (("sasl.kerberos.min.time.before.relogin", "58000"), ("num.replica.fetchers", "2")):
        assert alter(node, ResourceType.BROKER, "1", (name, 0, value)).error_code == 0
        found = entry(describe(node, "1", kind=ResourceType.BROKER), name)
        assert (found.value, found.config_source, found.read_only) == (value, 2, False)
    for name, message in (
        ("auto.leader.rebalance.enable", "cannot be changed while the broker runs"),
        ("num.replica.fetcher", "did you mean num.replica.fetchers?"),
        ("ssl.keystore.location", "unknown setting"),
    ):
        refusal = alter(node, ResourceType.BROKER, "1", (name, 0, "false"))
        assert refusal.error_code == ErrorCode.INVALID_REQUEST
        assert message in (refusal.error_message or "")


GROUP, CLIENT_METRICS = ResourceType.GROUP, ResourceType.CLIENT_METRICS


def test_a_groups_settings_are_the_brokers_until_they_are_set() -> None:
    node = AdminPath("/data", files=SimulatedDisk(), settings={"group.consumer.session.timeout.ms": "20000"})
    before = describe(node, "readers", kind=GROUP, synonyms=True)
    session, interval = (entry(before, f"consumer.{name}") for name in ("session.timeout.ms", "heartbeat.interval.ms"))
    assert (session.value, session.config_source) == ("20000", 5)
    assert (interval.value, interval.config_source) == ("5000", 5)
    assert entry(before, "share.auto.offset.reset").value == "latest"
    answer = alter(
        node, GROUP, "readers", ("consumer.session.timeout.ms", 0, "50000"), ("share.isolation.level", 1, None)
    )
    assert (answer.error_code, answer.error_message) == (0, None)
    session = entry(describe(node, "readers", kind=GROUP, synonyms=True), "consumer.session.timeout.ms")
    assert (session.value, session.config_source, session.read_only) == ("50000", 8, False)
    assert [(one.value, one.source) for one in session.synonyms] == [("50000", 8), ("20000", 5)]
    assert entry(describe(node, "writers", kind=GROUP), "consumer.session.timeout.ms").value == "20000"
    alter(node, GROUP, "readers", ("consumer.session.timeout.ms", 1, None))
    assert entry(describe(node, "readers", kind=GROUP), "consumer.session.timeout.ms").value == "20000"
    assert not [resource for resource in node.controller.image.configs if resource.type == GROUP]


def test_client_metrics_are_subscribed_to_and_forgotten(node: AdminPath) -> None:
    changes = (
        ("interval.ms", 0, "1000"),
        ("metrics", 0, "org.apache.kafka.producer.,"),
        ("match", 0, "client_id=.*,client_source_port=90[0-9]+"),
    )
    answer = alter(node, CLIENT_METRICS, "slow", *changes)
    assert (answer.error_code, answer.error_message) == (0, None)
    found = describe(node, "slow", kind=CLIENT_METRICS)
    assert [(one.name, one.value, one.config_source) for one in found.configs] == [
        ("interval.ms", "1000", 7),
        ("match", "client_id=.*,client_source_port=90[0-9]+", 7),
        ("metrics", "org.apache.kafka.producer.", 7),
    ]
    assert entry(describe(node, "none", kind=CLIENT_METRICS), "interval.ms").value == "300000"
    emptied = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name="slow", configs=())
    (answer,) = node.send(AlterConfigsRequest(resources=(emptied,), validate_only=False), 2).response.responses
    assert answer.error_code == 0
    assert not [resource for resource in node.controller.image.configs if resource.type == CLIENT_METRICS]


@pytest.mark.parametrize(
    ("kind", "name", "change", "code", "message"),
    [
        (GROUP, "g", ("consumer.session.timeout.ms", 0, "44999"), 40, "must be between 45000 and 60000"),
        (GROUP, "g", ("consumer.heartbeat.interval.ms", 0, "15001"), 40, "must be between 5000 and 15000"),
        (GROUP, "g", ("consumer.sesion.timeout.ms", 0, "50000"), 40, "did you mean consumer.session.timeout.ms?"),
        (GROUP, "g", ("share.auto.offset.reset", 0, "sometimes"), 40, "must be latest, earliest or by_duration"),
        (GROUP, "", ("consumer.session.timeout.ms", 0, "50000"), 42, "a group needs a name"),
        (GROUP, "g" * 1001, ("consumer.session.timeout.ms", 0, "50000"), 42, "1001 characters"),
        (CLIENT_METRICS, "", ("interval.ms", 0, "1000"), 42, "client metrics needs a name"),
        (CLIENT_METRICS, "m", ("interval.ms", 0, "99"), 40, "must be between 100 and 3600000"),
        (CLIENT_METRICS, "m", ("match", 0, "client=x"), 40, "say key=pattern"),
        (CLIENT_METRICS, "m", ("metric", 0, "x"), 40, "did you mean metrics?"),
    ],
)
def test_a_setting_of_a_group_or_of_client_metrics_that_cannot_be_is_refused(
    node: AdminPath, kind: int, name: str, change: tuple[str, int, str | None], code: int, message: str
) -> None:
    refusal = alter(node, kind, name, change)
    assert refusal.error_code == code
    assert message in (refusal.error_message or "")
    assert describe(node, "", kind=kind).error_code == ErrorCode.INVALID_REQUEST


def test_there_is_room_for_so_many_groups_with_settings(node: AdminPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.metadata.deciding.config_changes._MOST_NAMED", 2)
    change = ("consumer.session.timeout.ms", 0, "50000")
    codes = [alter(node, GROUP, name, change).error_code for name in ("a", "b", "c", "a")]
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION, 0]
    assert alter(node, CLIENT_METRICS, "c", ("interval.ms", 0, "1000")).error_code == 0


def test_the_in_sync_replicas_that_all_topics_need_are_changed_for_all_brokers_while_they_run(node: AdminPath) -> None:
    """kafka-configs --alter --entity-type brokers --entity-default --add-config min.insync.replicas=2"""
    assert alter(node, ResourceType.BROKER, "", ("min.insync.replicas", 0, "2")).error_code == 0
    found = entry(describe(node, "orders", synonyms=True), "min.insync.replicas")
    assert (found.value, found.config_source) == ("2", 3)
    assert node.table.get("orders", 0).config.min_insync_replicas == 2
    assert alter(node, ResourceType.BROKER, "", ("min.insync.replicas", 1, None)).error_code == 0
    assert node.table.get("orders", 0).config.min_insync_replicas == 1


class _LookUps:
    """Counts look-ups of single settings of the broker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def counted(**parts: Any) -> SettingInForce:
            self.count += 1
            return SettingInForce(**parts)

        monkeypatch.setattr("tailrace.node.settings.config.SettingInForce", counted)

    def of(self, node: AdminPath, request: Any, version: int) -> int:
        before = self.count
        assert node.send(request, version).response is not None
        return self.count - before


def _all_of(kind: int, names: Iterable[str]) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names
        )
    )


def test_many_resources_cost_the_look_ups_of_one(node: AdminPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may name 10,000 groups that do not exist: with all settings for each it held up everything for 12 s."""
    names = [f"n{number}" for number in range(100)]
    create = CreateTopicsRequest(
        topics=tuple(
            CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
            for name in names
        )
    )
    look_ups = _LookUps(monkeypatch)
    most_of_topics = sum(map(len, BROKER_NAMES.values()))
    assert look_ups.of(node, create, 7) <= most_of_topics
    assert look_ups.of(node, _all_of(ResourceType.TOPIC, names), 4) <= most_of_topics
    assert look_ups.of(node, _all_of(GROUP, names), 4) <= 2
    assert look_ups.of(node, _all_of(CLIENT_METRICS, names), 4) == 0
    assert look_ups.of(node, _all_of(ResourceType.BROKER, ["", *map(str, range(100))]), 4) <= 2 * len(BROKER_SETTINGS)
