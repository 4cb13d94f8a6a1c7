"""The registration of a controller with its listeners and features (KIP-919).

A controller registers with the active controller, which may be on this node, whenever the image does not have the
registration of this process: at the start, and after another process has registered under its id. No other part waits
for the registration.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from tailrace.metadata.broker_commands import RegisterController
from tailrace.metadata.commands import ControllerResponse
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.server.ports import Clock, Controller

RETRY_MS: Final = 1_000

_logger = logging.getLogger("tailrace.server")


class Metadata(Protocol):
    """The metadata on this node: a `QuorumController`."""

    @property
    def image(self) -> ClusterImage: ...

    def on_image(self, callback: Callable[[ClusterImage, ImageDelta], None]) -> None: ...


class ControllerRegistration:
    """The registration of one controller process."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        controller: Controller,
        clock: Clock,
        registration: RegisterController,
        on_fatal: Callable[[KafkaError], None],
    ) -> None:
        """`controller`: a `ControllerChannel`. `on_fatal` is called if the cluster has features that this release does
        not know."""
        self._metadata = metadata
        self._controller = controller
        self._clock = clock
        self._registration = registration
        self._on_fatal = on_fatal
        self._is_asking = False
        self._is_closed = False

    def start(self) -> None:
        self._metadata.on_image(lambda image, _: self._look(image))
        self._look(self._metadata.image)

    def close(self) -> None:
        """Do not register again."""
        self._is_closed = True

    def _look(self, image: ClusterImage) -> None:
        known = image.controllers.get(self._registration.controller_id)
        is_known = known is not None and known.incarnation_id == self._registration.incarnation_id
        if not (is_known or self._is_asking or self._is_closed):
            self._is_asking = True
            self._controller.submit(self._registration, self._answered)

    def _answered(self, answer: ControllerResponse | KafkaError) -> None:
        # The next try comes only after the image has had time to show the registration.
        self._clock.call_at(self._clock.monotonic_ms() + RETRY_MS, self._look_again)
        if not isinstance(answer, KafkaError):
            _logger.info("event=controller-registered node=%d", self._registration.controller_id)
        elif answer.code is ErrorCode.UNSUPPORTED_VERSION:
            self._is_closed = True
            self._on_fatal(answer)
        else:
            _logger.info("event=controller-not-registered reason=%s", answer)

    def _look_again(self) -> None:
        self._is_asking = False
        self._look(self._metadata.image)
