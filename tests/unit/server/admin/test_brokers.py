"""UnregisterBroker (64) on a node that is its own controller."""

from dataclasses import replace

import pytest

from tailrace.metadata.broker_commands import BrokerRegistered, RegisterBroker
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.registrations import UnregisterBrokerRequest, UnregisterBrokerResponse
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import ENDPOINT, AdminPath
from testkit.nodes.data_path import BROKER

OTHER = BrokerId(BROKER + 1)


@pytest.fixture
def node() -> AdminPath:
    return AdminPath("/data", files=SimulatedDisk())


def unregister(node: AdminPath, broker_id: int) -> UnregisterBrokerResponse:
    response = node.send(UnregisterBrokerRequest(broker_id=broker_id), 0).response
    assert isinstance(response, UnregisterBrokerResponse)
    return response


def test_a_fenced_broker_is_forgotten(node: AdminPath) -> None:
    register = RegisterBroker(
        broker_id=OTHER, incarnation_id=b"another process.", endpoints=(replace(ENDPOINT, port=9093),)
    )
    answers = node.submit(register)
    node.end_turn()
    assert isinstance(answers[0], BrokerRegistered)
    assert unregister(node, OTHER).error_code == 0
    assert OTHER not in node.controller.image.brokers
    assert unregister(node, OTHER).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_broker_that_runs_must_be_stopped_first(node: AdminPath) -> None:
    response = unregister(node, BROKER)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "stop it first" in (response.error_message or "")
    assert BROKER in node.controller.image.brokers


@pytest.mark.parametrize("broker_id", [-1, 0, 2**31 - 1])
def test_a_broker_that_never_was_is_not_registered(node: AdminPath, broker_id: int) -> None:
    response = unregister(node, broker_id)
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert str(broker_id) in (response.error_message or "")
