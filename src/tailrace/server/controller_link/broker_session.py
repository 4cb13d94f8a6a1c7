"""The session of this node's broker with the cluster: from its registration to its shutdown.

    starting --registration accepted and applied--> recovery --unfenced--> running
    running --shut_down--> pending controlled shutdown --leads nothing, or time is over--> stopped

1. A broker is fenced from its registration on, until its heartbeat asks to serve and reports that the broker has
   applied the registration. The broker sends a heartbeat every `heartbeat_interval_ms`, and at once after a change.
   While the controller is slow to answer, the broker still sends a few further heartbeats: every heartbeat prolongs the
   session on arrival.
2. The broker registers again when the controller knows another epoch of this broker, or no epoch. The broker is fenced
   until it has applied the new registration, and then serves again.
3. DUPLICATE_BROKER_REGISTRATION: another process with this id was alive a moment ago, perhaps an earlier start of this
   process that was killed. The broker repeats its registration until the other session can have ended. That takes more
   than one session timeout, since every new controller begins sessions anew and extends them by its own pauses. After
   that time the error is fatal. A cluster with features that this release does not know is a fatal error, too.
4. UNSUPPORTED_VERSION has no detail. This node's own replica has `_UNEXPLAINED_MS` to find the feature and its level in
   the log.
5. No other error is fatal: without a controller the broker repeats its request.
"""

import logging
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from tailrace.metadata.broker_commands import (
    NO_BROKER_EPOCH,
    OWN_FEATURES,
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerStanding,
    RegisterBroker,
)
from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.ports import Clock, Controller, Timer

_RETRY_MS: Final = 100
_MOST_UNANSWERED: Final = 5
"""The most heartbeats that wait for their answers at the same time."""
_UNEXPLAINED_MS: Final = 5_000
"""The time for which a refused broker waits until its replica of the metadata log explains the refusal."""


def _knows() -> str:
    return "it knows " + ", ".join(f"{name} {first} to {last}" for name, first, last in OWN_FEATURES)


_FATAL: Final = {
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "another process with this node.id is alive: stop it, or give this one"
    " another node.id",
    ErrorCode.UNSUPPORTED_VERSION: "the cluster has a feature at a level that this release does not know:"
    f" {_knows()}; start the release that the other nodes run",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "the controllers belong to another cluster than the data directory of this node:"
    " look at controller.quorum.voters and at meta.properties",
    ErrorCode.INVALID_REGISTRATION: "its listeners or its data directory cannot be registered",
}
"""Permanent errors with their remedy: the answer to a registration has no text."""
_EPOCH_IS_OVER: Final = frozenset((ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED))

_logger = logging.getLogger("tailrace.server")


