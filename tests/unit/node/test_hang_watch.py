from tailrace.node.flush_thread import HangWatch
from tailrace.testing.clock import ManualClock


class Thread:
    """A flush thread, as far as it is watched."""

    stalled_seconds = 0.0


def test_a_round_that_takes_too_long_is_reported_once_and_when_it_is_done() -> None:
    clock, quick, slow = ManualClock(), Thread(), Thread()
    reports: list[bool] = []
    watch = HangWatch((quick, slow), clock=clock, timeout_ms=1_000, on_change=reports.append)
    watch.start()
    slow.stalled_seconds = 1.0
    clock.advance(500)
    assert reports == []
    slow.stalled_seconds = 1.1
    clock.advance(100)
    clock.advance(5_000)
    assert (reports, watch.is_hung) == ([True], True)
    slow.stalled_seconds, quick.stalled_seconds = 0.0, 0.5
    clock.advance(1_900)
    assert reports == [True], "the next round may hang as well"
    clock.advance(100)
    assert (reports, watch.is_hung) == ([True, False], False)
    watch.stop()
    quick.stalled_seconds = 9.0
    clock.advance(5_000)
    assert reports == [True, False]


class SlowThread:
    """A flush thread with one round after the other; a round takes three seconds until `is_quick`."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.is_quick = False

    @property
    def stalled_seconds(self) -> float:
        return 0.0 if self.is_quick else self._clock.monotonic_ms() % 3_000 / 1000


class HangWatchBench:
    """A disk with rounds a little longer than the time allowed for a round."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.thread = SlowThread(self.clock)
        self.reports: list[bool] = []
        watch = HangWatch((self.thread,), clock=self.clock, timeout_ms=2_500, on_change=self.reports.append)
        watch.start()

    def back_after(self) -> int:
        """Be quick from the end of a round on, until the watch reports it. Returns the seconds until then, rounded."""
        while self.thread.stalled_seconds < 2.8:
            self.clock.advance(100)
        self.thread.is_quick = True
        begun = self.clock.monotonic_ms()
        while self.reports[-1]:
            self.clock.advance(100)
        return round((self.clock.monotonic_ms() - begun) / 1000)

    def be_slow(self) -> None:
        """Be slow until the watch reports it."""
        self.thread.is_quick = False
        while not (self.reports and self.reports[-1]):
            self.clock.advance(100)


def test_a_disk_that_is_slow_in_every_round_hangs_from_the_first_to_the_last() -> None:
    """Otherwise the disk's replicas would leave and join in every round."""
    disk = HangWatchBench()
    disk.clock.advance(30_000)
    assert disk.reports == [True]
    disk.back_after()
    assert disk.reports == [True, False]


def test_a_disk_that_hangs_again_soon_stays_away_longer() -> None:
    disk = HangWatchBench()
    away = []
    for _ in range(5):
        disk.be_slow()
        away.append(disk.back_after())
    assert away == [5, 10, 20, 20, 20], "in five seconds another round hangs, and is noticed"
    disk.clock.advance(60_000)
    disk.be_slow()
    assert disk.back_after() == 5
