"""A broker's life: it registers, serves, is registered again where it must be, and hands over before it goes."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tailrace.metadata.broker_commands import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerStanding,
    RegisterBroker,
)
from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.image import EMPTY_IMAGE, BrokerImage, ClusterImage
from tailrace.metadata.records import METADATA_VERSION, OLDEST_METADATA_VERSION
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.controller_link.broker_lifecycle import BrokerSession, BrokerState
from tailrace.testing.clock import ManualClock

BROKER = BrokerId(3)
INTERVAL_MS, SESSION_MS, REGISTRATION_MS = 500, 2_500, 60_000
FENCED = BrokerStanding(is_caught_up=True, is_fenced=True, should_shut_down=False)
SERVING = BrokerStanding(is_caught_up=True, is_fenced=False, should_shut_down=False)
MAY_GO = BrokerStanding(is_caught_up=True, is_fenced=True, should_shut_down=True)

OnDone = Callable[[ControllerResponse | KafkaError], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Cluster:
    """The ports of a broker: a controller that answers what the test says, and this node's copy of the metadata."""

    def __init__(self, session_timeout_ms: int = SESSION_MS) -> None:
        self.image: ClusterImage = EMPTY_IMAGE
        self.applied_end_offset = 10
        self.leader_id = BrokerId(1)
        self.asked: list[tuple[ControllerCommand, OnDone]] = []
        self.clock = ManualClock()
        self.events: list[object] = []
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.lifecycle = BrokerSession(
            controller=self,
            applied=self,
            clock=self.clock,
            registration=RegisterBroker(broker_id=BROKER, incarnation_id=bytes(16), endpoints=()),
            heartbeat_interval_ms=INTERVAL_MS,
            session_timeout_ms=session_timeout_ms,
            registration_timeout_ms=REGISTRATION_MS,
            on_fatal=self.events.append,
        )

    def submit(self, command: ControllerCommand, on_done: OnDone) -> None:
        self.asked.append((command, on_done))

    def when_applied(self, end_offset: int, callback: Callable[[], None]) -> None:
        if end_offset <= self.applied_end_offset:
            callback()
        else:
            self._waiting.append((end_offset, callback))

    def apply(self, end_offset: int, *, broker_epoch: int, fenced: bool) -> None:
        """The node has read so far, and this broker is registered like that."""
        broker = BrokerImage(
            broker_id=BROKER, incarnation_id=bytes(16), broker_epoch=broker_epoch, endpoints=(), fenced=fenced
        )
        self.image = replace(EMPTY_IMAGE, brokers={BROKER: broker})
        self.applied_end_offset = end_offset
        waiting, self._waiting = self._waiting, []
        for wanted, callback in waiting:
            self.when_applied(wanted, callback)

    def answer(self, answer: ControllerResponse | KafkaError) -> ControllerCommand:
        """Answer the one command that waits, and return it."""
        assert len(self.asked) == 1, f"{len(self.asked)} at a time"
        command, on_done = self.asked.pop()
        on_done(answer)
        return command

    def refuse(self, code: ErrorCode) -> ControllerCommand:
        return self.answer(KafkaError(code, "no"))

    def start(self) -> None:
        self.lifecycle.start(lambda epoch: self.events.append(("registered", epoch)))

    def serve(self) -> None:
        """From nothing to a broker that serves in epoch 20."""
        self.start()
        self.answer(BrokerRegistered(broker_epoch=20))
        self.answer(FENCED)
        self.apply(21, broker_epoch=20, fenced=True)
        self.lifecycle.serve(lambda: self.events.append("serving"))
        self.answer(FENCED)
        self.answer(SERVING)
        self.apply(22, broker_epoch=20, fenced=False)
        self.events.clear()

    def heartbeat(self) -> BrokerHeartbeat:
        """The one that is under way."""
        ((command, _),) = self.asked
        assert isinstance(command, BrokerHeartbeat)
        return command


def test_a_broker_is_registered_reads_that_asks_to_serve_and_serves() -> None:
    cluster = Cluster()
    cluster.start()
    assert cluster.lifecycle.state is BrokerState.STARTING
    assert isinstance(cluster.answer(BrokerRegistered(broker_epoch=20)), RegisterBroker)
    assert cluster.heartbeat().wants_fence
    assert cluster.heartbeat().metadata_offset == 9
    assert cluster.events == []
    cluster.answer(FENCED)
    cluster.apply(21, broker_epoch=20, fenced=True)
    assert cluster.events == [("registered", 20)]
    assert cluster.lifecycle.state is BrokerState.RECOVERY
    # News are not kept until the next interval, and one heartbeat is under way at a time.
    cluster.lifecycle.serve(lambda: cluster.events.append("serving"))
    assert cluster.heartbeat().wants_fence
    cluster.answer(FENCED)
    assert cluster.heartbeat() == BrokerHeartbeat(broker_id=BROKER, broker_epoch=20, metadata_offset=20)
    cluster.answer(SERVING)
    assert cluster.events[1:] == []  # not known to this node yet
    cluster.apply(22, broker_epoch=20, fenced=False)
    assert cluster.events[1:] == ["serving"]
    assert cluster.lifecycle.state is BrokerState.RUNNING


