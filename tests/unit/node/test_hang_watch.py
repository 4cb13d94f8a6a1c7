from tailrace.node.hang_watch import HangWatch
from tailrace.testing.clock import ManualClock


class Thread:
    """A flush thread, as far as it is watched."""

    round_seconds = 0.0


def test_a_round_that_takes_too_long_is_told_of_once_and_when_it_is_done() -> None:
    clock, quick, slow = ManualClock(), Thread(), Thread()
    told: list[bool] = []
    watch = HangWatch((quick, slow), clock=clock, timeout_ms=1_000, on_change=told.append)
    watch.start()
    slow.round_seconds = 1.0
    clock.advance(500)
    assert told == []
    slow.round_seconds = 1.1
    clock.advance(100)
    clock.advance(5_000)
    assert (told, watch.is_hung) == ([True], True)
    slow.round_seconds, quick.round_seconds = 0.0, 0.5
    clock.advance(100)
    assert (told, watch.is_hung) == ([True, False], False)
    watch.stop()
    quick.round_seconds = 9.0
    clock.advance(5_000)
    assert told == [True, False]
