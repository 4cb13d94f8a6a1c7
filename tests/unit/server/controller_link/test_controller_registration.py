"""A controller is known to the cluster, again and again if it must be."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tailrace.metadata.broker_commands import CarriedOut, RegisterController
from tailrace.metadata.commands import ControllerResponse
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ControllerImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.controller_link.controller_registration import RETRY_MS, ControllerRegistration
from tailrace.testing.clock import ManualClock
from testkit.nodes.ports import DeferredController

pytestmark = pytest.mark.usefixtures("quiet")

ID = BrokerId(3)
COMMAND = RegisterController(controller_id=ID, incarnation_id=b"this controller.", endpoints=())


class RegistrationBench:
    """A registration, its controller, and the metadata that this node has applied."""

    def __init__(self) -> None:
        self.controller = DeferredController()
        self.clock = ManualClock()
        self.faults: list[KafkaError] = []
        self._listeners: list[Callable[[ClusterImage, ImageDelta], None]] = []
        self.registration = ControllerRegistration(
            metadata=self,
            controller=self.controller,
            clock=self.clock,
            registration=COMMAND,
            on_fatal=self.faults.append,
        )

    def on_image(self, callback: Callable[[ClusterImage, ImageDelta], None]) -> None:
        self._listeners.append(callback)

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    def answer(self, index: int, response: ControllerResponse | KafkaError) -> None:
        command, on_done = self.controller.waiting[index]
        assert command == COMMAND
        on_done(response)

    def show(self, incarnation_id: bytes | None) -> None:
        """The image has this controller, started like that; or it has none."""
        controllers = {}
        if incarnation_id is not None:
            controllers[ID] = ControllerImage(controller_id=ID, incarnation_id=incarnation_id, endpoints=())
        self.controller.image = replace(EMPTY_IMAGE, controllers=controllers)
        for listener in self._listeners:
            listener(self.image, ImageDelta())


def test_a_controller_registers_once_until_the_image_has_it() -> None:
    bench = RegistrationBench()
    bench.registration.start()
    bench.show(b"an earlier start")
    assert len(bench.controller.waiting) == 1
    bench.answer(0, CarriedOut())
    bench.show(b"an earlier start")  # not applied here yet
    assert len(bench.controller.waiting) == 1
    bench.show(COMMAND.incarnation_id)
    bench.clock.advance(10 * RETRY_MS)
    assert len(bench.controller.waiting) == 1


def test_a_controller_registers_again_after_a_refusal_and_when_another_took_its_place() -> None:
    bench = RegistrationBench()
    bench.registration.start()
    bench.answer(0, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    bench.clock.advance(RETRY_MS)
    assert len(bench.controller.waiting) == 2
    bench.answer(1, CarriedOut())
    bench.show(COMMAND.incarnation_id)
    bench.clock.advance(RETRY_MS)
    bench.show(b"another process.")
    assert len(bench.controller.waiting) == 3


def test_features_that_it_does_not_know_are_fatal() -> None:
    bench = RegistrationBench()
    bench.registration.start()
    bench.answer(0, KafkaError(ErrorCode.UNSUPPORTED_VERSION))
    bench.clock.advance(10 * RETRY_MS)
    assert [fault.code for fault in bench.faults] == [ErrorCode.UNSUPPORTED_VERSION]
    assert len(bench.controller.waiting) == 1


def test_a_node_that_stops_registers_no_more() -> None:
    bench = RegistrationBench()
    bench.registration.start()
    bench.registration.close()
    bench.answer(0, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    bench.clock.advance(10 * RETRY_MS)
    assert len(bench.controller.waiting) == 1
