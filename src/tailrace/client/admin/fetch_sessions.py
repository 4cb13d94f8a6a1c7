"""The fetch sessions that brokers keep for consumers and followers (KIP-227)."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.net.connection import Connection
from tailrace.protocol.messages.fetch import (
    DescribedFetchSession,
    DescribeFetchSessionsRequest,
    DescribeFetchSessionsResponse,
)


class FetchSessionListing(NamedTuple):
    """A fetch session in the listing of its broker."""

    session_id: int
    epoch: int
    """The epoch of the next fetch."""
    principal: str
    listener_name: str
    replica_id: int
    """The broker whose follower has the session; -1 for a consumer."""
    client_id: str
    client_host: str
    is_privileged: bool
    """Sessions of consumers do not displace this session."""
    partition_count: int
    uses_topic_ids: bool
    age_ms: int
    idle_ms: int
    """The time since the last fetch of the session."""
    incremental_fetches: int
    saved_bytes: int
    """The bytes by which full fetches would have been larger, estimated."""


class SessionCacheListing(NamedTuple):
    """The session cache of one broker."""

    slots: int
    """The most sessions that the broker keeps."""
    session_count: int
    partition_count: int
    """The partitions of all sessions together."""
    evictions: int
    """Sessions that other sessions have displaced since the broker started."""
    sessions: tuple[FetchSessionListing, ...]
    """The sessions by id. Sessions come and go during the listing, so their number may differ from `session_count`."""


async def describe_fetch_sessions(
    router: Router, brokers: Iterable[int] | None = None
) -> dict[BrokerId, SessionCacheListing | KafkaError]:
    """The fetch sessions of these brokers, or of every unfenced broker.

    A KafkaError stands for a broker without an answer: UNSUPPORTED_VERSION for a broker that does not know the request
    (only Tailrace's brokers do), or the fault of an unreachable broker.
    """

    async def of(node_id: BrokerId) -> SessionCacheListing | KafkaError:
        try:
            connection = await router.node_connection(node_id)
            if not connection.offers(DescribeFetchSessionsRequest):
                detail = f"broker {node_id} does not describe its fetch sessions: it is no Tailrace, or an older one"
                return KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
            return await _all_pages(connection, node_id, router.request_timeout_ms)
        except KafkaError as fault:
            return fault

    await router.retry(lambda: router.refresh(()))
    node_ids = sorted(router.view.brokers) if brokers is None else [BrokerId(node_id) for node_id in brokers]
    answers = await asyncio.gather(*map(of, node_ids))
    return dict(zip(node_ids, answers, strict=True))


async def _all_pages(connection: Connection, node_id: BrokerId, timeout_ms: int) -> SessionCacheListing:
    sessions: list[FetchSessionListing] = []
    first = 0
    while True:
        request = DescribeFetchSessionsRequest(first_session_id=first)
        response = await connection.ask(request, DescribeFetchSessionsResponse, timeout_ms=timeout_ms)
        check(response.error_code, response.error_message or f"the sessions of broker {node_id} cannot be described")
        sessions += map(_session, response.sessions)
        if response.next_session_id <= first:  # 0 after the last page; no other page may begin where this one did
            return SessionCacheListing(
                slots=response.slots,
                session_count=response.session_count,
                partition_count=response.partition_count,
                evictions=response.evictions,
                sessions=tuple(sessions),
            )
        first = response.next_session_id


def _session(described: DescribedFetchSession) -> FetchSessionListing:
    return FetchSessionListing(
        session_id=described.session_id,
        epoch=described.session_epoch,
        principal=described.principal,
        listener_name=described.listener_name,
        replica_id=described.replica_id,
        client_id=described.client_id,
        client_host=described.client_host,
        is_privileged=described.is_privileged,
        partition_count=described.partition_count,
        uses_topic_ids=described.uses_topic_ids,
        age_ms=described.age_ms,
        idle_ms=described.idle_ms,
        incremental_fetches=described.incremental_fetches,
        saved_bytes=described.saved_bytes,
    )
