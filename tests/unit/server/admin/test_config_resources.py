"""ListConfigResources (74): the names of all that has settings (KIP-1142)."""

import pytest

from tailrace.metadata.commands import ConfigChange, ResourceChanges
from tailrace.metadata.image import ConfigResource, ResourceType
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import ListConfigResourcesRequest
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import BROKER
from testkit.quorum.controller_commands import alter_configs

TOPICS = [(ResourceType.TOPIC, "orders"), (ResourceType.TOPIC, "payments")]
BROKERS = [(ResourceType.BROKER, str(BROKER))]


@pytest.fixture
def node() -> AdminPath:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("payments", "orders")
    return node


@pytest.mark.parametrize(
    ("types", "named"),
    [
        ((), TOPICS + BROKERS),
        ((ResourceType.TOPIC,), TOPICS),
        ((ResourceType.BROKER, ResourceType.BROKER), BROKERS),
        ((ResourceType.GROUP, ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS), []),
    ],
)
def test_resources_of_the_types_that_were_asked_for_are_named(
    node: AdminPath, types: tuple[int, ...], named: list[tuple[int, str]]
) -> None:
    response = node.send(ListConfigResourcesRequest(resource_types=types), 1).response
    assert response.error_code == 0
    assert [(each.resource_type, each.resource_name) for each in response.config_resources] == named


def test_groups_and_client_metrics_are_named_that_have_settings_and_version_0_asks_for_the_latter(
    node: AdminPath,
) -> None:
    response = node.send(ListConfigResourcesRequest(), 0).response
    assert (response.error_code, response.config_resources) == (0, ())
    group, metrics = (ResourceType.GROUP, "readers"), (ResourceType.CLIENT_METRICS, "slow")
    settings = {group: ("consumer.session.timeout.ms", "50000"), metrics: ("interval.ms", "1000")}
    for resource, (name, value) in settings.items():
        changes = ResourceChanges(resource=ConfigResource(*resource), changes=(ConfigChange(name=name, value=value),))
        node.submit(alter_configs(changes))
    node.end_turn()
    response = node.send(ListConfigResourcesRequest(), 0).response
    assert [each.resource_name for each in response.config_resources] == ["slow"]
    response = node.send(ListConfigResourcesRequest(resource_types=(16, 32)), 1).response
    assert [(each.resource_type, each.resource_name) for each in response.config_resources] == [metrics, group]


def test_a_type_that_does_not_exist_is_refused(node: AdminPath) -> None:
    response = node.send(ListConfigResourcesRequest(resource_types=(3,)), 1).response
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, ())
