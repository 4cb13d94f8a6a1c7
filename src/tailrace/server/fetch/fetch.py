"""Fetch (1): a long poll for whole batches, by consumers and by followers.

The answer leaves at once if there are `min_bytes`, an error or nothing to wait for; otherwise when enough has become
readable or `max_wait_ms` is over. What is readable ends at the high watermark, for read_committed at the last stable
offset. An offset between the readable end and the log end is waited for like the end itself; only if it is above the
high watermark still when the time is over, v11 and later are told OFFSET_NOT_AVAILABLE (78).

By version: v7 sessions (KIP-227; answered here without one: session id 0, which every client takes); v9 leader epochs;
v6 KAFKA_STORAGE_ERROR, before it NOT_LEADER_OR_FOLLOWER, for which a client looks elsewhere too; v10 zstd; v12 the
point where a reader's log diverges, and who leads instead; v13 topic ids; v15 the epoch of a follower's registration;
v16 where the leader listens (KIP-951); v18 the high watermark that a follower knows: one that is behind is answered at
once.

A follower reads to the log end, and its fetch offset says what it has (`server.fetch.replica_fetches`).
"""

from collections.abc import Sequence
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER
from tailrace.protocol.messages.fetch import (
    AbortedTransaction,
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tailrace.replication.outcomes import READ_COMMITTED, NotLeader, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.server.context import RequestContext
from tailrace.server.fetch.budget import DEFAULT_FETCH_MAX_BYTES, FetchBudget, wait_ms, wanted_bytes
from tailrace.server.fetch.replica_fetches import FIRST_WITH_REPLICA_STATE, FetchingReplica, ReplicaFetches
from tailrace.server.metadata.reachable_brokers import LeaderEndpoints
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.quorum.raft_rpcs import RaftRpcHandler
from tailrace.server.quorum.raft_wire import is_of_metadata
from tailrace.server.waiters import LongPolls
from tailrace.storage import ReadLimits

FIRST_WITH_STORAGE_ERROR: Final = 6
FIRST_WITH_SESSIONS: Final = 7
FIRST_WITH_ZSTD: Final = 10
FIRST_WITH_OFFSET_NOT_AVAILABLE: Final = 11
FIRST_WITH_TOPIC_IDS: Final = 13
FIRST_WITH_ENDPOINTS: Final = 16

_FULL_FETCH_EPOCHS = (0, -1)
_UNKNOWN = -1


class FetchHandler:
    """Answers Fetch."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        polls: LongPolls,
        fetch_max_bytes: int = DEFAULT_FETCH_MAX_BYTES,
        metadata_log: RaftRpcHandler | None = None,
        replicas: ReplicaFetches | None = None,
        endpoints: LeaderEndpoints | None = None,
    ) -> None:
        """`metadata_log` answers for that log, whose readers are the replicas of a quorum. Without `replicas` no broker
        is known to be one, without `endpoints` nobody is told where new leaders listen.
        """
        self._partitions = partitions
        self._polls = polls
        self._fetch_max_bytes = fetch_max_bytes
        self._metadata_log = metadata_log
        self._replicas = replicas
        self._endpoints = endpoints

    def handle(self, request: FetchRequest, context: RequestContext) -> FetchResponse | None:
        if self._metadata_log is not None and is_of_metadata(request):
            self._metadata_log.handle(request, context)
            return None
        if request.session_epoch not in _FULL_FETCH_EPOCHS:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=())
        replica = None if self._replicas is None else self._replicas.reader(request, context.api_version)
        fetch = _Fetch(request, context, self._partitions, self._fetch_max_bytes, replica, self._endpoints)
        timeout_ms = wait_ms(request)
        fetch.read(is_last=timeout_ms == 0 or fetch.wants_nothing)
        if replica is not None:
            replica.noted()
        response = fetch.response
        if not fetch.is_done and timeout_ms > 0:
            fetch.response = None  # it is read again
            if self._polls.park(fetch, context.connection, timeout_ms):
                return None
        fetch.count()
        return response


class _Fetch:
    """One request until it is answered. Nothing that was read is kept while it waits: it is read again."""

    __slots__ = (
        "_available_bytes",
        "_context",
        "_endpoints",
        "_fetch_max_bytes",
        "_got",
        "_has_error",
        "_has_news",
        "_readable_bytes",
        "_replica",
        "_request",
        "_stable_ends",
        "_table",
        "_wanted_bytes",
        "is_done",
        "is_of_replica",
        "partitions",
        "response",
    )

    def __init__(
        self,
        request: FetchRequest,
        context: RequestContext,
        table: PartitionTable,
        fetch_max_bytes: int,
        replica: FetchingReplica | None,
        endpoints: LeaderEndpoints | None,
    ) -> None:
        self._request = request
        self._context = context
        self._table = table
        self._replica = replica
        self._endpoints = endpoints
        self.is_of_replica = replica is not None
        self._fetch_max_bytes = fetch_max_bytes
        self._wanted_bytes = wanted_bytes(request, fetch_max_bytes=fetch_max_bytes)
        self._has_error = False
        self._has_news = False
        """Whether a follower has something to learn that is no record."""
        self._got: list[tuple[Partition, int]] = []  # how many bytes of which partition
        self._available_bytes = 0
        """What the limits allow of what was there at the last look, and what has become readable since."""
        self._readable_bytes: dict[Partition, int] = {}
        """`readable_bytes` of each partition when it was last looked at."""
        self._stable_ends: dict[Partition, int] = {}
        """Where a reader of committed data was held back by open transactions at the last look."""
        self.partitions: list[Partition] = []
        self.is_done = False
        self.response: FetchResponse | None = None

    @property
    def wants_nothing(self) -> bool:
        """Whether there are no bytes to wait for (`min_bytes` 0): what the first look finds is the answer."""
        return self._wanted_bytes <= 0

    def retry(self, moved: Sequence[Partition], *, is_last: bool) -> bool:
        """Answer if enough has become readable since the last look, or there is something to say, or it is the end."""
        if not (is_last or self._may_have_enough(moved)):
            return False
        self.read(is_last=is_last)
        if self.is_done or is_last:
            self.count()
            self._context.respond(self.response)
            return True
        self.response = None
        return False

    def _may_have_enough(self, moved: Sequence[Partition]) -> bool:
        """Whether reading again can give `min_bytes`. Counts what became readable, without looking at the disk."""
        for partition in moved:
            if not partition.is_leader or self.is_of_replica:
                return True
            if partition in self._stable_ends:
                if partition.last_stable_offset != self._stable_ends[partition]:
                    return True  # nobody has counted how much lies between
                continue
            readable_bytes = partition.readable_bytes
            gained = readable_bytes - self._readable_bytes.get(partition, readable_bytes)
            if not gained:
                return (
                    True  # it moved within what was written at once, or was there before the start: nobody has counted
                )
            self._available_bytes += gained
            self._readable_bytes[partition] = readable_bytes
        return self._available_bytes >= self._wanted_bytes

    def read(self, *, is_last: bool) -> None:
        """Read every partition, within the request's limits, into `response`; `is_done` if that should leave now."""
        request = self._request
        budget = FetchBudget(request_max_bytes=request.max_bytes, fetch_max_bytes=self._fetch_max_bytes)
        self._has_error = self._has_news = False
        self._available_bytes = 0
        self._got.clear()
        self._readable_bytes.clear()
        self._stable_ends.clear()
        self.partitions = []
        responses: list[FetchableTopicResponse] = []
        for topic in request.topics:
            answers = [self._read_partition(topic, wanted, budget, is_last) for wanted in topic.partitions]
            responses.append(
                FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=tuple(answers))
            )
        self.response = FetchResponse(
            responses=tuple(responses), node_endpoints=self._leader_endpoints(responses) if self._has_error else ()
        )
        has_enough = self._available_bytes >= self._wanted_bytes
        self.is_done = self._has_error or self._has_news or not self.partitions or has_enough

    def _leader_endpoints(self, responses: Sequence[FetchableTopicResponse]) -> tuple[NodeEndpoint, ...]:
        """Where the leaders that refusals name listen."""
        context = self._context
        if self._endpoints is None or context.api_version < FIRST_WITH_ENDPOINTS:
            return ()
        named = (answer.current_leader.leader_id for topic in responses for answer in topic.partitions)
        leaders = [leader for leader in named if leader != NO_LEADER]
        return self._endpoints.of(leaders, context.connection.listener_name, NodeEndpoint) if leaders else ()

    def count(self) -> None:
        """Note that what was read is sent."""
        for partition, size_bytes in self._got:
            partition.sent_bytes += size_bytes

    def _read_partition(
        self, topic: FetchTopic, wanted: FetchPartition, budget: FetchBudget, is_last: bool
    ) -> PartitionData:
        version, isolation = self._context.api_version, self._request.isolation_level
        partition: Partition | None = None
        offset = wanted.fetch_offset
        try:
            if version < FIRST_WITH_TOPIC_IDS:
                partition = self._table.get(topic.topic, wanted.partition)
            else:
                partition = self._table.get_by_id(topic.topic_id, wanted.partition)
            self._check_request(partition, wanted, version)
            if wanted.last_fetched_epoch >= 0 and (diverging := self._diverging_point(partition, wanted)) is not None:
                return diverging
            limit_bytes = budget.limit_for(wanted.partition_max_bytes)
            limits = ReadLimits(
                offset, limit_bytes, isolation, wanted.current_leader_epoch, min_one_message=budget.min_one_message
            )
            replica = self._replica
            if replica is not None:
                got = replica.read(partition, wanted, limits)
                self._has_news = self._has_news or replica.is_behind(partition, wanted)
            else:
                got = partition.read(limits)
            is_too_far = replica is None and offset > got.high_watermark
            if is_last and version >= FIRST_WITH_OFFSET_NOT_AVAILABLE and is_too_far:
                raise KafkaError(
                    ErrorCode.OFFSET_NOT_AVAILABLE, f"offset {offset} is above the high watermark {got.high_watermark}"
                )
        except KafkaError as error:
            self._has_error = True
            return _error_data(wanted.partition, error, partition, version)
        self.partitions.append(partition)
        self._got.append((partition, got.size_bytes))
        self._readable_bytes[partition] = partition.readable_bytes
        if isolation == READ_COMMITTED and got.last_stable_offset < got.high_watermark:
            self._stable_ends[partition] = got.last_stable_offset
        # What is there and did not fit must not be waited for: it will not fit later either.
        self._available_bytes += got.size_bytes if got.reaches_end else max(got.size_bytes, limit_bytes)
        if got.size_bytes:
            budget.spend(got.size_bytes)
        elif not got.reaches_end:
            budget.refused(limit_bytes)
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=got.high_watermark,
            last_stable_offset=got.last_stable_offset,
            log_start_offset=got.log_start_offset,
            aborted_transactions=_aborted(got) if isolation == READ_COMMITTED else None,
            records=got.records,
        )

    def _check_request(self, partition: Partition, wanted: FetchPartition, version: int) -> None:
        if self._replica is not None:
            self._replica.check(partition, wanted)
            return
        request = self._request
        replica_id = request.replica_id if version < FIRST_WITH_REPLICA_STATE else request.replica_state.replica_id
        if replica_id >= 0:
            partition.check_leader(wanted.current_leader_epoch)
            code = (
                ErrorCode.UNKNOWN_LEADER_EPOCH if wanted.current_leader_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            raise KafkaError(code, f"broker {replica_id} is no replica of {partition.topic_partition} here")
        if version < FIRST_WITH_ZSTD and partition.config.compression_type == "zstd":
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "the topic is compressed with zstd: Fetch v10 or later"
            )

    def _diverging_point(self, partition: Partition, wanted: FetchPartition) -> PartitionData | None:
        """Where the reader's log and ours part, if they do (KIP-595)."""
        partition.check_leader(wanted.current_leader_epoch)
        end = partition.end_offset_for_epoch(wanted.last_fetched_epoch)
        if end.epoch == _UNKNOWN:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is known here of leader epoch {wanted.last_fetched_epoch}"
            )
        if end.epoch == wanted.last_fetched_epoch and end.offset >= wanted.fetch_offset:
            return None
        self._has_error = True  # not an error, but nothing to wait for
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=DivergingEpoch(epoch=end.epoch, end_offset=end.offset),
            aborted_transactions=None,
            records=b"",
        )


