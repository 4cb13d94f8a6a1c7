"""The breaker, whatever comes in which order: the last calls open it, and few calls begin while it is open."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.keyed.breaker import LEAST_KEYS, WINDOW_CALLS, Breaker

MIN_CALLS, PAUSE_MS, LONGEST_PAUSE_MS = 10, 100, 700
CALL = st.tuples(st.sampled_from([None, None, 0, 1, 2, 3, 4, 5, 6, 7]), st.integers(0, 400))


@given(st.lists(CALL, min_size=20, max_size=100), st.sampled_from([1, 50, 99]))
def test_the_breaker_opens_by_the_last_calls_and_lets_few_calls_begin(
    calls: list[tuple[int | None, int]], percent: int
) -> None:
    """A call has the key that it fails with, None for a success, and the time that has passed before it."""
    breaker = Breaker(percent, min_calls=MIN_CALLS, pause_ms=PAUSE_MS, longest_pause_ms=LONGEST_PAUSE_MS)
    window: list[int | None] = []
    """The calls since the breaker closed."""
    now_ms, since_ms, pause_ms = 0, 0, PAUSE_MS
    for key, passed_ms in calls:
        now_ms += passed_ms
        was_open, call = breaker.is_open, object()
        if not breaker.may_begin(now_ms):
            assert was_open
            assert now_ms - since_ms < pause_ms
            continue
        if was_open:
            assert now_ms - since_ms >= pause_ms
            breaker.begin_try(call, now_ms)
            since_ms, pause_ms = now_ms, min(2 * pause_ms, LONGEST_PAUSE_MS)
        if key is None:
            breaker.succeeded(call, now_ms)
        else:
            assert breaker.failed(call, key, "E", began_ms=now_ms, now_ms=now_ms) is not was_open
        if was_open:
            assert breaker.is_open is (key is not None)
            window = []
            continue
        window.append(key)
        last = window[-WINDOW_CALLS:]
        failed = [found for found in last if found is not None]
        is_most = len(failed) * 100 > len(last) * percent
        must_open = key is not None and len(last) >= MIN_CALLS and is_most and len(set(failed)) >= LEAST_KEYS
        assert breaker.is_open is must_open
        since_ms, pause_ms = now_ms, PAUSE_MS
