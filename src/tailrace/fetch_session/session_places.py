"""The places of fetch sessions: how many partitions the sessions may have together, and which sessions make room. Pure.

Slots bound the number of sessions, as in KIP-227; places bound the memory of sessions, a limit that Tailrace adds. A
session takes a place for each partition that exists, however often a request names that partition. Partitions that do
not exist take no place, and have a limit of their own: so no reader can take the places of other readers by inventing
names.

Where places are short, sessions make room in this order, of each kind no more sessions than needed; `session_cache` has
the rules of KIP-227:

1. sessions that have been inactive for more than 120 s (rule 2);
2. for a follower, sessions of consumers (rule 1): followers may have the places of consumers too;
3. sessions of the client that has the most places, if this client has more places than the new session's client would
   have with the new session: so no client keeps every place for ever, and no client is left with less than an equal
   share;
4. sessions that have existed for more than 120 s and have fewer partitions than the new session (rule 3), the largest
   session first.

Missing partitions of one session make room for a session with fewer missing partitions.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, KeysView, Sequence
from heapq import heapify, heapreplace
from typing import Final, NamedTuple

from tailrace.fetch_session.session import FetchSession

MIN_EVICTION_MS: Final = 120_000
"""min.incremental.fetch.session.eviction.ms: a constant of KIP-227, not a setting."""
MAX_CONSUMER_PARTITIONS: Final = 400_000
"""The most places of all sessions of consumers together: enough for 60 consumers with 5,000 partitions per consumer."""
MAX_FOLLOWER_PARTITIONS: Final = 2_000_000
"""The most places of followers beside the consumers' places, which followers may have too: consumers must not displace
followers."""
MAX_MISSING: Final = 200_000
"""The most missing partitions in all sessions of consumers together, and in all sessions of followers together."""


class Newcomer(NamedTuple):
    """A session that is about to begin, or has grown."""

    client: Hashable
    """The client by which places are shared out."""
    existing: int
    """The distinct partitions that exist."""
    missing: int
    """The distinct partitions that do not exist."""
    is_privileged: bool
    is_counted: bool = False
    """Whether the session's partitions are counted already."""


class SessionPlaces:
    """The places that open sessions have."""

    def __init__(self) -> None:
        self._existing = {True: 0, False: 0}  # by `is_privileged`
        self._missing = {True: 0, False: 0}
        self._of_client: dict[tuple[Hashable, bool], int] = {}

    @property
    def partition_count(self) -> int:
        """The partitions of all sessions together, existing and missing."""
        return sum(self._existing.values()) + sum(self._missing.values())

    def count(self, session: FetchSession) -> None:
        """Count the session's present partitions in place of its last count; a closed session has no places."""
        existing, missing = session.recount()
        kind = session.is_privileged
        self._existing[kind] += existing
        self._missing[kind] += missing
        key = session.client, kind
        of_client = self._of_client.get(key, 0) + existing
        if of_client:
            self._of_client[key] = of_client
        else:
            self._of_client.pop(key, None)

    def victims(self, newcomer: Newcomer, sessions: Iterable[FetchSession], now_ms: int) -> list[FetchSession] | None:
        """The sessions that make room for the newcomer's partitions; None if no room can be made.

        `sessions`: every other session; the session that was used last comes last.
        """
        excess = self._excess(newcomer)
        missing = self._missing[newcomer.is_privileged] + (0 if newcomer.is_counted else newcomer.missing)
        missing_excess = missing - MAX_MISSING
        if excess <= 0 and missing_excess <= 0:
            return []
        found = _Victims(excess)
        others = list(sessions)
        if excess > 0 and not self._make_places(found, newcomer, others, now_ms):
            return None
        missing_excess -= sum(victim.counted[1] for victim in found.sessions)
        if missing_excess > 0 and not _make_room_for_missing(found, missing_excess, newcomer, others):
            return None
        return list(found.sessions)

    def _excess(self, newcomer: Newcomer) -> int:
        """The places that must become free before the newcomer fits; 0 or less: the newcomer fits."""
        everything = sum(self._existing.values()) - MAX_FOLLOWER_PARTITIONS - MAX_CONSUMER_PARTITIONS
        if not newcomer.is_privileged:
            everything = max(everything, self._existing[False] - MAX_CONSUMER_PARTITIONS)
        return everything + (0 if newcomer.is_counted else newcomer.existing)

    def _make_places(self, found: "_Victims", newcomer: Newcomer, others: Sequence[FetchSession], now_ms: int) -> bool:
        privileged = newcomer.is_privileged
        evictable = [session for session in others if privileged or not session.is_privileged]
        found.take(peer for peer in evictable if peer.listener is None and now_ms - peer.last_used_ms > MIN_EVICTION_MS)
        consumers = (session for session in evictable if privileged and not session.is_privileged)
        found.take(sorted(consumers, key=_places_of))
        peers = [session for session in evictable if session.is_privileged == privileged]
        self._share(found, newcomer, peers)
        wanted = newcomer.existing
        older = (peer for peer in peers if now_ms - peer.created_ms > MIN_EVICTION_MS and _places_of(peer) < wanted)
        found.take(sorted(older, key=_places_of, reverse=True))
        return found.lacks <= 0

    def _share(self, found: "_Victims", newcomer: Newcomer, peers: Sequence[FetchSession]) -> None:
        """Take sessions of the client that has the most places, while that client has more places than the newcomer's
        client."""
        kind = newcomer.is_privileged
        left = {client: count for (client, privileged), count in self._of_client.items() if privileged == kind}
        for victim in found.sessions:
            if victim.is_privileged == kind:
                left[victim.client] -= _places_of(victim)
        own = left.pop(newcomer.client, 0) + (0 if newcomer.is_counted else newcomer.existing)
        of_client: dict[Hashable, list[FetchSession]] = {}
        for peer in sorted(peers, key=_places_of):
            if _places_of(peer) and peer not in found.sessions:
                of_client.setdefault(peer.client, []).append(peer)
        most = [(-count, order, client) for order, (client, count) in enumerate(left.items())]
        heapify(most)
        while found.lacks > 0 and most:
            count, order, client = most[0]
            if -count <= own:
                return
            sessions = of_client[client]
            victim = sessions.pop(min(bisect_left(sessions, found.lacks, key=_places_of), len(sessions) - 1))
            heapreplace(most, (count + _places_of(victim), order, client))
            found.take((victim,))


class _Victims:
    """The sessions that make room."""

    def __init__(self, lacks: int) -> None:
        self._found: dict[FetchSession, None] = {}
        self.lacks = lacks
        """The places that still have to become free."""

    @property
    def sessions(self) -> KeysView[FetchSession]:
        """The sessions in the order in which they were taken."""
        return self._found.keys()

    def take(self, candidates: Iterable[FetchSession]) -> None:
        """Take sessions in this order while places have to become free."""
        for session in candidates:
            if self.lacks <= 0:
                return
            if _places_of(session) and session not in self._found:
                self._found[session] = None
                self.lacks -= _places_of(session)

    def take_for_missing(self, session: FetchSession) -> None:
        """Take this session for its partitions that do not exist."""
        self._found[session] = None


def _make_room_for_missing(found: _Victims, excess: int, newcomer: Newcomer, others: Sequence[FetchSession]) -> bool:
    peers = (peer for peer in others if peer.is_privileged == newcomer.is_privileged and peer not in found.sessions)
    for peer in sorted(peers, key=lambda session: session.counted[1], reverse=True):
        if excess <= 0 or peer.counted[1] <= newcomer.missing:
            break
        found.take_for_missing(peer)
        excess -= peer.counted[1]
    return excess <= 0


def _places_of(session: FetchSession) -> int:
    return session.counted[0]
