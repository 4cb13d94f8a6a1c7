"""A broker's life: it registers, serves, is registered again where it must be, and hands over before it goes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tailrace.metadata.broker_commands import BrokerHeartbeat, BrokerRegistered, BrokerStanding, RegisterBroker
from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.feature_levels import METADATA_VERSION, OLDEST_METADATA_VERSION
from tailrace.metadata.image import EMPTY_IMAGE, BrokerImage, ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.controller_link.broker_session import BrokerSession, BrokerState
from tailrace.testing.clock import ManualClock
from testkit.nodes.ports import DeferredController

pytestmark = pytest.mark.usefixtures("quiet")

BROKER = BrokerId(3)
INTERVAL_MS, SESSION_MS, REGISTRATION_MS = 500, 2_500, 60_000
FENCED = BrokerStanding(is_caught_up=True, is_fenced=True, should_shut_down=False)
SERVING = BrokerStanding(is_caught_up=True, is_fenced=False, should_shut_down=False)
MAY_GO = BrokerStanding(is_caught_up=True, is_fenced=True, should_shut_down=True)


class SessionBench:
    """A broker's session, its controller, and the metadata that this node has applied."""

    def __init__(self, session_timeout_ms: int = SESSION_MS) -> None:
        self.controller = DeferredController()
        self.applied_end_offset = 10
        self.clock = ManualClock()
        self.events: list[object] = []
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.session = BrokerSession(
            controller=self.controller,
            applied=self,
            clock=self.clock,
            registration=RegisterBroker(broker_id=BROKER, incarnation_id=bytes(16), endpoints=()),
            heartbeat_interval_ms=INTERVAL_MS,
            session_timeout_ms=session_timeout_ms,
            registration_timeout_ms=REGISTRATION_MS,
            on_fatal=self.events.append,
        )

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

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
        self.controller.image = replace(EMPTY_IMAGE, brokers={BROKER: broker})
        self.applied_end_offset = end_offset
        waiting, self._waiting = self._waiting, []
        for wanted, callback in waiting:
            self.when_applied(wanted, callback)

    def answer(self, answer: ControllerResponse | KafkaError) -> ControllerCommand:
        """Answer the one command that waits, and return it."""
        assert len(self.controller.waiting) == 1, f"{len(self.controller.waiting)} at a time"
        command: ControllerCommand
        command, on_done = self.controller.waiting.pop()
        on_done(answer)
        return command

    def answer_all(self, answer: ControllerResponse | KafkaError) -> int:
        """Answer all heartbeats that wait, the oldest first; returns their number."""
        waiting = self.controller.waiting[:]
        del self.controller.waiting[:]
        for command, on_done in waiting:
            assert isinstance(command, BrokerHeartbeat)
            on_done(answer)
        return len(waiting)

    def refuse(self, code: ErrorCode) -> ControllerCommand:
        return self.answer(KafkaError(code, "no"))

    def start(self) -> None:
        self.session.start(lambda epoch: self.events.append(("registered", epoch)))

    def serve(self) -> None:
        """From nothing to a broker that serves in epoch 20."""
        self.start()
        self.answer(BrokerRegistered(broker_epoch=20))
        self.answer(FENCED)
        self.apply(21, broker_epoch=20, fenced=True)
        self.session.serve(lambda: self.events.append("serving"))
        self.answer(FENCED)
        self.answer(SERVING)
        self.apply(22, broker_epoch=20, fenced=False)
        self.events.clear()

    def heartbeat(self) -> BrokerHeartbeat:
        """The heartbeat that is under way."""
        (command,) = self.controller.commands
        assert isinstance(command, BrokerHeartbeat)
        return command


@pytest.fixture
def bench() -> SessionBench:
    return SessionBench()


def test_a_broker_is_registered_reads_that_asks_to_serve_and_serves(bench: SessionBench) -> None:
    bench.start()
    assert bench.session.state is BrokerState.STARTING
    assert isinstance(bench.answer(BrokerRegistered(broker_epoch=20)), RegisterBroker)
    assert bench.heartbeat().wants_fence
    assert bench.heartbeat().metadata_offset == 9
    assert bench.events == []
    bench.answer(FENCED)
    bench.apply(21, broker_epoch=20, fenced=True)
    assert bench.events == [("registered", 20)]
    assert bench.session.state is BrokerState.RECOVERY
    # News are not kept until the next interval, and leave when the heartbeat before them is answered.
    bench.session.serve(lambda: bench.events.append("serving"))
    assert bench.heartbeat().wants_fence
    bench.answer(FENCED)
    assert bench.heartbeat() == BrokerHeartbeat(broker_id=BROKER, broker_epoch=20, metadata_offset=20)
    bench.answer(SERVING)
    assert bench.events[1:] == []  # not known to this node yet
    bench.apply(22, broker_epoch=20, fenced=False)
    assert bench.events[1:] == ["serving"]
    assert bench.session.state is BrokerState.RUNNING


