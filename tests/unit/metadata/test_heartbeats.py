"""Sessions of brokers: silence ends them, and a controller that did not run itself received nothing."""

from tailrace.metadata.heartbeats import WATCH_INTERVAL_MS, Heartbeats
from tailrace.model.ids import BrokerId

SESSION_MS = 2_500
ONE, TWO = BrokerId(1), BrokerId(2)


def watch(heartbeats: Heartbeats, start_ms: int, end_ms: int) -> list[BrokerId]:
    """A controller that runs from one time to the other; the brokers that were silent in the end."""
    for now_ms in range(start_ms, end_ms + 1, WATCH_INTERVAL_MS):
        heartbeats.awake(now_ms)
    return heartbeats.silent(end_ms)


def test_a_session_ends_by_itself_and_each_heartbeat_prolongs_it() -> None:
    heartbeats = Heartbeats(SESSION_MS)
    heartbeats.restart([ONE, TWO], 0)
    heartbeats.touch(TWO, 2_000)
    assert watch(heartbeats, 0, SESSION_MS - 1) == []
    assert watch(heartbeats, SESSION_MS, SESSION_MS) == [ONE]
    assert heartbeats.next_deadline_ms == SESSION_MS


def test_a_controller_that_slept_does_not_hold_its_sleep_against_brokers() -> None:
    heartbeats = Heartbeats(SESSION_MS)
    heartbeats.restart([ONE, TWO], 0)
    watch(heartbeats, 0, 1_000)
    heartbeats.touch(TWO, 1_000)
    asleep_ms = 10_000
    assert heartbeats.awake(1_000 + asleep_ms) == asleep_ms - WATCH_INTERVAL_MS
    woken_ms = 1_000 + asleep_ms
    assert heartbeats.silent(woken_ms) == []
    # The rest of their sessions is still left, and never more than a whole session.
    assert watch(heartbeats, woken_ms, woken_ms + 1_250) == [ONE] or heartbeats.silent(woken_ms + 1_500) == [ONE]
    assert heartbeats.silent(woken_ms + SESSION_MS) == [ONE, TWO]


def test_a_controller_that_is_late_by_less_than_an_interval_is_awake() -> None:
    heartbeats = Heartbeats(SESSION_MS)
    heartbeats.restart([ONE], 0)
    assert heartbeats.awake(2 * WATCH_INTERVAL_MS) == 0
    assert heartbeats.next_deadline_ms == SESSION_MS


def test_time_without_any_broker_is_not_sleep() -> None:
    heartbeats = Heartbeats(SESSION_MS)
    heartbeats.restart([], 0)
    heartbeats.touch(ONE, 60_000)
    assert heartbeats.awake(60_000 + WATCH_INTERVAL_MS) == 0


def test_only_a_broker_with_a_heartbeat_has_a_session_that_keeps_its_id() -> None:
    heartbeats = Heartbeats(SESSION_MS)
    heartbeats.restart([ONE, TWO], 0)
    heartbeats.touch(TWO, 100)
    assert not heartbeats.has_session(ONE, 100)
    assert heartbeats.has_session(TWO, 100)
    assert not heartbeats.has_session(TWO, 100 + SESSION_MS)


def test_a_closed_connection_shortens_a_session_and_a_heartbeat_extends_it() -> None:
    heartbeats = Heartbeats(SESSION_MS)
    heartbeats.touch(ONE, 0)
    heartbeats.shorten(ONE, 100, 1_000)
    assert heartbeats.next_deadline_ms == 1_100
    heartbeats.shorten(ONE, 2_000, 1_000)
    assert heartbeats.next_deadline_ms == 1_100  # never longer
    heartbeats.touch(ONE, 1_000)
    assert heartbeats.next_deadline_ms == 1_000 + SESSION_MS
    heartbeats.shorten(TWO, 0, 1_000)  # it is unknown
    assert heartbeats.silent(10_000) == [ONE]


def test_a_node_that_refuses_connections_has_a_short_session_until_its_first_heartbeat() -> None:
    heartbeats = Heartbeats(SESSION_MS)
    heartbeats.restart([ONE, TWO], 0)
    heartbeats.refused(ONE, 100, 1_000)
    assert heartbeats.silent(1_000) == [ONE]
    heartbeats.refused(TWO, 1_500, 1_000)
    assert heartbeats.silent(1_500) == [ONE, TWO]
    heartbeats.touch(ONE, 1_600)
    heartbeats.refused(ONE, 1_700, 1_000)  # its last process, perhaps
    assert heartbeats.silent(1_700) == [TWO]
    heartbeats.refused(BrokerId(3), 0, 1_000)  # it is unknown
    assert heartbeats.silent(1_700) == [TWO]


def test_a_sleep_of_the_controller_is_no_silence_of_a_node_that_refuses_connections() -> None:
    heartbeats = Heartbeats(SESSION_MS)
    heartbeats.restart([ONE], 0)
    heartbeats.awake(2_150)
    heartbeats.refused(ONE, 2_150, 1_000)
    assert heartbeats.silent(2_150) == []
    assert heartbeats.next_deadline_ms == 2_150 - WATCH_INTERVAL_MS + 1_000


def test_a_heartbeat_that_has_come_prolongs_a_session_and_begins_none() -> None:
    heartbeats = Heartbeats(1000)
    heartbeats.touch(BrokerId(1), 0)
    heartbeats.shorten(BrokerId(1), 100, 50)
    heartbeats.prolong(BrokerId(1), 120)
    heartbeats.prolong(BrokerId(2), 120)
    assert (heartbeats.silent(1_119), heartbeats.silent(1_120)) == ([], [1])
    assert heartbeats.silent_for_ms(BrokerId(1), 200) == 80
    assert heartbeats.has_session(BrokerId(1), 200)


def test_a_closed_connection_shortens_the_session_less_if_the_broker_has_been_slow_lately() -> None:
    def ends_at(*arrivals_ms: int) -> int:
        heartbeats = Heartbeats(SESSION_MS)
        heartbeats.touch(ONE, 0)
        for at_ms in arrivals_ms:
            heartbeats.prolong(ONE, at_ms)
            heartbeats.touch(ONE, at_ms + 10)
        heartbeats.shorten(ONE, arrivals_ms[-1], 1_000)
        end_ms = heartbeats.next_deadline_ms
        assert end_ms is not None
        return end_ms - arrivals_ms[-1]

    assert ends_at(500, 1_000, 1_500) == 1_000
    assert ends_at(500, 1_400) == 1_780, "twice the 890 ms"
    assert ends_at(500, 2_400) == SESSION_MS + 10, "not beyond the session"
    assert ends_at(500, 2_400, 2_900, 3_400) == 1_000, "it has been in time since"
