"""A controller's log lines about time in which its process did not run."""

import pytest

from tailrace.metadata.heartbeats import WATCH_INTERVAL_MS, Heartbeats
from tailrace.model.ids import BrokerId
from tailrace.server.quorum.duties import GONE_BROKER_MS, SessionWatch
from tailrace.testing.clock import ManualClock


def test_a_node_without_a_process_loses_its_session_early_while_the_controller_is_active() -> None:
    clock = ManualClock()
    heartbeats = Heartbeats(10_000)
    watch = SessionWatch(heartbeats, clock=clock, later=lambda task: task())
    silent: list[BrokerId] = []

    def fence() -> None:
        for broker_id in heartbeats.silent(clock.monotonic_ms()):
            silent.append(broker_id)
            heartbeats.forget(broker_id)

    watch.on_silence = fence
    heartbeats.restart([BrokerId(1), BrokerId(2)], clock.monotonic_ms())
    watch.refused(BrokerId(1))  # not active yet
    watch.start()
    clock.advance(GONE_BROKER_MS)
    assert silent == []
    watch.refused(BrokerId(1))
    clock.advance(1)
    assert silent == [BrokerId(1)]


def test_a_controller_that_sleeps_again_and_again_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    heartbeats = Heartbeats(10**9)
    heartbeats.restart([BrokerId(1)], clock.monotonic_ms())
    watch = SessionWatch(heartbeats, clock=clock, later=lambda task: task())
    watch.start()

    def sleep(milliseconds: int) -> None:
        watch.is_on = False  # no alarm rings meanwhile
        clock.advance(milliseconds + WATCH_INTERVAL_MS)
        watch.is_on = True
        watch._look()

    for milliseconds in (1_000, 3_000, 2_000, 60_000):
        sleep(milliseconds)
    assert [record.getMessage() for record in caplog.records if record.name == "tailrace.server"] == [
        "event=controller-slept milliseconds=1000 times=1 longest=1000",
        "event=controller-slept milliseconds=60000 times=3 longest=60000",
    ]
