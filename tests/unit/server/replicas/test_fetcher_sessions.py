"""Fetch sessions of the replica fetchers with their leaders."""

import pytest

from tailrace.model.errors import ErrorCode
from unit.server.replicas.fetchers_bench import ReplicaFetchersBench, batch, data, state


def with_a_session(partitions: int) -> ReplicaFetchersBench:
    """Partitions that broker 2 leads; it has opened a session of this id."""
    bench = ReplicaFetchersBench(*[state(2, 0)] * partitions)
    bench.take_answer(session_id=77)
    return bench


def test_a_replica_fetcher_sends_a_leader_with_sessions_the_changes_alone() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0), state(2, 0))
    assert bench.sessions == [(2, 0, 0, [0, 1, 2], [])]
    bench.take_answer(session_id=77)
    assert bench.sessions == [(2, 77, 1, [], [])], "the high watermarks and log starts of an answer are no changes"
    bench.take_answer(data(1, batch(0, b"a")), session_id=77)
    assert bench.sessions == [(2, 77, 2, [1], [])]
    bench.take_answer(data(1, high_watermark=1), session_id=77)
    assert bench.sessions == [(2, 77, 3, [], [])]
    assert bench.partition(1).high_watermark == 1


def test_a_replica_that_its_leader_refuses_leaves_the_session_and_enters_it_again() -> None:
    bench = with_a_session(2)
    bench.answer(data(1, error_code=ErrorCode.KAFKA_STORAGE_ERROR), session_id=77)
    assert bench.sessions == [(2, 77, 2, [], [1])]
    bench.answer(session_id=77)
    bench.clock.advance(50)
    bench.answer(session_id=77)
    assert bench.sessions == [(2, 77, 4, [1], [])]


def test_records_that_a_replica_could_not_store_are_sent_again() -> None:
    """The leader counts its answer as sent: only a partition that enters the session gets the same high watermark."""
    bench = with_a_session(2)
    bench.take_answer(data(0, batch(5, b"of another offset"), high_watermark=1), session_id=77)
    assert bench.sessions == [(2, 77, 2, [], [0])]
    bench.clock.advance(50)
    bench.answer(session_id=77)
    assert bench.sessions == [(2, 77, 3, [0], [])]


def test_a_replica_fetcher_opens_a_lost_session_again_at_once() -> None:
    bench = with_a_session(2)
    bench.answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert bench.sessions == [(2, 0, 0, [0, 1], [])]
    bench.answer(session_id=78)
    bench.answer(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert bench.sessions == [(2, 78, 0, [0, 1], [])]
    bench.answer(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert bench.sessions == [], "a full fetch that is refused waits"
    bench.clock.advance(50)
    assert bench.sessions == [(2, 78, 0, [0, 1], [])]


def test_a_replica_fetch_without_an_answer_begins_the_session_anew() -> None:
    bench = with_a_session(2)
    _, _, on_reply = bench.peer.waiting.pop()
    on_reply(None)
    bench.clock.advance(50)
    assert bench.sessions == [(2, 77, 0, [0, 1], [])]


def test_the_close_of_a_replica_fetcher_ends_the_session_behind_the_fetch_under_way() -> None:
    bench = with_a_session(1)
    bench.hosts.close()
    assert bench.sessions == [(2, 77, 1, [], []), (2, 77, -1, [], [])]
    assert bench.peer.waiting[-1][1].max_wait_ms == 0
    bench.answer(data(0, batch(0, b"late")), session_id=77)
    bench.answer()
    assert bench.sessions == []
    assert bench.partition().log.log_end_offset == 0


def test_a_session_that_opens_after_the_close_of_its_replica_fetcher_is_ended_too() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.hosts.close()
    assert bench.sessions == [(2, 0, 0, [0], [])]
    bench.answer(session_id=77)
    assert bench.sessions == [(2, 77, -1, [], [])]


def test_a_replica_fetchers_session_ends_with_the_last_partition_of_its_leader() -> None:
    bench = with_a_session(2)
    bench.take(0, state(3, 1))
    bench.take(1, state(3, 1))
    assert [session for session in bench.sessions if session[0] == 2] == [(2, 77, 1, [], []), (2, 77, -1, [], [])]


def test_replica_fetches_are_logged_with_their_session_and_epoch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "tailrace.server")
    with_a_session(1)
    lines = [record.getMessage() for record in caplog.records if "replica-fetch" in record.getMessage()]
    assert lines == [
        "event=replica-fetch leader=2 session=0 epoch=0 partitions=1 forgotten=0",
        "event=replica-fetch-answered leader=2 session=77 error=0 partitions=1",
        "event=replica-fetch leader=2 session=77 epoch=1 partitions=0 forgotten=0",
    ]