def _aborted(got: PartitionRead) -> tuple[AbortedTransaction, ...]:
    return tuple(
        AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
        for aborted in got.aborted
    )


def _error_data(index: int, error: KafkaError, partition: Partition | None, version: int) -> PartitionData:
    """The answer of a partition that cannot be read. Out of range says what the range is (KIP-392)."""
    code = error.code
    if code is ErrorCode.KAFKA_STORAGE_ERROR and version < FIRST_WITH_STORAGE_ERROR:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    high_watermark = log_start_offset = last_stable_offset = _UNKNOWN
    if partition is not None and error.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE):
        high_watermark, log_start_offset = partition.high_watermark, partition.log.log_start_offset
        last_stable_offset = partition.last_stable_offset
    leader = LeaderIdAndEpoch()
    if isinstance(error, NotLeader) and error.leader != NO_LEADER:
        leader = LeaderIdAndEpoch(leader_id=error.leader, leader_epoch=error.leader_epoch)
    elif partition is not None and error.code is ErrorCode.FENCED_LEADER_EPOCH and partition.state is not None:
        leader = LeaderIdAndEpoch(leader_id=partition.state.leader, leader_epoch=partition.leader_epoch)
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        current_leader=leader,
        aborted_transactions=None,
        records=b"",
    )
