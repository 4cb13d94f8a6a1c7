"""Fetch (1): a long poll for whole batches, by consumers and by followers.

The answer leaves at once if there are `min_bytes`, an error or nothing to wait for; otherwise when enough has become
readable or `max_wait_ms` is over. Records are readable up to the high watermark, for read_committed up to the last
stable offset. An offset between the readable end and the log end is waited for like the end itself; only if it is above
the high watermark still when the time is over, v11 and later get OFFSET_NOT_AVAILABLE (78).

By version: v7 sessions (KIP-227; answered here without one: session id 0, which every client takes); v9 leader epochs;
v6 KAFKA_STORAGE_ERROR, before it NOT_LEADER_OR_FOLLOWER, for which a client looks elsewhere too; v10 zstd; v12 the
point where a reader's log diverges, and the new leader; v13 topic ids; v15 the epoch of a follower's registration;
v16 the address of the leader (KIP-951); v18 the high watermark that a follower knows: one that is behind is answered at
once.

A follower reads to the log end, and its fetch offset says what it has (`server.fetch.replica_fetches`).
"""

from typing import Final

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import NO_LEADER
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse, NodeEndpoint
from tailrace.server.context import RequestContext
from tailrace.server.fetch.asked import AskedFetch, FetchingConsumer
from tailrace.server.fetch.budget import wait_ms
from tailrace.server.fetch.reading import Reading
from tailrace.server.fetch.replica_fetches import ReplicaFetches
from tailrace.server.fetch.waiting import WaitingFetch
from tailrace.server.metadata.reachable_brokers import LeaderEndpoints
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.waiters import LongPolls

FIRST_WITH_ENDPOINTS: Final = 16

_FULL_FETCH_EPOCHS: Final = (0, -1)


class FetchHandler:
    """Answers Fetch."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        polls: LongPolls,
        fetch_max_bytes: int,
        replicas: ReplicaFetches,
        endpoints: LeaderEndpoints,
    ) -> None:
        self._partitions = partitions
        self._polls = polls
        self._fetch_max_bytes = fetch_max_bytes
        self._replicas = replicas
        self._endpoints = endpoints

    def handle(self, request: FetchRequest, context: RequestContext) -> FetchResponse | None:
        if request.session_epoch not in _FULL_FETCH_EPOCHS:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=())
        version, table = context.api_version, self._partitions
        replica = self._replicas.reader(request, version)
        reader = replica or FetchingConsumer(version)
        asked = AskedFetch(request, context, reader=reader, table=table, fetch_max_bytes=self._fetch_max_bytes)
        timeout_ms = wait_ms(request)
        may_wait = timeout_ms > 0 and asked.wanted_bytes > 0
        reading = Reading(asked, is_last=not may_wait)
        if replica is not None:
            replica.noted()
        if may_wait and not reading.ends_wait:
            waiting = WaitingFetch(reading, self._answer)
            if self._polls.park(waiting, context.connection, timeout_ms):
                return None
        return self._answer(reading)

    def _answer(self, reading: Reading) -> FetchResponse:
        """The response with all that was read, which counts as sent."""
        for partition, size_bytes in reading.given:
            partition.sent_bytes += size_bytes
        return FetchResponse(responses=reading.topics, node_endpoints=self._leader_endpoints(reading))

    def _leader_endpoints(self, reading: Reading) -> tuple[NodeEndpoint, ...]:
        """The places where the leaders that refusals name listen."""
        context = reading.asked.context
        if not reading.is_urgent or context.api_version < FIRST_WITH_ENDPOINTS:
            return ()
        named = (answer.current_leader.leader_id for topic in reading.topics for answer in topic.partitions)
        leaders = [leader for leader in named if leader != NO_LEADER]
        return self._endpoints.of(leaders, context.connection.listener_name, NodeEndpoint) if leaders else ()