def test_a_broker_beats_once_per_interval_whether_or_not_it_is_heard(bench: SessionBench) -> None:
    bench.serve()
    for _ in range(3):
        assert bench.controller.waiting == []
        bench.clock.advance(INTERVAL_MS - 1)
        assert bench.controller.waiting == []
        bench.clock.advance(1)
        bench.answer(SERVING)
    bench.clock.advance(INTERVAL_MS)
    bench.refuse(ErrorCode.REQUEST_TIMED_OUT)
    bench.clock.advance(100)
    assert isinstance(bench.answer(SERVING), BrokerHeartbeat)


def test_a_broker_beats_on_up_to_a_few_times_while_a_slow_controller_answers_none(bench: SessionBench) -> None:
    """A heartbeat prolongs the session when it arrives, also if the controller is busy with other decisions."""
    bench.serve()
    sent = []
    for _ in range(8):
        bench.clock.advance(INTERVAL_MS)
        sent.append(len(bench.controller.waiting))
    assert sent == [1, 2, 3, 4, 5, 5, 5, 5]
    assert bench.answer_all(SERVING) == 5
    bench.clock.advance(INTERVAL_MS - 1)
    assert bench.controller.waiting == []
    bench.clock.advance(1)
    assert isinstance(bench.answer(SERVING), BrokerHeartbeat)


def test_a_broker_ignores_an_answer_about_an_earlier_registration(bench: SessionBench) -> None:
    bench.serve()
    bench.clock.advance(3 * INTERVAL_MS)
    (_, first), (_, second), (_, third) = bench.controller.waiting
    del bench.controller.waiting[:]
    first(KafkaError(ErrorCode.STALE_BROKER_EPOCH, "no"))
    second(KafkaError(ErrorCode.STALE_BROKER_EPOCH, "no"))
    assert isinstance(bench.answer(BrokerRegistered(broker_epoch=30)), RegisterBroker)
    third(KafkaError(ErrorCode.STALE_BROKER_EPOCH, "no"))
    assert bench.session.broker_epoch == 30


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_broker_registers_again_when_its_epoch_is_over_and_serves_again(bench: SessionBench, code: ErrorCode) -> None:
    bench.serve()
    bench.clock.advance(INTERVAL_MS)
    bench.refuse(code)
    assert bench.session.broker_epoch == -1
    assert isinstance(bench.answer(BrokerRegistered(broker_epoch=30)), RegisterBroker)
    assert bench.session.broker_epoch == 30
    assert bench.heartbeat() == BrokerHeartbeat(broker_id=BROKER, broker_epoch=30, metadata_offset=21)
    bench.answer(FENCED)
    bench.apply(31, broker_epoch=30, fenced=True)
    assert bench.heartbeat().metadata_offset == 30
    assert bench.events == []


def test_a_broker_waits_for_the_session_of_its_own_last_life_to_end(bench: SessionBench) -> None:
    bench.start()
    for _ in range(20):
        bench.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        bench.clock.advance(100)
    bench.answer(BrokerRegistered(broker_epoch=20))
    assert bench.session.broker_epoch == 20
    assert bench.events == []


def test_a_broker_waits_to_register_while_controllers_follow_one_another_and_sleep(bench: SessionBench) -> None:
    """A new controller starts every session with its full timeout, and adds the time that it slept itself."""
    bench.start()
    while bench.clock.monotonic_ms() < REGISTRATION_MS - 1_000:
        bench.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        bench.clock.advance(100)
    bench.answer(BrokerRegistered(broker_epoch=20))
    assert bench.session.broker_epoch == 20
    assert bench.events == []


@pytest.mark.parametrize(("session_ms", "waits_ms"), [(SESSION_MS, REGISTRATION_MS), (50_000, 100_000)])
def test_a_live_process_with_a_brokers_id_is_fatal(session_ms: int, waits_ms: int) -> None:
    bench = SessionBench(session_ms)
    bench.start()
    while bench.controller.waiting:
        bench.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        bench.clock.advance(100)
    (error,) = bench.events
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "another node.id" in error.detail
    assert waits_ms <= bench.clock.monotonic_ms() <= waits_ms + 200


@pytest.mark.parametrize("code", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION])
def test_a_permanent_error_of_a_broker_registration_is_fatal(bench: SessionBench, code: ErrorCode) -> None:
    bench.start()
    bench.refuse(code)
    bench.clock.advance(60_000)
    assert [error.code for error in bench.events if isinstance(error, KafkaError)] == [code]
    assert bench.controller.waiting == []


def test_without_a_controller_a_broker_goes_on_asking_to_register(bench: SessionBench) -> None:
    bench.start()
    for _ in range(100):
        bench.refuse(ErrorCode.REQUEST_TIMED_OUT)
        bench.clock.advance(100)
    bench.answer(BrokerRegistered(broker_epoch=20))
    assert bench.events == []


def test_a_broker_does_not_ask_a_cluster_whose_features_it_does_not_know() -> None:
    for features in ({"metadata.version": METADATA_VERSION + 1}, {"a.feature.of.tomorrow": 1}):
        bench = SessionBench()
        bench.controller.image = replace(EMPTY_IMAGE, features=features)
        bench.start()
        (error,) = bench.events
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.UNSUPPORTED_VERSION
        assert bench.controller.waiting == []


