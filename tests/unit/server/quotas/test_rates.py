"""Rates in windows, beside a count of every single event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.server.quotas.rates import LONGEST_THROTTLE_MS, RateWindow

SAMPLE_MS = 1_000
EVENTS = st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 100_000)), min_size=1, max_size=60)
"""Pauses in ms, each with the value behind the pause."""


class Oracle:
    """Every event with its time: samples begin with the first event after the end of the sample before."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.begins: list[int] = []
        self.events: list[tuple[int, int]] = []

    def record(self, value: int, now_ms: int) -> None:
        begins = self.present(now_ms)
        if not begins or now_ms - begins[-1] >= SAMPLE_MS:
            self.begins.append(now_ms)
        self.events.append((self.begins[-1], value))

    def present(self, now_ms: int) -> list[int]:
        return [begin for begin in self.begins if now_ms - begin < self.samples * SAMPLE_MS]

    def rate_and_span(self, now_ms: int) -> tuple[float, float]:
        begins = self.present(now_ms)
        total = sum(value for begin, value in self.events if begin in begins)
        elapsed = now_ms - begins[0] if begins else 0
        whole = elapsed // SAMPLE_MS
        span = max(1, elapsed + max(0, self.samples - 1 - whole) * SAMPLE_MS)
        return total * 1000 / span, span


@given(samples=st.integers(1, 12), events=EVENTS, limit=st.integers(1, 50_000))
def test_a_rate_equals_the_count_of_single_events(samples: int, events: list[tuple[int, int]], limit: int) -> None:
    window, oracle, now_ms = RateWindow(samples=samples, sample_ms=SAMPLE_MS), Oracle(samples), 0
    for pause_ms, value in events:
        now_ms += pause_ms
        window.record(value, now_ms)
        oracle.record(value, now_ms)
        rate, span = oracle.rate_and_span(now_ms)
        assert window.rate(now_ms) == pytest.approx(rate)
        expected = min((rate - limit) / limit * span, LONGEST_THROTTLE_MS) if rate > limit else 0
        assert window.throttle_ms(limit, now_ms) == pytest.approx(expected, abs=1)


@given(events=EVENTS, limit=st.integers(1, 50_000))
def test_a_client_that_keeps_its_throttle_times_keeps_the_limit(events: list[tuple[int, int]], limit: int) -> None:
    window, now_ms, total = RateWindow(samples=11, sample_ms=SAMPLE_MS), 0, 0
    for pause_ms, value in events:
        now_ms += pause_ms
        window.record(value, now_ms)
        total += value
        throttle_ms = window.throttle_ms(limit, now_ms)
        now_ms += throttle_ms
        if throttle_ms == LONGEST_THROTTLE_MS:
            return
    # A window of burst, and a millisecond of rounding per event.
    assert total <= limit * (11 * SAMPLE_MS + now_ms + len(events)) / 1000 + max(value for _, value in events)


def test_a_burst_holds_back_as_long_as_it_is_worth() -> None:
    window = RateWindow(samples=11, sample_ms=SAMPLE_MS)
    window.record(20_000, 0)
    assert window.throttle_ms(1_000, 0) == 10_000  # 20 s of bytes, of which 10 s are the window
    assert window.throttle_ms(1_000, 10_000) == 10_000
    assert window.throttle_ms(1_000, 11_000) == 0  # the sample has left the window


def test_a_throttle_time_fits_into_an_answer() -> None:
    window = RateWindow(samples=11, sample_ms=SAMPLE_MS)
    window.record(1e300, 0)
    assert window.throttle_ms(1e-300, 0) == LONGEST_THROTTLE_MS
