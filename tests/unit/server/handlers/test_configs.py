"""DescribeConfigs (32), and where a value in force comes from."""

import pytest

from tailrace.metadata.commands import CreateTopics, NewTopic, SetConfigs
from tailrace.metadata.image import ConfigResource, ResourceType
from tailrace.model.errors import ErrorCode
from tailrace.model.settings import SettingType
from tailrace.model.topic_config import TOPIC_SETTINGS
from tailrace.node.settings import BROKER_SETTINGS, TOPIC_SETTING_OF
from tailrace.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tailrace.server.config_entries import BROKER_NAMES
from tailrace.testing.admin_path import AdminPath
from tailrace.testing.disk import SimulatedDisk


@pytest.fixture
def node() -> AdminPath:
    settings = {"log.retention.hours": "2", "log.segment.bytes": "1000000", "num.partitions": "3"}
    node = AdminPath("/data", files=SimulatedDisk(), settings=settings)
    node.submit(CreateTopics(topics=(NewTopic(name="orders", configs=(("segment.bytes", "5000"),)),)))
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


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_setting_of_a_topic_is_shown_when_no_key_is_named(node: AdminPath, version: int) -> None:
    result = describe(node, "orders", version=version)
    assert (result.error_code, result.error_message) == (0, None)
    assert [config.name for config in result.configs] == sorted(TOPIC_SETTINGS)
    retention = entry(result, "retention.ms")
    assert (retention.value, retention.config_source, retention.read_only) == ("7200000", 4, False)
    assert (entry(result, "segment.bytes").value, entry(result, "segment.bytes").config_source) == ("5000", 1)
    assert entry(result, "cleanup.policy").config_source == 5
    assert retention.config_type == (SettingType.LONG if version >= 3 else 0)
    assert not retention.synonyms


def test_only_the_keys_that_were_asked_for_are_shown(node: AdminPath) -> None:
    result = describe(node, "orders", keys=("retention.ms", "no.such.key"))
    assert [config.name for config in result.configs] == ["retention.ms"]
    assert describe(node, "orders", keys=()).configs == ()


def test_synonyms_go_from_the_value_in_force_to_the_last_resort(node: AdminPath) -> None:
    result = describe(node, "orders", synonyms=True)
    assert [(s.name, s.value, s.source) for s in entry(result, "segment.bytes").synonyms] == [
        ("segment.bytes", "5000", 1),
        ("log.segment.bytes", "1000000", 4),
    ]
    assert [(s.name, s.value, s.source) for s in entry(result, "retention.ms").synonyms] == [
        ("log.retention.hours", "2", 4)
    ]


def test_documentation_is_sent_to_those_who_ask(node: AdminPath) -> None:
    assert entry(describe(node, "orders", documentation=True), "retention.ms").documentation
    assert entry(describe(node, "orders"), "retention.ms").documentation is None


def test_a_changed_setting_is_shown_and_in_force(node: AdminPath) -> None:
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    node.submit(SetConfigs(resource=resource, changes=(("retention.ms", "60000"), ("segment.bytes", None))))
    node.end_turn()
    result = describe(node, "orders")
    assert entry(result, "retention.ms").value == "60000"
    assert (entry(result, "segment.bytes").value, entry(result, "segment.bytes").config_source) == ("1000000", 4)
    config = node.table.get("orders", 0).config
    assert (config.retention_ms, config.segment_bytes) == (60000, 1000000)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_the_settings_of_this_broker_are_shown_and_cannot_be_changed(node: AdminPath, version: int) -> None:
    result = describe(node, "1", kind=ResourceType.BROKER, version=version)
    assert [config.name for config in result.configs] == sorted(BROKER_SETTINGS)
    assert all(config.read_only for config in result.configs)
    partitions = entry(result, "num.partitions")
    assert (partitions.value, partitions.config_source) == ("3", 4)
    assert entry(result, "fetch.max.bytes").config_source == 5


def test_a_brokers_synonyms_end_with_the_default(node: AdminPath) -> None:
    result = describe(node, "1", kind=ResourceType.BROKER, synonyms=True, keys=("num.partitions", "fetch.max.bytes"))
    assert [(s.value, s.source) for s in entry(result, "num.partitions").synonyms] == [("3", 4), ("1", 5)]
    assert [(s.value, s.source) for s in entry(result, "fetch.max.bytes").synonyms] == [("57671680", 5)]


def test_the_settings_of_all_brokers_together_are_none(node: AdminPath) -> None:
    result = describe(node, "", kind=ResourceType.BROKER)
    assert (result.error_code, result.configs) == (0, ())


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
def test_what_is_not_there_is_refused_with_a_message(node: AdminPath, kind: int, name: str, code: ErrorCode) -> None:
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