class BrokerState(IntEnum):
    """The states of Kafka's metric BrokerState."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class Applied(Protocol):
    """The metadata that this node has applied: a `QuorumController`."""

    @property
    def image(self) -> ClusterImage: ...

    @property
    def applied_end_offset(self) -> int: ...

    def when_applied(self, end_offset: int, callback: Callable[[], None]) -> None: ...


class BrokerSession:
    """The session of one broker process."""

    def __init__(
        self,
        *,
        controller: Controller,
        applied: Applied,
        clock: Clock,
        registration: RegisterBroker,
        heartbeat_interval_ms: int,
        session_timeout_ms: int,
        registration_timeout_ms: int,
        on_fatal: Callable[[KafkaError], None],
    ) -> None:
        """`registration` has an incarnation id of this process; its previous epoch is for the first registration only.
        The broker waits for the end of another process with its id for `registration_timeout_ms`, but at least for two
        session timeouts. `on_fatal` is called if this process cannot be a broker of this cluster."""
        self._controller = controller
        self._applied = applied
        self._clock = clock
        self._registration = registration
        self._interval_ms = heartbeat_interval_ms
        self._other_may_end_ms = max(registration_timeout_ms, 2 * session_timeout_ms)
        self._on_fatal = on_fatal
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = NO_BROKER_EPOCH
        """The epoch of the present registration; -1 without a registration."""
        self._wants_to_serve = False
        self._on_registered: Callable[[int], None] | None = None
        self._on_serving: Callable[[], None] | None = None
        self._on_stopped: Callable[[], None] | None = None
        self._duplicate_until_ms: int | None = None
        self._unexplained_until_ms: int | None = None
        self._heard_at_ms = clock.monotonic_ms()
        self._unanswered = 0
        self._has_news = False
        self._is_looking = False
        self._timer: Timer | None = None
        self._stop_timer: Timer | None = None

    @property
    def broker_id(self) -> BrokerId:
        return self._registration.broker_id

    # Calls of node, in this order

    def start(self, on_registered: Callable[[int], None]) -> None:
        """Register. `on_registered` is called once, with the broker epoch, when this node has applied the
        registration."""
        assert self.state is BrokerState.NOT_RUNNING, f"started in state {self.state.name}"
        self.state = BrokerState.STARTING
        self._on_registered = on_registered
        self._register()

    def serve(self, on_serving: Callable[[], None]) -> None:
        """Ask to be unfenced, from now on. `on_serving` is called once, when this node has applied the unfencing."""
        self._wants_to_serve = True
        self._on_serving = on_serving
        self._beat_now()

    def shut_down(self, on_stopped: Callable[[], None], timeout_ms: int) -> None:
        """Begin a controlled shutdown. `on_stopped` is called once: when the broker leads nothing and the other brokers
        have applied that, or when the time is over. After that no heartbeats are sent."""
        self._on_stopped = on_stopped
        self._heard_at_ms = self._clock.monotonic_ms()
        if self.broker_epoch == NO_BROKER_EPOCH or self.state is BrokerState.SHUTTING_DOWN:
            self._stopped()
            return
        self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        self._stop_timer = self._clock.call_at(self._clock.monotonic_ms() + timeout_ms, self._stop_anyway)
        self._beat_now()

    def unheard_ms(self) -> int:
        """The time since the last answer to a heartbeat, or since `shut_down`: the shorter of the two."""
        return self._clock.monotonic_ms() - self._heard_at_ms

    def close(self) -> None:
        """Send no more heartbeats. Waiting callbacks are not called."""
        self.state = BrokerState.SHUTTING_DOWN
        self._on_registered = self._on_serving = self._on_stopped = None
        for timer in (self._timer, self._stop_timer):
            if timer is not None:
                timer.cancel()

    # Registration

    def _register(self) -> None:
        if self.state is BrokerState.SHUTTING_DOWN:
            return
        fault = _unknown_features(self._applied.image)
        if fault is not None:
            self._fatal(fault)
            return
        self._ask(self._registration, self._registered)

    def _registered(self, answer: ControllerResponse | KafkaError) -> None:
        if isinstance(answer, KafkaError):
            self._registration_refused(answer)
            return
        assert isinstance(answer, BrokerRegistered)
        self._duplicate_until_ms = self._unexplained_until_ms = None
        self.broker_epoch = answer.broker_epoch
        _logger.info("event=broker-registered broker=%d epoch=%d", self.broker_id, answer.broker_epoch)
        self._applied.when_applied(answer.broker_epoch + 1, lambda: self._registration_applied(answer.broker_epoch))
        self._beat_now()

    def _registration_applied(self, broker_epoch: int) -> None:
        if broker_epoch != self.broker_epoch:
            return
        if self.state is BrokerState.STARTING:
            self.state = BrokerState.RECOVERY
        on_registered, self._on_registered = self._on_registered, None
        if on_registered is not None:
            on_registered(broker_epoch)
        self._beat_now()

    def _registration_refused(self, refusal: KafkaError) -> None:
        may_wait = {
            ErrorCode.DUPLICATE_BROKER_REGISTRATION: self._may_end,
            ErrorCode.UNSUPPORTED_VERSION: self._may_find_features,
        }.get(refusal.code)
        if may_wait is not None and may_wait():
            self._later(self._register, _RETRY_MS)
        elif refusal.code in _FATAL:
            why = f"broker {self.broker_id} cannot join: {_FATAL[refusal.code]}"
            self._fatal(KafkaError(refusal.code, f"{why} ({refusal.detail})"))
        else:
            _logger.warning("event=registration-failed broker=%d reason=%s", self.broker_id, refusal)
            self._later(self._register, _RETRY_MS)

    def _may_end(self) -> bool:
        """Whether the session of the other process may still end by itself."""
        now_ms = self._clock.monotonic_ms()
        if self._duplicate_until_ms is None:
            self._duplicate_until_ms = now_ms + self._other_may_end_ms
            _logger.warning(
                "event=broker-id-taken broker=%d: another process has it; waiting for its session to end",
                self.broker_id,
            )
        return now_ms < self._duplicate_until_ms

    def _may_find_features(self) -> bool:
        """Whether this node's replica may still find the cluster's features: `_register` checks them each time."""
        now_ms = self._clock.monotonic_ms()
        if self._unexplained_until_ms is None:
            self._unexplained_until_ms = now_ms + _UNEXPLAINED_MS
        return now_ms < self._unexplained_until_ms

    def _fatal(self, error: KafkaError) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        self._on_fatal(error)

    def _register_again(self) -> None:
        _logger.warning("event=broker-epoch-over broker=%d epoch=%d", self.broker_id, self.broker_epoch)
        self.broker_epoch = NO_BROKER_EPOCH
        self._register()

    # Heartbeats

    def _beat_now(self) -> None:
        """Send a heartbeat, now or after the answer to the heartbeat under way."""
        if self._unanswered:
            self._has_news = True
        elif self.broker_epoch != NO_BROKER_EPOCH and self.state is not BrokerState.SHUTTING_DOWN:
            self._beat()

    def _beat(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._has_news = False
        is_stopping = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        heartbeat = BrokerHeartbeat(
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch,
            metadata_offset=self._applied.applied_end_offset - 1,
            wants_fence=not self._wants_to_serve and not is_stopping,
            wants_shutdown=is_stopping,
        )
        epoch = self.broker_epoch

        def answered(answer: ControllerResponse | KafkaError) -> None:
            if epoch == self.broker_epoch:  # otherwise the answer belongs to an earlier registration
                self._answered(answer)

        self._ask(heartbeat, answered)
        if self._unanswered and self.state is not BrokerState.SHUTTING_DOWN:
            self._later(self._beat_in_turn, self._interval_ms)

    def _beat_in_turn(self) -> None:
        """Send the next heartbeat, also while earlier heartbeats are unanswered."""
        if self.broker_epoch == NO_BROKER_EPOCH or self.state is BrokerState.SHUTTING_DOWN:
            return
        if self._unanswered < _MOST_UNANSWERED:
            self._beat()
        else:
            self._later(self._beat_in_turn, self._interval_ms)

    def _answered(self, answer: ControllerResponse | KafkaError) -> None:
        if isinstance(answer, KafkaError):
            self._not_heard(answer)
            return
        assert isinstance(answer, BrokerStanding)
        self._heard_at_ms = self._clock.monotonic_ms()
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and answer.should_shut_down:
            self._stopped()
            return
        if not answer.is_fenced and self._wants_to_serve:
            self._unfenced()
        if self._has_news:
            self._beat()
        else:
            is_stopping = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._later(self._beat_in_turn, min(self._interval_ms, _RETRY_MS) if is_stopping else self._interval_ms)

    def _not_heard(self, refusal: KafkaError) -> None:
        if refusal.code not in _EPOCH_IS_OVER:
            # There was no answer in time, or the error may be temporary.
            self._later(self._beat_in_turn, _RETRY_MS)
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self._stopped()
        else:
            self._register_again()

    def _unfenced(self) -> None:
        """Serve as soon as this node has applied the record by which the controller has unfenced the broker."""
        broker = self._applied.image.brokers.get(self.broker_id)
        if broker is None or broker.broker_epoch != self.broker_epoch or broker.fenced:
            if not self._is_looking:
                self._is_looking = True
                self._applied.when_applied(self._applied.applied_end_offset + 1, self._look_again)
            return
        if self.state is BrokerState.RECOVERY:
            self.state = BrokerState.RUNNING
        on_serving, self._on_serving = self._on_serving, None
        if on_serving is not None:
            _logger.info("event=broker-serving broker=%d epoch=%d", self.broker_id, self.broker_epoch)
            on_serving()

    def _look_again(self) -> None:
        self._is_looking = False
        if self._on_serving is not None and self.state is not BrokerState.SHUTTING_DOWN:
            self._unfenced()

    # Shutdown

    def _stop_anyway(self) -> None:
        if self._on_stopped is not None:
            _logger.warning("event=controlled-shutdown-timed-out broker=%d", self.broker_id)
            self._stopped()

    def _stopped(self) -> None:
        on_stopped = self._on_stopped
        self.close()
        if on_stopped is not None:
            on_stopped()

    # Asking

    def _ask(self, command: ControllerCommand, on_answer: Callable[[ControllerResponse | KafkaError], None]) -> None:
        self._unanswered += 1

        def answered(answer: ControllerResponse | KafkaError) -> None:
            self._unanswered -= 1
            if self.state is not BrokerState.SHUTTING_DOWN:
                on_answer(answer)

        self._controller.submit(command, answered)

    def _later(self, action: Callable[[], None], delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._clock.monotonic_ms() + delay_ms, action)


def _unknown_features(image: ClusterImage) -> KafkaError | None:
    """The feature of the cluster that this release does not know; None if this release knows every feature."""
    known = {feature.name: feature for feature in OWN_FEATURES}
    for name, level in image.features.items():
        feature = known.get(name)
        if feature is None or not feature.min_version <= level <= feature.max_version:
            knows = "nothing of it" if feature is None else f"{feature.min_version} to {feature.max_version}"
            return KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster runs {name} {level}, and this release knows {knows}; start a release that knows it, such"
                " as the other nodes run",
            )
    return None
