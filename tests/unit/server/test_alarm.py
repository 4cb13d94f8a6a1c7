"""One timer, set again and again."""

from tailrace.server.alarm import Alarm
from tailrace.testing.clock import ManualClock


class Bedside:
    """An alarm, and when it has rung."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rung: list[int] = []
        self.alarm = Alarm(self.clock, lambda: self.rung.append(self.clock.monotonic_ms()))
        self.start_ms = self.clock.monotonic_ms()

    def set(self, *after_ms: int) -> None:
        for milliseconds in after_ms:
            self.alarm.set(self.start_ms + milliseconds)

    def rung_after(self, milliseconds: int) -> list[int]:
        self.clock.advance(milliseconds)
        return [at_ms - self.start_ms for at_ms in self.rung]


def test_it_rings_once_and_for_the_earliest_time() -> None:
    bedside = Bedside()
    bedside.set(500, 200, 300)
    assert bedside.rung_after(1_000) == [200]


def test_it_can_be_set_again_when_it_has_rung() -> None:
    bedside = Bedside()
    bedside.set(200)
    assert bedside.rung_after(250) == [200]
    bedside.set(900)
    assert bedside.rung_after(750) == [200, 900]


def test_it_does_not_ring_once_cancelled_until_it_is_set_anew() -> None:
    bedside = Bedside()
    bedside.set(200)
    bedside.alarm.cancel()
    bedside.alarm.cancel()
    assert bedside.rung_after(300) == []
    bedside.set(400)
    assert bedside.rung_after(700) == [400]
