"""DescribeConfigs (32): the settings that are shown, and the place that a value in force comes from."""

from collections.abc import Iterable
from typing import Any

import pytest

from tailrace.metadata.image import ResourceType
from tailrace.model.errors import ErrorCode
from tailrace.model.settings import SettingType
from tailrace.model.topic_config import TOPIC_SETTINGS
from tailrace.node.settings.config import SettingInForce
from tailrace.node.settings.kafka import WITHOUT_EFFECT
from tailrace.node.settings.table import BROKER_SETTINGS, TOPIC_SETTING_OF
from tailrace.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tailrace.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tailrace.server.admin.config_entries import BROKER_NAMES, OWN_TOPIC_SETTINGS
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath, alter, describe, entry


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
    (own,) = describe(node, "orders", keys=("key.ranges.enable",)).configs
    assert (own.name, own.value, own.config_source) == ("key.ranges.enable", "true", 5)
    alter(node, ResourceType.TOPIC, "orders", ("key.ranges.enable", 0, "false"))
    assert entry(describe(node, "orders"), "key.ranges.enable").value == "false"
    (index,) = describe(node, "orders", keys=("key.ranges.index",)).configs
    assert (index.name, index.value, index.config_source) == ("key.ranges.index", "auto", 5)
    alter(node, ResourceType.TOPIC, "orders", ("key.ranges.index", 0, "none"))
    assert entry(describe(node, "orders"), "key.ranges.index").value == "none"


def test_a_former_name_of_a_topic_setting_is_taken_and_the_current_name_is_shown(node: AdminPath) -> None:
    alter(node, ResourceType.TOPIC, "orders", ("key.sharing.enable", 0, "false"))
    for key in ("key.sharing.enable", "key.ranges.enable"):
        (own,) = describe(node, "orders", keys=(key,)).configs
        assert (own.name, own.value, own.config_source) == ("key.ranges.enable", "false", 1)
    alter(node, ResourceType.TOPIC, "orders", ("key.sharing.enable", 1, None))
    (own,) = describe(node, "orders", keys=("key.ranges.enable",)).configs
    assert (own.value, own.config_source) == ("true", 5)


def test_no_keys_ask_for_all_settings_of_a_resource(node: AdminPath) -> None:
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


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_the_settings_of_this_broker_are_shown_and_few_can_be_changed(node: AdminPath, version: int) -> None:
    result = describe(node, "1", kind=ResourceType.BROKER, version=version)
    assert [config.name for config in result.configs] == sorted((*BROKER_SETTINGS, "broker.id"))
    defaults_of_topics = {name for names in BROKER_NAMES.values() for name in names[:1]}
    throttles = {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}
    without_effect = {setting.name for setting in WITHOUT_EFFECT if setting.dynamic}
    assert {
        config.name for config in result.configs if not config.read_only
    } == defaults_of_topics | throttles | without_effect
    partitions = entry(result, "num.partitions")
    assert (partitions.value, partitions.config_source) == ("3", 4)
    assert entry(result, "fetch.max.bytes").config_source == 5


def test_a_brokers_synonyms_end_with_the_default(node: AdminPath) -> None:
    result = describe(node, "1", kind=ResourceType.BROKER, synonyms=True, keys=("num.partitions", "fetch.max.bytes"))
    assert [(s.value, s.source) for s in entry(result, "num.partitions").synonyms] == [("3", 4), ("1", 5)]
    assert [(s.value, s.source) for s in entry(result, "fetch.max.bytes").synonyms] == [("4194304", 5)]


def test_a_setting_without_a_value_has_no_synonym(node: AdminPath) -> None:
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


def test_a_bad_config_resource_does_not_harm_the_next(node: AdminPath) -> None:
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
    assert [(synonym.value, synonym.source) for synonym in session.synonyms] == [("50000", 8), ("20000", 5)]
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
    assert [(config.name, config.value, config.config_source) for config in found.configs] == [
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


def test_many_config_resources_cost_the_look_ups_of_one(node: AdminPath, monkeypatch: pytest.MonkeyPatch) -> None:
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
