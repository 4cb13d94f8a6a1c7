"""Fetch sessions for tests, in a cache of a broker."""

from itertools import count

from tailrace.fetch_session.session import FetchSession, SessionOwner
from tailrace.fetch_session.session_cache import DEFAULT_SLOTS, FetchSessionCache
from tailrace.fetch_session.session_places import Newcomer
from tailrace.protocol.messages.fetch import FetchPartition, FetchTopic

CONSUMER = SessionOwner("User:ANONYMOUS", "PLAINTEXT", -1)


def counting_cache(*, slots: int = DEFAULT_SLOTS, first_id: int = 1, step: int = 1) -> FetchSessionCache:
    """A cache whose ids are not random: they go up or down from `first_id`."""
    ids = count(first_id, step)
    return FetchSessionCache(
        slots=slots, random_bytes=lambda size: next(ids).to_bytes(size, "big"), on_removed=lambda session: None
    )


def open_session(
    cache: FetchSessionCache,
    owner: SessionOwner = CONSUMER,
    *,
    partitions: int = 1,
    uses_topic_ids: bool = True,
    client_id: str = "reader",
    client_host: str = "127.0.0.1",
    now_ms: int = 0,
) -> FetchSession:
    """A session with so many partitions, opened at this monotonic time; a follower's session is privileged."""
    session = cache.open(
        owner,
        Newcomer(client_host, partitions, 0, owner.replica_id >= 0),
        uses_topic_ids=uses_topic_ids,
        client_id=client_id,
        client_host=client_host,
        now_ms=now_ms,
    )
    assert session is not None, "there is no room"
    wanted = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(partitions)]
    session.name([FetchTopic(topic="orders", topic_id=b"o" * 16, partitions=tuple(wanted))])
    cache.resized(session)
    return session
