"""A look at the cluster is late by a small part of the time in which nothing came."""

from tailrace.spark.reading.look_pace import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, LookPace


def test_the_first_look_and_the_look_behind_a_batch_are_at_once() -> None:
    pace = LookPace(100.0)
    assert pace.next_look == 100.0
    pace.looked(160.0, has_news=False)
    pace.looked(160.3, has_news=True)
    assert pace.next_look == 160.3


def test_pauses_grow_with_the_quiet_time_and_end_with_it() -> None:
    now, pauses = 0.0, []
    pace = LookPace(now)
    while now < 10.0:
        pace.looked(now, has_news=False)
        pauses.append((now, pace.next_look - now))
        now = pace.next_look
    assert all(SHORTEST_PAUSE_S <= round(pause, 9) <= LONGEST_PAUSE_S for _, pause in pauses)
    assert all(pause <= max(SHORTEST_PAUSE_S, quiet / 8) + 1e-9 for quiet, pause in pauses)
    assert round(pauses[0][1], 9) == SHORTEST_PAUSE_S
    assert round(pauses[-1][1], 9) == LONGEST_PAUSE_S
    assert len(pauses) < 60, "an idle query looks four times a second, not twenty"
    pace.looked(now, has_news=True)
    pace.looked(now + 0.01, has_news=False)
    assert round(pace.next_look - now - 0.01, 9) == SHORTEST_PAUSE_S
