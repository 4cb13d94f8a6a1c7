"""DescribeFetchSessions (10000): the sessions of one broker, page by page."""

import pytest

from tailrace.fetch_session.session import SessionOwner
from tailrace.fetch_session.session_cache import FetchSessionCache
from tailrace.protocol.messages.fetch import (
    DescribedFetchSession,
    DescribeFetchSessionsRequest,
    DescribeFetchSessionsResponse,
)
from tailrace.protocol.registry import api_of
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.fetch import session_descriptions
from tailrace.server.fetch.session_descriptions import MAX_SIGNS, DescribeFetchSessionsHandler
from tailrace.server.response_errors import ResponseErrors
from tailrace.testing.clock import ManualClock
from testkit.nodes.fetch_sessions import counting_cache, open_session
from testkit.nodes.ports import RecordingConnection


def describe(cache: FetchSessionCache, *, first: int = 0, now_ms: int = 0) -> DescribeFetchSessionsResponse:
    clock = ManualClock()
    clock.advance(now_ms)
    handler = DescribeFetchSessionsHandler(cache=cache, clock=clock)
    context = RequestContext(
        connection=RecordingConnection(),
        slot=0,
        api_key=api_of(DescribeFetchSessionsRequest).key,
        api_version=0,
        correlation_id=1,
        client_id="test",
        services=RequestServices(ResponseErrors()),
    )
    return handler.handle(DescribeFetchSessionsRequest(first_session_id=first), context)


def ids(page: DescribeFetchSessionsResponse) -> list[int]:
    return [session.session_id for session in page.sessions]


def test_a_session_is_described_with_its_reader_and_its_savings() -> None:
    cache = counting_cache(slots=5, first_id=77)
    owner = SessionOwner("User:alice", "INTERNAL", 3)
    session = open_session(
        cache, owner, partitions=1_000, client_id="broker-3-fetcher", client_host="10.0.0.3", now_ms=2_000
    )
    session.epoch, session.incremental_fetches, session.saved_bytes = 12, 11, 123_456_789_012
    cache.used(session, 9_500)
    cache.evictions = 4
    answer = describe(cache, now_ms=10_000)
    assert (answer.slots, answer.session_count, answer.partition_count, answer.evictions) == (5, 1, 1_000, 4)
    assert answer.next_session_id == 0
    (described,) = answer.sessions
    assert described == DescribedFetchSession(
        session_id=77,
        session_epoch=12,
        principal="User:alice",
        listener_name="INTERNAL",
        replica_id=3,
        client_id="broker-3-fetcher",
        client_host="10.0.0.3",
        is_privileged=True,
        partition_count=1_000,
        uses_topic_ids=True,
        age_ms=8_000,
        idle_ms=500,
        incremental_fetches=11,
        saved_bytes=123_456_789_012,
    )


def test_sessions_come_by_id_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_descriptions, "MAX_SESSIONS", 2)
    cache = counting_cache(first_id=50, step=-10)
    for _ in range(5):
        open_session(cache)
    pages, first = [], 0
    while True:
        page = describe(cache, first=first)
        pages.append(ids(page))
        assert page.session_count == 5
        if not page.next_session_id:
            break
        first = page.next_session_id
    assert pages == [[10, 20], [30, 40], [50]]


def test_a_last_page_that_is_full_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_descriptions, "MAX_SESSIONS", 2)
    cache = counting_cache(first_id=2**31 - 1, step=-1)
    for _ in range(3):
        open_session(cache)
    page = describe(cache, first=2**31 - 2)
    assert (ids(page), page.next_session_id) == ([2**31 - 2, 2**31 - 1], 0)


def test_a_page_has_at_most_1000_sessions_and_short_texts() -> None:
    cache = counting_cache(slots=2_000)
    for _ in range(1_501):
        open_session(cache, client_id="x" * 32_767)
    page = describe(cache)
    assert (len(page.sessions), page.next_session_id) == (1_000, 1_001)
    assert {len(session.client_id) for session in page.sessions} == {MAX_SIGNS}


def test_a_broker_without_slots_has_no_sessions() -> None:
    answer = describe(counting_cache(slots=0))
    assert (answer.slots, answer.session_count, answer.partition_count, answer.sessions) == (0, 0, 0, ())
