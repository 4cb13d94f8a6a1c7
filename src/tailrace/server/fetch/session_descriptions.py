"""DescribeFetchSessions (10000): the session cache of this broker and its sessions, page by page.

The answer is bounded: a page has at most MAX_SESSIONS sessions, and a text at most MAX_SIGNS characters, since a client
id may have 32,767 bytes.
"""

from heapq import nsmallest
from operator import attrgetter
from typing import Final

from tailrace.fetch_session.session import FetchSession
from tailrace.fetch_session.session_cache import FetchSessionCache
from tailrace.protocol.messages.fetch import (
    DescribedFetchSession,
    DescribeFetchSessionsRequest,
    DescribeFetchSessionsResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Clock

MAX_SESSIONS: Final = 1_000
MAX_SIGNS: Final = 255


class DescribeFetchSessionsHandler:
    """Describes the sessions of one cache."""

    def __init__(self, *, cache: FetchSessionCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock

    def handle(self, request: DescribeFetchSessionsRequest, context: RequestContext) -> DescribeFetchSessionsResponse:
        cache, first = self._cache, request.first_session_id
        later = (session for session in cache.sessions() if session.session_id >= first)
        page = nsmallest(MAX_SESSIONS + 1, later, key=attrgetter("session_id"))
        next_session_id = page.pop().session_id if len(page) > MAX_SESSIONS else 0
        now_ms = self._clock.monotonic_ms()
        return DescribeFetchSessionsResponse(
            slots=cache.slots,
            session_count=len(cache),
            partition_count=cache.partition_count,
            evictions=cache.evictions,
            sessions=tuple(_described(session, now_ms) for session in page),
            next_session_id=next_session_id,
        )


def _described(session: FetchSession, now_ms: int) -> DescribedFetchSession:
    return DescribedFetchSession(
        session_id=session.session_id,
        session_epoch=session.epoch,
        principal=session.owner.principal[:MAX_SIGNS],
        listener_name=session.owner.listener_name,
        replica_id=session.owner.replica_id,
        client_id=session.client_id[:MAX_SIGNS],
        client_host=session.client_host[:MAX_SIGNS],
        is_privileged=session.is_privileged,
        partition_count=session.partition_count,
        uses_topic_ids=session.uses_topic_ids,
        age_ms=max(now_ms - session.created_ms, 0),
        idle_ms=max(now_ms - session.last_used_ms, 0),
        incremental_fetches=session.incremental_fetches,
        saved_bytes=session.saved_bytes,
    )
