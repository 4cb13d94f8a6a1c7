"""A client's way to two nodes whose answers a script gives: without a socket; every request is kept."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.declaration import replace
from tailrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tailrace.protocol.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tailrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tailrace.protocol.records.record import Record, build_batch
from tailrace.protocol.registry import api_of

Answer = Callable[[int, Any], Awaitable[Any]]
"""Returns the answer of the node with this number to this request, or raises KafkaError."""

TOPIC_ID = b"1" * 16


class ScriptedNodes(Router):
    """Nodes 1 and 2, and the metadata of their partitions; the time stands still unless the script moves the clock.

    `leaders` and `epochs` are in the next metadata; `newest` is the newest version of each API, by its key.
    """

    def __init__(
        self,
        answer: Answer,
        leaders: Mapping[TopicPartition, int],
        *,
        newest: Mapping[int, int] | None = None,
        metadata_max_age_ms: int = 300_000,
    ) -> None:
        super().__init__(ClientSettings("127.0.0.1:1", retry_backoff_ms=1, metadata_max_age_ms=metadata_max_age_ms))
        self.asked: list[tuple[int, Any]] = []
        """The node and the request of each call, in order."""
        self.leaders = dict(leaders)
        self.epochs: dict[TopicPartition, int] = {}
        self.brokers = [1, 2]
        self.in_sync = [1, 2]
        self.topic_id = TOPIC_ID
        self.answer = answer
        self.newest = newest or {}
        self.gone: set[int] = set()
        """Nodes to which no connection can be made."""
        self.passed_ms = 0
        """The number of ms by which the clock is ahead of the real clock."""
        self.metadata_requests = 0
        self._has_answered = True
        self.describe()

    def now_ms(self) -> int:  # type: ignore[override]
        return super().now_ms() + self.passed_ms

    def describe(self) -> None:
        """Give the client new metadata."""
        topics: dict[str, list[MetadataResponsePartition]] = {}
        for name, leader in self.leaders.items():
            described = MetadataResponsePartition(
                partition_index=name.partition,
                leader_id=leader,
                leader_epoch=self.epochs.get(name, 0),
                replica_nodes=(1, 2),
                isr_nodes=tuple(self.in_sync),
            )
            topics.setdefault(name.topic, []).append(described)
        response = MetadataResponse(
            brokers=tuple(MetadataResponseBroker(node_id=node, host="h", port=node) for node in self.brokers),
            topics=tuple(
                MetadataResponseTopic(name=name, topic_id=self.topic_id, partitions=tuple(partitions))
                for name, partitions in topics.items()
            ),
        )
        self.view.update(response, self.now_ms())

    async def refresh(self, *_: object, **__: object) -> None:
        self.metadata_requests += 1
        self.describe()

    async def node_connection(self, node_id: int, use: str = "") -> Connection:
        if node_id in self.gone:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"node {node_id} is gone")
        return cast(Connection, _ScriptedConnection(self, node_id))

    async def broker_connection(self, broker: BrokerAddress, use: str = "") -> Connection:
        return await self.node_connection(broker.node_id, use)

    def open_connection(self, broker: BrokerAddress, use: str) -> Connection | None:
        return None if broker.node_id in self.gone else cast(Connection, _ScriptedConnection(self, broker.node_id))

    def requests(self, kind: type[Any], node_id: int | None = None) -> list[Any]:
        """The requests of this type so far, to this node or to every node."""
        return [request for node, request in self.asked if isinstance(request, kind) and node_id in (None, node)]


class _ScriptedConnection:
    def __init__(self, nodes: ScriptedNodes, node_id: int) -> None:
        self._nodes = nodes
        self._node_id = node_id
        self.address = f"node-{node_id}"
        self.received_bytes = 0

    def version_of(self, request_type: type[Any], max_version: int = 0x7FFF) -> int:
        api = api_of(request_type)
        return min(self._nodes.newest.get(api.key, api.max_version), api.max_version, max_version)

    def offers(self, request_type: type[Any], version: int = 0) -> bool:
        return version <= self.version_of(request_type)

    async def ask(self, request: Any, response_type: type[Any], *, max_version: int = 0x7FFF, **_: object) -> Any:
        if isinstance(request, FetchRequest) and max_version < 11:
            request = replace(request, rack_id="")  # such a version has none
        self._nodes.asked.append((self._node_id, request))
        return await self._nodes.answer(self._node_id, request)


class ScriptedReplica:
    """The replica of every partition on one node: a log, and answers with one batch of the log for each partition. A
    fetch above the log end is out of range; a fetch at the log end is answered empty, at once. `faults` are the error
    codes of the next fetches, in order. Each full fetch that may create a session gets `session_id`.
    """

    def __init__(self) -> None:
        self.epochs: list[int] = []
        """The leader epoch of each record, from offset 0 on."""
        self.batch_records = 1
        self.log_start = 0
        self.gives_bounds = True
        """Whether an answer to an offset out of range states the log start (Apache Kafka's does not)."""
        self.preferred = -1
        """The replica that a fetch with a rack is sent to."""
        self.faults: list[int] = []
        self.end_faults: list[int] = []
        """The error codes of the next answers to OffsetForLeaderEpoch."""
        self.session_id = 0
        self.session: dict[tuple[bytes, int], FetchPartition] = {}

    async def answer(self, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            return self._fetched(request)
        if isinstance(request, OffsetForLeaderEpochRequest):
            return self._ends(request)
        assert isinstance(request, ListOffsetsRequest), request
        return self._listed(request)

    def _fetched(self, request: FetchRequest) -> FetchResponse:
        if request.session_epoch == -1 and request.session_id:
            self.session.clear()
            return FetchResponse(responses=())
        if request.session_epoch <= 0:
            self.session.clear()
        for forgotten in request.forgotten_topics_data:
            for number in forgotten.partitions:
                del self.session[forgotten.topic_id, number]
        for topic in request.topics:
            for wanted in topic.partitions:
                self.session[topic.topic_id, wanted.partition] = wanted
        is_full = request.session_epoch <= 0
        topics: dict[bytes, list[PartitionData]] = {}
        for (topic_id, _), wanted in self.session.items():
            data = self._data(wanted, request)
            if is_full or data.records or data.error_code or data.preferred_read_replica >= 0:
                topics.setdefault(topic_id, []).append(data)
        return FetchResponse(
            session_id=self.session_id if request.session_epoch != -1 else 0,
            responses=tuple(
                FetchableTopicResponse(topic_id=topic_id, partitions=tuple(each)) for topic_id, each in topics.items()
            ),
        )

    def _data(self, wanted: FetchPartition, request: FetchRequest) -> PartitionData:
        end, offset = len(self.epochs), wanted.fetch_offset
        error, records, preferred = 0, None, -1
        if self.faults:
            error = self.faults.pop(0)
        elif request.rack_id and self.preferred >= 0:
            preferred = self.preferred
        elif not self.log_start <= offset <= end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        elif offset < end:
            records = self._batch(offset)
        return PartitionData(
            partition_index=wanted.partition,
            error_code=error,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=self.log_start if self.gives_bounds else -1,
            aborted_transactions=None,
            preferred_read_replica=preferred,
            records=records,
        )

    def _batch(self, offset: int) -> bytes:
        """The batch with this offset: it begins at a multiple of `batch_records`, and has one leader epoch."""
        epoch, first = self.epochs[offset], offset - offset % self.batch_records
        offsets = [each for each in range(first, first + self.batch_records) if self.epochs[each : each + 1] == [epoch]]
        records = [Record(0, 1, None, b"%d" % each) for each in offsets]
        return bytes(build_batch(records, base_offset=offsets[0], leader_epoch=epoch))

    def _ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=tuple(
                OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=tuple(self._end(wanted) for wanted in topic.partitions)
                )
                for topic in request.topics
            )
        )

    def _end(self, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
        if self.end_faults:
            return EpochEndOffset(partition=wanted.partition, error_code=self.end_faults.pop(0))
        below = [offset for offset, epoch in enumerate(self.epochs) if epoch <= wanted.leader_epoch]
        if not below:
            return EpochEndOffset(partition=wanted.partition)
        return EpochEndOffset(partition=wanted.partition, leader_epoch=self.epochs[below[-1]], end_offset=below[-1] + 1)

    def _listed(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ListOffsetsPartitionResponse(
                            partition_index=wanted.partition_index,
                            offset=self.log_start if wanted.timestamp == -2 else len(self.epochs),
                            leader_epoch=self.epochs[-1] if self.epochs else -1,
                        )
                        for wanted in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )
