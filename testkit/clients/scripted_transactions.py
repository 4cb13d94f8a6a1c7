"""A transactional producer's way to one node that answers by a script: without a socket; every request is kept."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tailrace.protocol.records.batch import BatchHeader, read_header
from tailrace.protocol.registry import api_of
from testkit.clients.metadata_answers import metadata_of

PRODUCER_ID = 7


class AskedRequest(NamedTuple):
    """A request, and the version in which it came."""

    version: int
    request: Any

    @property
    def name(self) -> str:
        """`EndTxn` with its version, as sent by the producer."""
        return f"{type(self.request).__name__.removesuffix('Request')} v{self.version}"


class ScriptedTransactions(Router):
    """A node, the leader of these partitions and the coordinator of everything. Of the rules of a coordinator the node
    knows only those of epochs.

    `newest` has the newest version of an API that it knows, by the type of the request.
    """

    def __init__(
        self, *partitions: TopicPartition, version: int, newest: Mapping[type[Any], int] | None = None
    ) -> None:
        super().__init__(ClientSettings("127.0.0.1:1", retry_backoff_ms=1))
        self.version = version
        """The node's transaction.version."""
        self.newest = newest or {}
        self.asked: list[AskedRequest] = []
        self.epoch = -1
        self.lookups = 0
        """The number of times that a coordinator was looked up."""
        self._partitions = partitions
        self._faults: dict[type[Any], deque[ErrorCode]] = defaultdict(deque)
        self._gates: dict[type[Any], asyncio.Event] = {}
        self._arrivals: dict[type[Any], asyncio.Event] = defaultdict(asyncio.Event)
        self._has_answered = True

    def describe(self) -> None:
        """Give the client new metadata."""
        self.view.update(metadata_of(dict.fromkeys(self._partitions, 1)), self.now_ms())

    def refuse(self, kind: type[Any], *codes: ErrorCode) -> None:
        """Set the codes of the next answers to this request; NETWORK_EXCEPTION is a lost connection in place of an
        answer."""
        self._faults[kind].extend(codes)

    def hold(self, kind: type[Any]) -> None:
        """Give no answer to this request until `release`."""
        self._gates[kind] = asyncio.Event()
        self._arrivals[kind].clear()

    async def arrival(self, kind: type[Any]) -> None:
        """Return when a request that is held has come."""
        async with asyncio.timeout(20):
            await self._arrivals[kind].wait()

    def release(self, kind: type[Any]) -> None:
        self._gates.pop(kind).set()

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.asked]

    def requests(self, kind: type[Any]) -> list[Any]:
        """The requests of this type so far."""
        return [each.request for each in self.asked if isinstance(each.request, kind)]

    @property
    def batches(self) -> list[BatchHeader]:
        """The headers of all batches so far."""
        return [
            read_header(partition.records)
            for request in self.requests(ProduceRequest)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]

    # the router

    async def refresh(self, *_: object, **__: object) -> None:
        self.describe()

    async def any_connection(self) -> Connection:
        return cast(Connection, _ScriptedLink(self))

    async def broker_connection(self, broker: BrokerAddress, use: str = "") -> Connection:
        return await self.any_connection()

    def open_connection(self, broker: BrokerAddress, use: str) -> Connection | None:
        return cast(Connection, _ScriptedLink(self))

    async def _find_coordinator(self, key_type: int, key: str) -> BrokerAddress:
        self.lookups += 1
        return BrokerAddress(node_id=BrokerId(1), host="h", port=1, rack=None)

    # the node

    async def answer(self, version: int, request: Any) -> Any:
        kind = type(request)
        self.asked.append(AskedRequest(version, request))
        gate = self._gates.get(kind)
        if gate is not None:
            self._arrivals[kind].set()
            await gate.wait()
        code = self._faults[kind].popleft() if self._faults[kind] else ErrorCode.NONE
        if code is ErrorCode.NETWORK_EXCEPTION:
            raise KafkaError(code, "the node closed the connection")
        match request:
            case InitProducerIdRequest():
                return self._initialized(code)
            case AddPartitionsToTxnRequest():
                return _added(request, code)
            case AddOffsetsToTxnRequest():
                return AddOffsetsToTxnResponse(error_code=code)
            case TxnOffsetCommitRequest():
                return _offsets_kept(request, code)
            case EndTxnRequest():
                return self._ended(version, code)
            case ProduceRequest():
                return _written(request, code)
        raise AssertionError(request)

    def _initialized(self, code: ErrorCode) -> InitProducerIdResponse:
        self.epoch += code is ErrorCode.NONE
        return InitProducerIdResponse(error_code=code, producer_id=PRODUCER_ID, producer_epoch=max(self.epoch, 0))

    def _ended(self, version: int, code: ErrorCode) -> EndTxnResponse:
        if code or version < 5:
            return EndTxnResponse(error_code=code)
        self.epoch += 1
        return EndTxnResponse(producer_id=PRODUCER_ID, producer_epoch=self.epoch)


def _added(request: AddPartitionsToTxnRequest, code: ErrorCode) -> AddPartitionsToTxnResponse:
    """The answer to the request. An error is for the first partition alone; the other partitions were not attempted."""
    codes = iter((code,))
    others = ErrorCode.OPERATION_NOT_ATTEMPTED if code else code
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=next(codes, others))
                    for index in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        )
    )


def _offsets_kept(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _written(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                partition_responses=tuple(
                    PartitionProduceResponse(index=each.index, error_code=code, base_offset=-1 if code else 0)
                    for each in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


class _ScriptedLink:
    """A connection to the node."""

    address = "node-1"

    def __init__(self, node: ScriptedTransactions) -> None:
        self._node = node

    def version_of(self, request_type: type[Any], max_version: int = 0x7FFF) -> int:
        newest = api_of(request_type).max_version
        return min(self._node.newest.get(request_type, newest), newest, max_version)

    def feature_level(self, name: str) -> int:
        assert name == "transaction.version"
        return self._node.version

    async def ask(self, request: Any, response_type: type[Any], *, max_version: int = 0x7FFF, **_: object) -> Any:
        return await self.send(request, response_type, max_version=max_version)

    def send(
        self, request: Any, response_type: type[Any], *, max_version: int = 0x7FFF, **_: object
    ) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._node.answer(self.version_of(type(request), max_version), request))
