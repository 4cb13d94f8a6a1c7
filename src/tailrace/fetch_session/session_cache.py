"""The fetch sessions of one broker: their slots, and which session makes room for a new session (KIP-227). Pure.

A new session takes a free slot, or evicts a session for which a rule of KIP-227 holds:

1. The new session belongs to a follower, and the old session to a consumer.
2. The old session has been inactive for more than 120 s.
3. The old session has existed for more than 120 s, and the new session has more partitions. This rule holds among
   sessions of followers and among sessions of consumers, not between the two: followers have priority.

Rule 2 is tried first, on the session that was inactive for longest; then rules 1 and 3, on the session with the fewest
partitions. Tailrace also limits the number of partitions in all sessions together: `session_places` says which sessions
make room for a session with too many partitions.
"""

from collections.abc import Callable, Iterator
from typing import Final

from tailrace.fetch_session.session import FetchSession, SessionOwner
from tailrace.fetch_session.session_places import MIN_EVICTION_MS, Newcomer, SessionPlaces
from tailrace.model.errors import ErrorCode, KafkaError

DEFAULT_SLOTS: Final = 1_000
"""max.incremental.fetch.session.cache.slots"""
MAX_PARTITIONS: Final = 200_000
"""The most partitions of one session: a limit of ours. A larger fetch gets no session."""


class FetchSessionCache:
    """The sessions of a broker."""

    def __init__(
        self,
        *,
        slots: int = DEFAULT_SLOTS,
        random_bytes: Callable[[int], bytes],
        on_removed: Callable[[FetchSession], None],
    ) -> None:
        """`slots` is the largest number of sessions; 0: no sessions. `on_removed` is called with each evicted or closed
        session, after its removal from the cache."""
        self.slots = slots
        self._random_bytes = random_bytes
        self._on_removed = on_removed
        self._sessions: dict[int, FetchSession] = {}  # the session that was used last comes last
        self._places = SessionPlaces()
        self.evictions = 0
        """Sessions that other sessions have displaced; a session that its reader closes does not count."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The partitions of all sessions together."""
        return self._places.partition_count

    def sessions(self) -> Iterator[FetchSession]:
        """Iterate over the sessions; the session that was used last comes last."""
        return iter(self._sessions.values())

    # Requests

    def find(self, session_id: int, owner: tuple[str, str, int]) -> FetchSession | None:
        """The session with this id, if it belongs to this reader: `owner` has the fields of a `SessionOwner`."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.owner == owner else None

    def check(self, session_id: int, epoch: int, owner: tuple[str, str, int], *, uses_topic_ids: bool) -> FetchSession:
        """The session of an incremental fetch, in which nothing has changed yet. `owner` as in `find`.

        Raises KafkaError FETCH_SESSION_ID_NOT_FOUND (70), INVALID_FETCH_SESSION_EPOCH (71) and
        FETCH_SESSION_TOPIC_ID_ERROR (106), in Kafka's order.
        """
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session_id} is not known here")
        if session.epoch != epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id} expects epoch {session.epoch}, not {epoch}",
            )
        if session.uses_topic_ids != uses_topic_ids:
            has, sent = ("ids", "names") if session.uses_topic_ids else ("names", "ids")
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {session_id} has topics by their {has}, the request by their {sent}",
            )
        return session

    def used(self, session: FetchSession, now_ms: int) -> None:
        """Note that a request of the session was taken or answered now."""
        session.used(now_ms)
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def resized(self, session: FetchSession) -> bool:
        """Count the partitions of a changed session; returns whether the session may have so many partitions.

        Sessions of clients with more places make room for the grown session, as for a new session.
        """
        if not session.is_open:
            return False  # a closed session would be counted for ever
        self._places.count(session)
        if session.partition_count > MAX_PARTITIONS:
            return False
        grown = Newcomer(
            session.client, session.existing_count, len(session.missing), session.is_privileged, is_counted=True
        )
        others = (other for other in self._sessions.values() if other is not session)
        return self._make_room(self._places.victims(grown, others, session.last_used_ms))

    # Sessions come and go

    def has_room(self, newcomer: Newcomer, now_ms: int) -> bool:
        """Whether a session of so many partitions would get a slot."""
        return self._victims(newcomer, now_ms) is not None

    def open(
        self,
        owner: SessionOwner,
        newcomer: Newcomer,
        *,
        uses_topic_ids: bool,
        client_id: str,
        client_host: str,
        now_ms: int,
    ) -> FetchSession | None:
        """A new session, which gets as many partitions as `existing` and `missing` say; None without room.

        The host adds the partitions, and then calls `resized`.
        """
        if not self._make_room(self._victims(newcomer, now_ms)):
            return None
        session = FetchSession(
            self._new_id(),
            owner,
            client=newcomer.client,
            is_privileged=newcomer.is_privileged,
            uses_topic_ids=uses_topic_ids,
            client_id=client_id,
            client_host=client_host,
            now_ms=now_ms,
        )
        self._sessions[session.session_id] = session
        return session

    def remove(self, session: FetchSession) -> None:
        """Remove a session that may be gone already."""
        if session.is_open:
            session.close()
            del self._sessions[session.session_id]
            self._places.count(session)
            self._on_removed(session)

    def _new_id(self) -> int:
        """A random positive int32 that no session has: no other reader can guess the id, and the id reveals nothing."""
        while True:
            session_id = int.from_bytes(self._random_bytes(4), "big") & 0x7FFFFFFF
            if session_id and session_id not in self._sessions:
                return session_id

    def _make_room(self, victims: list[FetchSession] | None) -> bool:
        if victims is None:
            return False
        for victim in victims:
            self.evictions += 1
            self.remove(victim)
        return True

    def _victims(self, newcomer: Newcomer, now_ms: int) -> list[FetchSession] | None:
        """The sessions that make room for the newcomer; None if no room can be made."""
        partition_count = newcomer.existing + newcomer.missing
        if not 0 < partition_count <= MAX_PARTITIONS or self.slots <= 0:
            return None
        victims = self._places.victims(newcomer, self._sessions.values(), now_ms)
        if victims is None or len(self._sessions) - len(victims) < self.slots:
            return victims
        victim = self._victim(newcomer.existing, newcomer.is_privileged, now_ms)
        return None if victim is None else [victim]

    def _victim(self, partition_count: int, is_privileged: bool, now_ms: int) -> FetchSession | None:
        oldest = next((session for session in self._sessions.values() if session.listener is None), None)
        if oldest is not None and now_ms - oldest.last_used_ms > MIN_EVICTION_MS:
            return oldest
        candidates = (
            session
            for session in self._sessions.values()
            if (is_privileged and not session.is_privileged)
            or (
                session.is_privileged == is_privileged
                and now_ms - session.created_ms > MIN_EVICTION_MS
                and partition_count > session.existing_count
            )
        )
        return min(candidates, key=lambda session: (session.is_privileged, session.existing_count), default=None)
