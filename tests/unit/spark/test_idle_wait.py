"""Sources of one query wait together, and none of them while another one has records."""

import pytest

from tailrace.spark.idle_wait import MOST_SOURCES, ROUND_S, IdleWait

OVERHEAD_S = 0.003
"""The time of Spark between two questions."""


def idle_round(waits: list[IdleWait], now: float) -> float:
    """Spark asks all sources, and none has records; the end of the round."""
    for wait in waits:
        now += OVERHEAD_S
        now += (length := wait.begin(now))
        if length:
            wait.ended(now)
    return now


@pytest.mark.parametrize("count", [1, 2, 4, MOST_SOURCES])
def test_a_round_of_quiet_sources_takes_as_long_as_that_of_one(count: int) -> None:
    waits = [IdleWait() for _ in range(count)]
    now = 0.0
    for _ in range(20):
        began, now = now, idle_round(waits, now)
    assert ROUND_S / 2 <= now - began <= ROUND_S + count * OVERHEAD_S + 1e-9


def test_no_source_waits_while_the_query_plans_batches() -> None:
    quiet = IdleWait()
    now = idle_round([quiet], 0.0)
    for _ in range(5):
        quiet.batch_was_planned()
        assert quiet.begin(now) == 0
        now += 3.0
    assert quiet.begin(now) > ROUND_S / 2, "the time of a batch is no wait of another source"


def test_a_source_that_is_left_alone_waits_longer_again() -> None:
    waits = [IdleWait() for _ in range(4)]
    now = 0.0
    for _ in range(5):
        now = idle_round(waits, now)
    alone = waits[0]
    now = idle_round([alone], now)
    for _ in range(20):
        began, now = now, idle_round([alone], now)
    assert now - began > 0.9 * ROUND_S


def test_a_question_in_which_records_come_says_nothing_about_the_others() -> None:
    wait = IdleWait()
    assert wait.begin(0.0) == ROUND_S
    assert wait.begin(100.0) == ROUND_S, "the batch with the records took the time between"


def test_a_wait_has_a_shortest_length() -> None:
    """A trigger of ten seconds looks like many sources."""
    wait, now = IdleWait(), 0.0
    for _ in range(50):
        now += wait.begin(now)
        wait.ended(now)
        now += 10.0
    assert wait.begin(now) == ROUND_S / MOST_SOURCES
