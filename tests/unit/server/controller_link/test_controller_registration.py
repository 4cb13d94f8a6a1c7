"""A controller is known to the cluster, again and again if it must be."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tailrace.metadata.broker_commands import Done, RegisterController
from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ControllerImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.controller_link.controller_registration import RETRY_MS, ControllerRegistration
from tailrace.testing.clock import ManualClock

ID = BrokerId(3)
COMMAND = RegisterController(controller_id=ID, incarnation_id=b"this controller.", endpoints=())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Node:
    """The ports of a registration."""

    def __init__(self) -> None:
        self.image = EMPTY_IMAGE
        self.leader_id = BrokerId(1)
        self.clock = ManualClock()
        self.asked: list[Callable[[ControllerResponse | KafkaError], None]] = []
        self.faults: list[KafkaError] = []
        self._listeners: list[Callable[[ClusterImage, ImageDelta], None]] = []
        self.registration = ControllerRegistration(
            metadata=self, controller=self, clock=self.clock, registration=COMMAND, on_fatal=self.faults.append
        )

    def on_image(self, callback: Callable[[ClusterImage, ImageDelta], None]) -> None:
        self._listeners.append(callback)

    def submit(self, command: ControllerCommand, on_done: Callable[[ControllerResponse | KafkaError], None]) -> None:
        assert command == COMMAND
        self.asked.append(on_done)

    def show(self, incarnation_id: bytes | None) -> None:
        """The image has this controller, started like that; or it has none."""
        controllers = {}
        if incarnation_id is not None:
            controllers[ID] = ControllerImage(controller_id=ID, incarnation_id=incarnation_id, endpoints=())
        self.image = replace(EMPTY_IMAGE, controllers=controllers)
        for listener in self._listeners:
            listener(self.image, ImageDelta())


def test_it_registers_once_until_the_image_has_it() -> None:
    node = Node()
    node.registration.start()
    node.show(b"an earlier start")
    assert len(node.asked) == 1
    node.asked[0](Done())
    node.show(b"an earlier start")  # not applied here yet
    assert len(node.asked) == 1
    node.show(COMMAND.incarnation_id)
    node.clock.advance(10 * RETRY_MS)
    assert len(node.asked) == 1


def test_it_tries_again_after_a_refusal_and_when_another_took_its_place() -> None:
    node = Node()
    node.registration.start()
    node.asked[0](KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    node.clock.advance(RETRY_MS)
    assert len(node.asked) == 2
    node.asked[1](Done())
    node.show(COMMAND.incarnation_id)
    node.clock.advance(RETRY_MS)
    node.show(b"another process.")
    assert len(node.asked) == 3


def test_features_that_it_does_not_know_are_fatal() -> None:
    node = Node()
    node.registration.start()
    node.asked[0](KafkaError(ErrorCode.UNSUPPORTED_VERSION))
    node.clock.advance(10 * RETRY_MS)
    assert [fault.code for fault in node.faults] == [ErrorCode.UNSUPPORTED_VERSION]
    assert len(node.asked) == 1


def test_a_node_that_stops_registers_no_more() -> None:
    node = Node()
    node.registration.start()
    node.registration.close()
    node.asked[0](KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    node.clock.advance(10 * RETRY_MS)
    assert len(node.asked) == 1
