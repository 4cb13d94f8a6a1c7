"""DescribeFetchSessions (10000): the session cache of this broker and its sessions, page by page.

The answer is bounded: MAX_SESSIONS of a page, and of each text MAX_SIGNS, since a client id may have 32,767 bytes.
"""

from collections.abc import Iterable
from heapq import nsmallest
from operator import attrgetter
from typing import Final, Protocol

from tailrace.protocol.messages.fetch_sessions import (
    DescribedFetchSession,
    DescribeFetchSessionsRequest,
    DescribeFetchSessionsResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Clock

MAX_SESSIONS: Final = 1_000
MAX_SIGNS: Final = 255


class SessionOwner(Protocol):
    """The reader that a session belongs to."""

    @property
    def principal(self) -> str: ...

    @property
    def listener_name(self) -> str: ...

    @property
    def replica_id(self) -> int: ...


class Session(Protocol):
    """One session, as it is described. Times are monotonic."""

    @property
    def session_id(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def owner(self) -> SessionOwner: ...

    @property
    def client_id(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    @property
    def is_privileged(self) -> bool: ...

    @property
    def partition_count(self) -> int: ...

    @property
    def uses_topic_ids(self) -> bool: ...

    @property
    def created_ms(self) -> int: ...

    @property
    def last_used_ms(self) -> int: ...

    @property
    def incremental_fetches(self) -> int: ...

    @property
    def saved_bytes(self) -> int: ...


class SessionCache(Protocol):
    """The sessions of one broker."""

    @property
    def slots(self) -> int: ...

    @property
    def partition_count(self) -> int: ...

    @property
    def evictions(self) -> int: ...

    def __len__(self) -> int: ...

    def sessions(self) -> Iterable[Session]: ...


class NoSessions:
    """The cache of a broker that gives no sessions."""

    slots = 0
    partition_count = 0
    evictions = 0

    def __len__(self) -> int:
        return 0

    def sessions(self) -> Iterable[Session]:
        return ()


class DescribeFetchSessionsHandler:
    """Describes the sessions of one cache."""

    def __init__(self, *, cache: SessionCache, clock: Clock) -> None:
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


def _described(session: Session, now_ms: int) -> DescribedFetchSession:
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
