"""The breaker of a handler: what opens it, the tries while it is open, and what closes it."""

import pytest

from tailrace.client.keyed.breaker import LEAST_KEYS, WINDOW_CALLS, Breaker, BreakerState

KEYS = [b"key-%d" % number for number in range(100)]


class BreakerUnderTest:
    """A breaker, and a clock that the test moves. Each call ends in the ms in which it begins, unless the test says
    otherwise."""

    def __init__(self, percent: int | None = 50, *, min_calls: int = 10) -> None:
        self.breaker = Breaker(percent, min_calls=min_calls, pause_ms=100, longest_pause_ms=500)
        self.now_ms = 1_000

    def fail(self, key: object, *, began_ms: int | None = None, call: object = None, fault: str = "E: no") -> bool:
        began_ms = self.now_ms if began_ms is None else began_ms
        return self.breaker.failed(call or object(), key, fault, began_ms=began_ms, now_ms=self.now_ms)

    def succeed(self, call: object = None) -> None:
        self.breaker.succeeded(call or object(), self.now_ms)

    def open(self) -> None:
        """An outage: the first calls fail, each with a key of its own."""
        for key in KEYS[:10]:
            assert self.fail(key)
        assert self.breaker.is_open

    def begin_try(self) -> object:
        """The call that begins now."""
        assert self.breaker.may_begin(self.now_ms)
        call = object()
        self.breaker.begin_try(call, self.now_ms)
        return call

    def next_call_ms(self) -> int:
        """The time until the next call may begin."""
        at_ms = self.breaker.next_try_ms
        assert at_ms is not None
        assert self.breaker.may_begin(at_ms)
        assert not self.breaker.may_begin(at_ms - 1)
        return at_ms - self.now_ms


def test_the_breaker_opens_when_the_least_number_of_calls_has_ended_and_most_have_failed() -> None:
    tried = BreakerUnderTest()
    for key in KEYS[:9]:
        assert tried.fail(key)
        assert not tried.breaker.is_open
    assert tried.fail(KEYS[9]), "the failure that opens the breaker is an attempt too"
    assert tried.breaker.is_open


def test_half_of_the_calls_is_not_most_calls() -> None:
    tried = BreakerUnderTest()
    for key in KEYS:
        tried.succeed()
        assert tried.fail(key)
    assert not tried.breaker.is_open
    tried.fail(KEYS[0])
    assert tried.breaker.is_open


