"""Fetch (1): a long poll for whole batches, by consumers and by followers.

The answer is sent at once if there are `min_bytes`, an error or nothing to wait for; otherwise when enough bytes have
become readable, or after `max_wait_ms`. Records are readable up to the high watermark, for read_committed up to the
last stable offset. A fetch between the readable end and the log end waits like one at the readable end; if its offset
is still above the high watermark after `max_wait_ms`, v11 and later get OFFSET_NOT_AVAILABLE (78).

By version: v6 KAFKA_STORAGE_ERROR, before it NOT_LEADER_OR_FOLLOWER, after which a client looks for the leader too; v7
sessions (KIP-227; answered here without one: session id 0, which every client accepts); v9 leader epochs; v10 zstd; v12
the point where a reader's log diverges, and the new leader; v13 topic ids; v15 the epoch of a follower's registration;
v16 the address of the leader (KIP-951); v18 the high watermark of a follower: one that is behind is answered at once.

A follower reads to the log end, and its fetch offset is an acknowledgement (`server.fetch.follower_readers`).
"""

from collections.abc import Callable, Sequence
from typing import Final

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import NO_LEADER
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse, NodeEndpoint
from tailrace.replication.outcomes import READ_COMMITTED
from tailrace.replication.partition import Partition
from tailrace.server.context import RequestContext
from tailrace.server.fetch.budget import wait_ms
from tailrace.server.fetch.follower_readers import FollowerReaders
from tailrace.server.fetch.params import FetchingConsumer, FetchParams
from tailrace.server.fetch.reading import Reading
from tailrace.server.metadata.cluster import LeaderEndpoints
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.waiters import LongPolls


class WaitingFetch:
    """A fetch that waits, as a `server.waiters.LongPoll`. It keeps counts of readable bytes, and reads again later."""

    __slots__ = (
        "_answer",
        "_available_bytes",
        "_params",
        "_readable_bytes",
        "_stable_ends",
        "is_of_replica",
        "partitions",
    )

    def __init__(self, first: Reading, answer: Callable[[Reading], FetchResponse]) -> None:
        """`first` has too few bytes. `answer` makes the response of the reading that ends the wait."""
        self._params = first.params
        self._answer = answer
        self.is_of_replica = first.params.reader.is_replica
        self._record(first)

    def _record(self, reading: Reading) -> None:
        self.partitions = [partition for partition, _ in reading.given]
        self._available_bytes = reading.available_bytes
        """The bytes of the last reading within the limits, and those that have become readable since."""
        counted = () if self.is_of_replica else self.partitions
        self._readable_bytes = {partition: partition.readable_bytes for partition in counted}
        self._stable_ends: dict[Partition, int] = {}
        """The last stable offsets that were below the high watermark at the last reading."""
        if self._params.isolation == READ_COMMITTED:
            for partition in counted:
                if partition.last_stable_offset < partition.high_watermark:
                    self._stable_ends[partition] = partition.last_stable_offset

    def retry(self, moved: Sequence[Partition], *, is_last: bool) -> bool:
        """Answer if enough has become readable since the last reading, the answer is urgent, or the time is over."""
        if not (is_last or self._may_have_enough(moved)):
            return False
        reading = Reading(self._params, is_last=is_last)
        if reading.ends_wait or is_last:
            self._params.context.respond(self._answer(reading))
            return True
        self._record(reading)
        return False

    def _may_have_enough(self, moved: Sequence[Partition]) -> bool:
        """Whether another reading can have enough bytes: counts the readable bytes without access to the disk."""
        for partition in moved:
            if self.is_of_replica or not partition.is_leader:
                return True
            if partition in self._stable_ends:
                if partition.last_stable_offset != self._stable_ends[partition]:
                    return True  # the bytes between the two are not counted
                continue
            readable_bytes = partition.readable_bytes
            gained = readable_bytes - self._readable_bytes.get(partition, readable_bytes)
            if not gained:
                return True  # within one write, or before the start of this node: not counted
            self._available_bytes += gained
            self._readable_bytes[partition] = readable_bytes
        return self._available_bytes >= self._params.wanted_bytes


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
        followers: FollowerReaders,
        endpoints: LeaderEndpoints,
    ) -> None:
        self._partitions = partitions
        self._polls = polls
        self._fetch_max_bytes = fetch_max_bytes
        self._followers = followers
        self._endpoints = endpoints

    def handle(self, request: FetchRequest, context: RequestContext) -> FetchResponse | None:
        if request.session_epoch not in _FULL_FETCH_EPOCHS:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=())
        version, table = context.api_version, self._partitions
        replica = self._followers.reader(request, version)
        reader = replica or FetchingConsumer(version)
        params = FetchParams(request, context, reader=reader, table=table, fetch_max_bytes=self._fetch_max_bytes)
        timeout_ms = wait_ms(request)
        may_wait = timeout_ms > 0 and params.wanted_bytes > 0
        reading = Reading(params, is_last=not may_wait)
        if replica is not None:
            replica.mark_recorded()
        if may_wait and not reading.ends_wait:
            waiting = WaitingFetch(reading, self._answer)
            if self._polls.park(waiting, context.connection, timeout_ms):
                return None
        return self._answer(reading)

    def _answer(self, reading: Reading) -> FetchResponse:
        """The response of a reading, whose bytes count as sent."""
        for partition, size_bytes in reading.given:
            partition.sent_bytes += size_bytes
        return FetchResponse(responses=reading.topics, node_endpoints=self._leader_endpoints(reading))

    def _leader_endpoints(self, reading: Reading) -> tuple[NodeEndpoint, ...]:
        """The addresses of the leaders that are named in errors."""
        context = reading.params.context
        if not reading.is_urgent or context.api_version < FIRST_WITH_ENDPOINTS:
            return ()
        named = (answer.current_leader.leader_id for topic in reading.topics for answer in topic.partitions)
        leaders = [leader for leader in named if leader != NO_LEADER]
        return self._endpoints.of(leaders, context.connection.listener_name, NodeEndpoint) if leaders else ()
