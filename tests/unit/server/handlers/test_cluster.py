"""DescribeCluster (60)."""

import pytest

from tailrace.metadata.broker_commands import (
    RegisterBroker,
)
from tailrace.metadata.image import Endpoint
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from tailrace.testing.admin_path import CLUSTER_ID, AdminPath
from tailrace.testing.disk import SimulatedDisk


@pytest.fixture
def node() -> AdminPath:
    """Broker 1 alive, broker 2 fenced."""
    node = AdminPath("/data", files=SimulatedDisk(), settings={"broker.rack": "rack-a"})
    endpoint = Endpoint(listener_name="PLAINTEXT", host="10.0.0.2", port=9094)
    node.submit(RegisterBroker(broker_id=BrokerId(2), incarnation_id=b"2" * 16, endpoints=(endpoint,)))
    node.end_turn()
    return node


def ask(
    node: AdminPath, version: int, *, operations: bool = False, endpoint_type: int = 1, fenced: bool = False
) -> DescribeClusterResponse:
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=operations, endpoint_type=endpoint_type, include_fenced_brokers=fenced
    )
    response = node.send(request, version).response
    assert isinstance(response, DescribeClusterResponse)
    return response


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_its_id_its_controller_and_its_living_brokers(node: AdminPath, version: int) -> None:
    response = ask(node, version)
    assert (response.error_code, response.error_message) == (0, None)
    assert (response.cluster_id, response.controller_id) == (CLUSTER_ID, 1)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in response.brokers] == [(1, "127.0.0.1", 9092, "rack-a")]
    assert response.cluster_authorized_operations == -(2**31)
    assert ask(node, version, operations=True).cluster_authorized_operations == 8096


def test_fenced_brokers_are_shown_to_those_who_ask(node: AdminPath) -> None:
    response = ask(node, 2, fenced=True)
    assert [(broker.broker_id, broker.is_fenced) for broker in response.brokers] == [(1, False), (2, True)]


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_controllers_have_no_addresses_for_clients(node: AdminPath, endpoint_type: int, code: ErrorCode) -> None:
    response = ask(node, 1, endpoint_type=endpoint_type)
    assert response.error_code == code
    assert response.error_message
    assert response.endpoint_type == 1, "a refusal does not repeat what was asked for, as Kafka's"