def test_it_beats_once_per_interval_whether_or_not_it_is_heard() -> None:
    cluster = Cluster()
    cluster.serve()
    for _ in range(3):
        assert cluster.asked == []
        cluster.clock.advance(INTERVAL_MS - 1)
        assert cluster.asked == []
        cluster.clock.advance(1)
        cluster.answer(SERVING)
    cluster.clock.advance(INTERVAL_MS)
    cluster.refuse(ErrorCode.REQUEST_TIMED_OUT)
    cluster.clock.advance(100)
    assert isinstance(cluster.answer(SERVING), BrokerHeartbeat)


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_it_registers_again_when_its_epoch_is_over_and_serves_again(code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.serve()
    cluster.clock.advance(INTERVAL_MS)
    cluster.refuse(code)
    assert cluster.lifecycle.broker_epoch == -1
    assert isinstance(cluster.answer(BrokerRegistered(broker_epoch=30)), RegisterBroker)
    assert cluster.lifecycle.broker_epoch == 30
    assert cluster.heartbeat() == BrokerHeartbeat(broker_id=BROKER, broker_epoch=30, metadata_offset=21)
    cluster.answer(FENCED)
    cluster.apply(31, broker_epoch=30, fenced=True)
    assert cluster.heartbeat().metadata_offset == 30
    assert cluster.events == []


def test_it_waits_for_the_session_of_its_own_last_life_to_end() -> None:
    cluster = Cluster()
    cluster.start()
    for _ in range(20):
        cluster.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        cluster.clock.advance(100)
    cluster.answer(BrokerRegistered(broker_epoch=20))
    assert cluster.lifecycle.broker_epoch == 20
    assert cluster.events == []


def test_it_waits_while_controllers_follow_one_another_and_sleep() -> None:
    """Each new controller starts every session with its full timeout, and adds the time that it slept itself."""
    cluster = Cluster()
    cluster.start()
    while cluster.clock.monotonic_ms() < REGISTRATION_MS - 1_000:
        cluster.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        cluster.clock.advance(100)
    cluster.answer(BrokerRegistered(broker_epoch=20))
    assert cluster.lifecycle.broker_epoch == 20
    assert cluster.events == []


@pytest.mark.parametrize(("session_ms", "waits_ms"), [(SESSION_MS, REGISTRATION_MS), (50_000, 100_000)])
def test_a_live_process_with_its_id_is_fatal(session_ms: int, waits_ms: int) -> None:
    cluster = Cluster(session_ms)
    cluster.start()
    while cluster.asked:
        cluster.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        cluster.clock.advance(100)
    (error,) = cluster.events
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "another node.id" in error.detail
    assert waits_ms <= cluster.clock.monotonic_ms() <= waits_ms + 200


@pytest.mark.parametrize("code", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION])
def test_what_will_not_pass_is_fatal(code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.start()
    cluster.refuse(code)
    cluster.clock.advance(60_000)
    assert [error.code for error in cluster.events if isinstance(error, KafkaError)] == [code]
    assert cluster.asked == []


def test_without_a_controller_it_goes_on_asking() -> None:
    cluster = Cluster()
    cluster.start()
    for _ in range(100):
        cluster.refuse(ErrorCode.REQUEST_TIMED_OUT)
        cluster.clock.advance(100)
    cluster.answer(BrokerRegistered(broker_epoch=20))
    assert cluster.events == []


def test_a_cluster_whose_features_it_does_not_know_is_not_asked_at_all() -> None:
    for features in ({"metadata.version": METADATA_VERSION + 1}, {"a.feature.of.tomorrow": 1}):
        cluster = Cluster()
        cluster.image = replace(EMPTY_IMAGE, features=features)
        cluster.start()
        (error,) = cluster.events
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.UNSUPPORTED_VERSION
        assert cluster.asked == []


def test_a_broker_that_is_refused_says_which_feature_it_is_as_soon_as_its_replica_has_read_it() -> None:
    """The answer to a registration has no text."""
    cluster = Cluster()
    cluster.start()
    cluster.refuse(ErrorCode.UNSUPPORTED_VERSION)
    assert cluster.events == []
    cluster.image = replace(EMPTY_IMAGE, features={"metadata.version": METADATA_VERSION + 1})
    cluster.clock.advance(100)
    (error,) = cluster.events
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    assert f"the cluster runs metadata.version {METADATA_VERSION + 1}" in error.detail
    assert f"this release knows {OLDEST_METADATA_VERSION} to {METADATA_VERSION}" in error.detail
    assert "start one that knows it" in error.detail
    assert cluster.asked == []


def test_a_broker_that_never_reads_why_it_is_refused_says_what_it_knows() -> None:
    cluster = Cluster()
    cluster.start()
    while cluster.asked:
        cluster.refuse(ErrorCode.UNSUPPORTED_VERSION)
        cluster.clock.advance(100)
    (error,) = cluster.events
    assert isinstance(error, KafkaError)
    assert f"it knows metadata.version {OLDEST_METADATA_VERSION} to {METADATA_VERSION}" in error.detail
    assert "start the release that the other nodes run" in error.detail
    assert 5_000 <= cluster.clock.monotonic_ms() <= 5_200


def test_a_broker_that_was_registered_meanwhile_waits_again_to_read_why_it_is_refused() -> None:
    """A broker is refused during an upgrade, and again during the next one: then its wait begins from zero."""
    cluster = Cluster()
    cluster.start()
    cluster.refuse(ErrorCode.UNSUPPORTED_VERSION)
    cluster.clock.advance(100)
    cluster.answer(BrokerRegistered(broker_epoch=20))
    cluster.clock.advance(10_000)
    cluster.refuse(ErrorCode.STALE_BROKER_EPOCH)
    cluster.refuse(ErrorCode.UNSUPPORTED_VERSION)
    assert cluster.events == []
    cluster.image = replace(EMPTY_IMAGE, features={"metadata.version": METADATA_VERSION + 1})
    cluster.clock.advance(100)
    (error,) = cluster.events
    assert isinstance(error, KafkaError)
    assert f"the cluster runs metadata.version {METADATA_VERSION + 1}" in error.detail


def test_it_stops_when_it_leads_nothing_any_more_and_beats_no_more() -> None:
    cluster = Cluster()
    cluster.serve()
    cluster.lifecycle.shut_down(lambda: cluster.events.append("stopped"), 5_000)
    assert cluster.lifecycle.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    assert cluster.heartbeat().wants_shutdown
    cluster.answer(SERVING)
    cluster.clock.advance(INTERVAL_MS)
    assert cluster.heartbeat().wants_shutdown
    cluster.answer(MAY_GO)
    assert cluster.events == ["stopped"]
    cluster.clock.advance(60_000)
    assert cluster.asked == []
    assert cluster.events == ["stopped"]


def test_it_stops_anyway_when_its_time_is_over() -> None:
    cluster = Cluster()
    cluster.serve()
    cluster.lifecycle.shut_down(lambda: cluster.events.append("stopped"), 5_000)
    cluster.clock.advance(5_000)
    assert cluster.events == ["stopped"]
    cluster.answer(MAY_GO)
    cluster.clock.advance(60_000)
    assert (cluster.asked, cluster.events) == ([], ["stopped"])


def test_it_tells_for_how_long_no_controller_has_answered_while_it_stops() -> None:
    """Without a majority of the voters no controller answers, even if its own replica still names a leader."""
    cluster = Cluster()
    cluster.serve()
    cluster.clock.advance(60_000)
    cluster.lifecycle.shut_down(lambda: cluster.events.append("stopped"), 5_000)
    assert cluster.lifecycle.unheard_ms() == 0
    cluster.clock.advance(400)
    cluster.answer(SERVING)
    assert cluster.lifecycle.unheard_ms() == 0
    for unheard_ms in (1_000, 2_000, 3_000):
        cluster.clock.advance(1_000)
        assert cluster.lifecycle.unheard_ms() == unheard_ms
        cluster.refuse(ErrorCode.NETWORK_EXCEPTION)
    assert cluster.events == []


def test_a_broker_that_is_not_registered_stops_at_once() -> None:
    cluster = Cluster()
    cluster.start()
    cluster.lifecycle.shut_down(lambda: cluster.events.append("stopped"), 5_000)
    assert cluster.events == ["stopped"]
    cluster.answer(BrokerRegistered(broker_epoch=20))
    cluster.clock.advance(60_000)
    assert cluster.asked == []


def test_a_broker_whose_epoch_is_over_while_it_stops_is_not_registered_again() -> None:
    cluster = Cluster()
    cluster.serve()
    cluster.lifecycle.shut_down(lambda: cluster.events.append("stopped"), 5_000)
    cluster.refuse(ErrorCode.STALE_BROKER_EPOCH)
    assert (cluster.asked, cluster.events) == ([], ["stopped"])
