"""DescribeFetchSessions (10000): the fetch sessions (KIP-227) of the broker that is asked. An API of ours, not Kafka's.

Keys from 10000 on are ours, as tags are (decision 0053); a broker announces them in ApiVersions like all others.
"""

from tailrace.protocol.schema import Int16, Int32, Int64, message, struct


@message(api_key=10000, versions="0", flexible="0+")
class DescribeFetchSessionsRequest:
    """Asks for sessions page by page, in the order of their ids."""

    first_session_id: Int32 = 0
    """The id at which the page begins; 0: the first page."""


@struct
class DescribedFetchSession:
    """One session."""

    session_id: Int32
    session_epoch: Int32
    """The epoch of the next fetch."""
    principal: str
    listener_name: str
    replica_id: Int32
    """The broker whose follower has the session; -1 for a consumer, -2 for a sender that has not proved its id."""
    client_id: str
    client_host: str
    is_privileged: bool
    partition_count: Int32
    uses_topic_ids: bool
    age_ms: Int64
    idle_ms: Int64
    """The time since its last fetch."""
    incremental_fetches: Int64
    saved_bytes: Int64
    """An estimate of the bytes that full fetches would have taken more."""


@message(api_key=10000, versions="0", flexible="0+")
class DescribeFetchSessionsResponse:
    """The session cache of one broker, and one page of its sessions."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    slots: Int32 = 0
    """The most sessions that the broker keeps (max.incremental.fetch.session.cache.slots)."""
    session_count: Int32 = 0
    partition_count: Int64 = 0
    """The partitions of all sessions together."""
    evictions: Int64 = 0
    """Sessions that others have displaced since the broker started."""
    sessions: tuple[DescribedFetchSession, ...] = ()
    next_session_id: Int32 = 0
    """The begin of the next page; 0: this is the last one."""
