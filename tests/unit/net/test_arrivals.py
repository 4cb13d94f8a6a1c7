"""Rates of new connections: of all clients together, and of one address."""

from tailrace.net.listener import TOO_LONG_MS, Arrivals


def test_two_seconds_worth_may_come_at_once_and_the_next_wait_their_turn() -> None:
    arrivals = Arrivals(per_second=1_000, per_ip_per_second=20)
    waits = [arrivals.wait_ms("10.0.0.1", 0) for _ in range(44)]
    assert waits == [0] * 40 + [50, 100, 150, 200]


def test_a_bucket_fills_again_with_time() -> None:
    arrivals = Arrivals(per_second=1_000, per_ip_per_second=20)
    for _ in range(40):
        arrivals.wait_ms("10.0.0.1", 0)
    assert [arrivals.wait_ms("10.0.0.1", 500) for _ in range(11)] == [0] * 10 + [50]


def test_one_address_does_not_slow_another_down() -> None:
    arrivals = Arrivals(per_second=200, per_ip_per_second=20)
    for _ in range(10_000):
        arrivals.wait_ms("10.0.0.1", 0)
    assert arrivals.wait_ms("10.0.0.2", 0) == 0, "a flood takes no more of the node's rate than its own share"


def test_a_flood_is_refused_and_its_sender_is_served_again_later() -> None:
    arrivals = Arrivals(per_second=200, per_ip_per_second=20)
    waits = [arrivals.wait_ms("10.0.0.1", 0) for _ in range(1_000)]
    assert max(waits) == TOO_LONG_MS
    assert sum(wait < TOO_LONG_MS for wait in waits) == 40 + 199
    assert arrivals.wait_ms("10.0.0.1", 12_000) == 0


def test_all_addresses_together_have_a_rate() -> None:
    arrivals = Arrivals(per_second=200, per_ip_per_second=20)
    waits = [arrivals.wait_ms(f"10.0.{n // 200}.{n % 200}", 0) for n in range(402)]
    assert waits == [0] * 400 + [5, 10]


def test_addresses_that_were_quiet_are_forgotten() -> None:
    arrivals = Arrivals(per_second=200, per_ip_per_second=20)
    for number in range(100):
        arrivals.wait_ms(f"10.0.0.{number}", 0)
    arrivals.wait_ms("10.0.1.1", 60)
    arrivals.forget_idle(80)
    assert len(arrivals) == 1
