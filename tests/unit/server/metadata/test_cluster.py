"""DescribeCluster (60)."""

import pytest

from tailrace.metadata.broker_commands import FenceBroker, RegisterBroker, UnfenceBroker
from tailrace.metadata.image import Endpoint
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse, MetadataRequest
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import CLUSTER_ID


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
def test_a_description_of_the_cluster_has_its_id_its_controller_and_its_living_brokers(
    node: AdminPath, version: int
) -> None:
    response = ask(node, version)
    assert (response.error_code, response.error_message) == (0, None)
    assert (response.cluster_id, response.controller_id) == (CLUSTER_ID, 1)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in response.brokers] == [(1, "127.0.0.1", 9092, "rack-a")]
    assert response.cluster_authorized_operations == -(2**31)
    assert ask(node, version, operations=True).cluster_authorized_operations == 8096


def test_fenced_brokers_are_shown_on_request(node: AdminPath) -> None:
    response = ask(node, 2, fenced=True)
    assert [(broker.broker_id, broker.is_fenced) for broker in response.brokers] == [(1, False), (2, True)]


def controllers(node: AdminPath) -> set[int]:
    """The controllers that DescribeCluster and Metadata name."""
    return {ask(node, 2).controller_id, node.send(MetadataRequest(topics=()), 12).response.controller_id}


def test_the_controller_is_this_broker_wherever_the_active_one_is(
    node: AdminPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The active controller need not be a broker, may be a fenced broker, and is -1 while there is none."""
    for leader in (9, 2, -1):
        monkeypatch.setattr(type(node.controller), "leader_id", leader)
        assert controllers(node) == {1}


def test_the_controller_of_a_broker_that_is_fenced_is_one_that_is_not(node: AdminPath) -> None:
    def epoch(broker_id: int) -> int:
        return node.controller.image.brokers[BrokerId(broker_id)].broker_epoch

    node.submit(UnfenceBroker(broker_id=BrokerId(2), broker_epoch=epoch(2)))
    node.submit(FenceBroker(broker_id=BrokerId(1), broker_epoch=epoch(1)))
    node.end_turn()
    assert controllers(node) == {2}


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_controllers_have_no_addresses_for_clients(node: AdminPath, endpoint_type: int, code: ErrorCode) -> None:
    response = ask(node, 1, endpoint_type=endpoint_type)
    assert response.error_code == code
    assert response.error_message
    assert response.endpoint_type == 1, "as in Kafka, a refusal does not repeat the request"