def test_a_broker_that_is_refused_says_which_feature_it_is_as_soon_as_its_replica_has_read_it(
    bench: SessionBench,
) -> None:
    """The answer to a registration has no text."""
    bench.start()
    bench.refuse(ErrorCode.UNSUPPORTED_VERSION)
    assert bench.events == []
    bench.controller.image = replace(EMPTY_IMAGE, features={"metadata.version": METADATA_VERSION + 1})
    bench.clock.advance(100)
    (error,) = bench.events
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    assert f"the cluster runs metadata.version {METADATA_VERSION + 1}" in error.detail
    assert f"this release knows {OLDEST_METADATA_VERSION} to {METADATA_VERSION}" in error.detail
    assert "that knows it" in error.detail
    assert bench.controller.waiting == []


def test_a_broker_that_never_reads_why_it_is_refused_says_what_it_knows(bench: SessionBench) -> None:
    bench.start()
    while bench.controller.waiting:
        bench.refuse(ErrorCode.UNSUPPORTED_VERSION)
        bench.clock.advance(100)
    (error,) = bench.events
    assert isinstance(error, KafkaError)
    assert f"it knows metadata.version {OLDEST_METADATA_VERSION} to {METADATA_VERSION}" in error.detail
    assert "start the release that the other nodes run" in error.detail
    assert 5_000 <= bench.clock.monotonic_ms() <= 5_200


def test_a_broker_that_was_registered_meanwhile_waits_again_to_read_why_it_is_refused(bench: SessionBench) -> None:
    """A broker is refused during an upgrade, and again during the next upgrade: then its wait begins from zero."""
    bench.start()
    bench.refuse(ErrorCode.UNSUPPORTED_VERSION)
    bench.clock.advance(100)
    bench.answer(BrokerRegistered(broker_epoch=20))
    bench.clock.advance(10_000)
    assert bench.answer_all(KafkaError(ErrorCode.STALE_BROKER_EPOCH, "no")) == 5
    bench.refuse(ErrorCode.UNSUPPORTED_VERSION)
    assert bench.events == []
    bench.controller.image = replace(EMPTY_IMAGE, features={"metadata.version": METADATA_VERSION + 1})
    bench.clock.advance(100)
    (error,) = bench.events
    assert isinstance(error, KafkaError)
    assert f"the cluster runs metadata.version {METADATA_VERSION + 1}" in error.detail


def test_a_broker_stops_when_it_leads_nothing_any_more_and_beats_no_more(bench: SessionBench) -> None:
    bench.serve()
    bench.session.shut_down(lambda: bench.events.append("stopped"), 5_000)
    assert bench.session.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    assert bench.heartbeat().wants_shutdown
    bench.answer(SERVING)
    bench.clock.advance(INTERVAL_MS)
    assert bench.heartbeat().wants_shutdown
    bench.answer(MAY_GO)
    assert bench.events == ["stopped"]
    bench.clock.advance(60_000)
    assert bench.controller.waiting == []
    assert bench.events == ["stopped"]


def test_a_broker_stops_anyway_when_its_time_is_over(bench: SessionBench) -> None:
    bench.serve()
    bench.session.shut_down(lambda: bench.events.append("stopped"), 5_000)
    bench.clock.advance(5_000)
    assert bench.events == ["stopped"]
    bench.answer_all(MAY_GO)
    bench.clock.advance(60_000)
    assert (bench.controller.waiting, bench.events) == ([], ["stopped"])


def test_a_broker_tells_for_how_long_no_controller_has_answered_while_it_stops(bench: SessionBench) -> None:
    """Without a majority of the voters no controller answers, even if its own replica still names a leader."""
    bench.serve()
    bench.clock.advance(60_000)
    bench.session.shut_down(lambda: bench.events.append("stopped"), 5_000)
    assert bench.session.unheard_ms() == 0
    bench.clock.advance(400)
    bench.answer_all(SERVING)
    assert bench.session.unheard_ms() == 0
    for unheard_ms in (1_000, 2_000, 3_000):
        bench.clock.advance(1_000)
        assert bench.session.unheard_ms() == unheard_ms
        bench.answer_all(KafkaError(ErrorCode.NETWORK_EXCEPTION, "no"))
    assert bench.events == []


def test_a_broker_that_is_not_registered_stops_at_once(bench: SessionBench) -> None:
    bench.start()
    bench.session.shut_down(lambda: bench.events.append("stopped"), 5_000)
    assert bench.events == ["stopped"]
    bench.answer(BrokerRegistered(broker_epoch=20))
    bench.clock.advance(60_000)
    assert bench.controller.waiting == []


def test_a_broker_whose_epoch_is_over_while_it_stops_is_not_registered_again(bench: SessionBench) -> None:
    bench.serve()
    bench.session.shut_down(lambda: bench.events.append("stopped"), 5_000)
    bench.refuse(ErrorCode.STALE_BROKER_EPOCH)
    assert (bench.controller.waiting, bench.events) == ([], ["stopped"])