def test_only_the_last_calls_count() -> None:
    tried = BreakerUnderTest()
    for _ in range(1_000):
        tried.succeed()
    for key in KEYS[: WINDOW_CALLS // 2]:
        tried.fail(key)
    assert not tried.breaker.is_open
    tried.fail(KEYS[0])
    assert tried.breaker.is_open


def test_failures_before_the_last_calls_do_not_count() -> None:
    tried = BreakerUnderTest()
    for _ in range(WINDOW_CALLS):
        tried.succeed()
    for key in KEYS[: WINDOW_CALLS // 2]:
        tried.fail(key)
    for _ in range(WINDOW_CALLS):
        tried.succeed()
    tried.fail(KEYS[0])
    assert not tried.breaker.is_open


@pytest.mark.parametrize("keys", [1, LEAST_KEYS - 1], ids=["one", "few"])
def test_keys_that_always_fail_do_not_open_the_breaker_if_they_are_few(keys: int) -> None:
    tried = BreakerUnderTest()
    for number in range(1_000):
        assert tried.fail(KEYS[number % keys])
    assert not tried.breaker.is_open
    tried.fail(KEYS[LEAST_KEYS])
    assert tried.breaker.is_open == (keys == LEAST_KEYS - 1)


def test_a_key_that_always_fails_beside_keys_that_succeed_does_not_open_the_breaker() -> None:
    tried = BreakerUnderTest()
    for _ in range(1_000):
        tried.succeed()
        tried.fail(b"poison")
        tried.fail(b"poison")
    assert not tried.breaker.is_open


def test_a_breaker_without_a_percentage_never_opens() -> None:
    tried = BreakerUnderTest(None)
    for _ in range(10):
        assert all(map(tried.fail, KEYS))
    assert not tried.breaker.is_open
    assert tried.breaker.next_try_ms is None


def test_an_open_breaker_lets_a_call_begin_after_each_pause_and_the_pauses_grow() -> None:
    tried = BreakerUnderTest()
    assert tried.breaker.next_try_ms is None
    tried.open()
    pauses = []
    for _ in range(5):
        pauses.append(tried.next_call_ms())
        tried.now_ms += pauses[-1]
        call = tried.begin_try()
        assert not tried.breaker.may_begin(tried.now_ms), "a try at a time"
        tried.now_ms += 7
        assert not tried.fail(KEYS[0], call=call)
    assert pauses == [100, 200, 400, 500, 500]


def test_a_try_that_hangs_does_not_hold_up_the_next_try() -> None:
    tried = BreakerUnderTest()
    tried.open()
    tried.now_ms += 100
    tried.begin_try()
    assert tried.next_call_ms() == 200
    tried.now_ms += 200
    second = tried.begin_try()
    tried.succeed(second)
    assert not tried.breaker.is_open


def test_a_try_that_succeeds_closes_the_breaker_and_the_window_begins_anew() -> None:
    tried = BreakerUnderTest()
    tried.open()
    tried.now_ms += 100
    tried.succeed(tried.begin_try())
    assert not tried.breaker.is_open
    for key in KEYS[:9]:
        tried.fail(key)
    assert not tried.breaker.is_open
    tried.fail(KEYS[9])
    assert tried.breaker.is_open
    assert tried.next_call_ms() == 100, "the first pause"


def test_a_call_that_was_under_way_when_the_breaker_opened_neither_closes_it_nor_is_an_attempt() -> None:
    tried = BreakerUnderTest()
    tried.open()
    tried.succeed()
    assert tried.breaker.is_open
    assert not tried.fail(KEYS[0])
    tried.now_ms += 100
    tried.succeed(tried.begin_try())
    for key in KEYS[:50]:
        assert not tried.fail(key, began_ms=1_000), "of the outage that is over"
    assert not tried.breaker.is_open
    assert tried.fail(KEYS[0])


def test_a_try_without_a_sign_lets_the_next_call_begin_at_once() -> None:
    tried = BreakerUnderTest()
    tried.open()
    tried.breaker.passed_over(object(), tried.now_ms)
    assert tried.next_call_ms() == 100
    tried.now_ms += 100
    call = tried.begin_try()
    tried.now_ms += 50
    tried.breaker.passed_over(call, tried.now_ms)
    assert tried.breaker.is_open
    assert tried.next_call_ms() == 0


def test_the_state_has_the_failures_that_have_opened_the_breaker_and_the_last_fault() -> None:
    tried = BreakerUnderTest()
    assert tried.breaker.state(tried.now_ms) == BreakerState()
    for _ in range(3):
        tried.succeed()
    for key in KEYS[:7]:
        tried.fail(key, fault="ConnectionError: down")
    tried.now_ms += 100
    opened = BreakerState("open", 100, 7, 10, "ConnectionError: down", 1)
    assert tried.breaker.state(tried.now_ms) == opened
    call = tried.begin_try()
    assert tried.breaker.state(tried.now_ms).name == "half-open"
    tried.fail(KEYS[0], call=call, fault="TimeoutError: slow")
    assert tried.breaker.state(tried.now_ms) == BreakerState("open", 100, 7, 10, "TimeoutError: slow", 1)
    tried.now_ms += 200
    tried.succeed(tried.begin_try())
    assert tried.breaker.state(tried.now_ms) == BreakerState("closed", 0, 7, 10, "TimeoutError: slow", 1)


@pytest.mark.parametrize(("fault", "named"), [("ConnectionError: down", "ConnectionError: down"), ("", "a retry")])
def test_a_notice_names_the_last_fault_and_the_number_of_failures(fault: str, named: str) -> None:
    tried = BreakerUnderTest()
    for key in KEYS[:10]:
        tried.fail(key, fault=fault)
    assert tried.breaker.notice(tried.now_ms) == (
        f"10 of the last 10 calls of the handler have failed, the last with {named}; the handler gets no"
        " records but for single tries, the first in 0.1 s, and failures count no attempt"
    )
    tried.now_ms += 2_300
    tried.succeed(tried.begin_try())
    assert tried.breaker.notice(tried.now_ms) == (
        "a call of the handler has succeeded after 2.3 s; the handler gets records again"
    )
