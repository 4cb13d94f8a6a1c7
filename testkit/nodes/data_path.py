"""The data path of one node, from frame to file, without sockets, threads and a real clock.

node = DataPath(directory, files=SimulatedDisk(seed=1))
node.create("orders")
node.produce("orders", b"hello").response
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, cast

from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.node.selector_class import load_selector
from tailrace.node.settings.broker_config import broker_config
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tailrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tailrace.protocol.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tailrace.protocol.records.batch import BatchHeader, iter_batches
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.registry import APIS, api_of
from tailrace.replication.partition import Partition
from tailrace.replication.replica_selector import ReplicaSelector
from tailrace.server.assembly.broker import AppliedMetadata, Broker
from tailrace.server.assembly.config import BrokerPorts
from tailrace.server.authorizer import PERMIT_ALL, Authorizer
from tailrace.server.dispatch import Dispatcher, HandlerTable, by_api
from tailrace.server.metadata.cluster import LeaderEndpoints
from tailrace.server.partitions.log_faults import Failures
from tailrace.server.ports import Buffer, Controller, Disk
from tailrace.server.produce.produce import ProduceHandler
from tailrace.server.produce.transactional_appends import TransactionVerifier
from tailrace.storage import FileSystem, OsFiles
from tailrace.testing.clock import ManualClock
from testkit.nodes.ports import ImmediateDisk, NoCluster, NoPeer, RecordingConnection

BROKER = BrokerId(1)
CLUSTER_ID = "a-cluster-for-tests-00"

OwnHandlers = Callable[[Broker], HandlerTable]
"""Makes handlers out of the parts of a broker."""


class Exchange:
    """A request and its answer."""

    def __init__(self, connection: RecordingConnection, slot: int, response_type: type[Any], version: int) -> None:
        self._connection = connection
        self._slot = slot
        self._response_type = response_type
        self._version = version

    @property
    def is_answered(self) -> bool:
        return self._slot in self._connection.answers

    @property
    def response(self) -> Any:
        """The answer, decoded from the sent bytes."""
        answer = self._connection.answers[self._slot]
        assert answer is not None, "the request gets no answer, on purpose"
        return decode_response(self._response_type, self._version, answer)[1]

    @property
    def produced(self) -> PartitionProduceResponse:
        """The one partition of an answer to Produce."""
        response: ProduceResponse = self.response
        ((answer,),) = (topic.partition_responses for topic in response.responses)
        return answer

    @property
    def fetched(self) -> PartitionData:
        """The one partition of an answer to Fetch."""
        response: FetchResponse = self.response
        assert response.error_code == 0
        ((answer,),) = (topic.partitions for topic in response.responses)
        return answer


class DataPath:
    """A broker on a test's ports. Every flush is done at once unless another disk is given."""

    SETTINGS: ClassVar[Mapping[str, str]] = {}
    """The settings of every node of this kind, unless a test has other settings."""

    def __init__(
        self,
        directory: str,
        *,
        files: FileSystem | None = None,
        clock: ManualClock | None = None,
        disk: Disk | None = None,
        settings: Mapping[str, str] | None = None,
        start: int = 1,
        own_handlers: OwnHandlers | None = None,
        controller: Controller | None = None,
        failures: Failures | None = None,
        replica_selector: ReplicaSelector | None = None,
    ) -> None:
        """`start` tells one start of the process from the next: it makes the ids that are random otherwise.
        `own_handlers` replace the broker's handlers of the same APIs. `controller`: a double of the way to the active
        controller. `failures` gets failed replicas in place of the broker's own object. `replica_selector` replaces the
        selector of the settings."""
        self.files = OsFiles() if files is None else files
        self.clock = ManualClock() if clock is None else clock
        self.disk: Disk = ImmediateDisk(self.clock.call_soon) if disk is None else disk
        self.config = NodeConfig({**self.SETTINGS, **(settings or {})})
        self._start = start
        self._own_controller = controller
        self._selector = load_selector(self.config) if replica_selector is None else replica_selector
        self._numbers = count(1)
        self.broker = self._assemble(directory)
        self.table = self.broker.partitions
        if failures is not None:
            self.table.faults.failures = failures
        self.table.open()
        self.deadlines, self.polls = self.broker.deadlines, self.broker.polls
        self.dispatcher = self.broker.dispatcher
        if own_handlers is not None:
            self.serve({**self.broker.handlers, **own_handlers(self.broker)})
        self.clock.on_turn_end = self.table.write_staged
        self.connection = RecordingConnection()

    def serve(self, handlers: HandlerTable) -> None:
        """Serve these handlers in place of the broker's handlers."""
        self.dispatcher = Dispatcher(
            handlers,
            on_broken_invariant=raise_broken_invariant,
            finalized=self.broker.finalized_features,
            authorizer=self.authorizer,
        )

    def _assemble(self, directory: str) -> Broker:
        """The broker of a node that knows of no cluster."""
        controller = self._own_controller or NoCluster()
        return self._new_broker(directory, metadata=NoCluster(), controller=controller, admin={})

    def _new_broker(
        self,
        directory: str,
        *,
        metadata: AppliedMetadata,
        controller: Controller,
        admin: HandlerTable,
        authorizer: Authorizer = PERMIT_ALL,
    ) -> Broker:
        self.authorizer = authorizer
        config = broker_config(self.config, cluster_id=CLUSTER_ID, log_directory=directory)
        return Broker(
            replace(config, shown_log_directory=directory),
            ports=BrokerPorts(
                clock=self.clock,
                files=self.files,
                disk=self.disk,
                syncing_disk=self.disk,
                peers=NoPeer(self.clock.call_soon),
                random_bytes=self._random_bytes,
                replica_selector=self._selector,
            ),
            settings=self.config,
            metadata=metadata,
            controller=controller,
            admin=admin,
            on_broken_invariant=raise_broken_invariant,
            authorizer=authorizer,
        )

    def _random_bytes(self, size: int) -> bytes:
        return ((1 << 120) + (self._start << 64) + next(self._numbers)).to_bytes(16, "big")[-size:]

    def create(
        self,
        topic: str = "orders",
        *,
        partition: int = 0,
        leader_epoch: int = 0,
        leader: int = BROKER,
        in_sync: Sequence[int] = (BROKER,),
        replicas: Sequence[int] = (BROKER,),
        topic_id: TopicId | None = None,
        config: TopicConfig | None = None,
    ) -> Partition:
        """Create a partition of a topic, by default led by this broker; a partition that exists gets the new state."""
        created = self.table.create(
            TopicPartition(topic, partition),
            state=PartitionState(
                topic_id=topic_id or topic_id_of(topic),
                replicas=tuple(map(BrokerId, replicas)),
                in_sync_replicas=tuple(map(BrokerId, in_sync)),
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(leader_epoch),
                partition_epoch=0,
            ),
            config=config or TopicConfig(),
        )
        assert created is not None, "the partition of this name that was deleted is still being flushed"
        return created

    def send(
        self,
        request: Any,
        version: int,
        *,
        connection: RecordingConnection | None = None,
        client_id: str = "test",
        same_turn: bool = False,
    ) -> Exchange:
        """Send one request as a client does. `same_turn`: further requests follow in the same turn."""
        connection = connection or self.connection
        slot = connection.next_slot()
        frame = bytearray(b"".join(encode_request(request, version, correlation_id=7, client_id=client_id)))
        self.dispatcher.on_frame(connection, slot, memoryview(frame))
        if not same_turn:
            self.end_turn()
            if not connection.is_suspended:
                frame[:] = bytes(len(frame))  # the receive buffer is used again
        return Exchange(connection, slot, APIS[api_of(type(request)).key].response, version)

    def end_turn(self) -> None:
        """End the turn, and do what has become due."""
        self.table.write_staged()
        self.clock.advance(0)

    def produce(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        acks: int = -1,
        timeout_ms: int = 30_000,
        version: int = 12,
        records: Buffer | None = None,
        client_id: str = "test",
        transactional_id: str | None = None,
        same_turn: bool = False,
    ) -> Exchange:
        """Send values as one batch to one partition; `records` instead, if given."""
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=(
                TopicProduceData(
                    name=topic if version < 13 else "",
                    topic_id=self._topic_id(topic, partition),
                    partition_data=(
                        PartitionProduceData(
                            index=partition, records=records or batch_of(*values, now=self.clock.now_ms)
                        ),
                    ),
                ),
            ),
        )
        return self.send(request, version, client_id=client_id, same_turn=same_turn)

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 17,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        isolation: int = 0,
        leader_epoch: int = -1,
        connection: RecordingConnection | None = None,
        **options: Any,
    ) -> Exchange:
        """Read one partition from `offset` on."""
        wanted = FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=leader_epoch,
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            topics=(
                FetchTopic(
                    topic=topic if version < 13 else "", topic_id=self._topic_id(topic, partition), partitions=(wanted,)
                ),
            ),
            **options,
        )
        return self.send(request, version, connection=connection)

    def end_transaction(
        self,
        topic: str,
        *,
        producer_id: int,
        is_commit: bool,
        producer_epoch: int = 0,
        coordinator_epoch: int = 0,
        partitions: Sequence[int] = (0,),
    ) -> Exchange:
        """Have a producer's transaction ended in these partitions, as its coordinator does."""
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=is_commit,
            topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=tuple(partitions)),),
            coordinator_epoch=coordinator_epoch,
        )
        return self.send(WriteTxnMarkersRequest(markers=(marker,)), 1)

    def values(self, topic: str, *, partition: int = 0) -> list[bytes | None]:
        """Every value that a consumer can read, from the log start on."""
        found: list[bytes | None] = []
        data = self.table.get(topic, partition)
        offset = data.log.log_start_offset
        while True:
            answer = self.fetch(topic, offset, partition=partition).fetched
            assert answer.error_code == 0
            records = records_of(answer.records)
            if not records:
                return found
            found += [record.value for record in records if record.offset >= offset]
            offset = records[-1].offset + 1

    def _topic_id(self, topic: str, partition: int) -> TopicId:
        found = self.table.find(topic, partition)
        return topic_id_of(topic) if found is None else found.topic_id


def topic_id_of(topic: str) -> TopicId:
    """The id that `DataPath.create` gives a topic."""
    return TopicId(topic.encode()[:16].ljust(16, b"\0"))


def batch_of(*values: bytes | None, now: Callable[[], int] = lambda: 1_700_000_000_000, **options: Any) -> bytes:
    """A batch in the form of a producer; options are the options of `build_batch`."""
    return bytes(build_batch([Record(index, now(), b"k", value) for index, value in enumerate(values)], **options))


class _Unlooking:
    """Replaces an `Admission`, and takes every batch, as earlier releases did, which checked headers alone."""

    stamps_append_time = False

    def must_look_at(self, records: memoryview, header: BatchHeader, now_ms: int) -> bool:
        return False


@contextmanager
def unlooking(partition: Partition) -> Iterator[None]:
    """Let a leader take batches without a check of their records, as an older release does."""
    kept = partition._admission
    partition._admission = cast(Any, _Unlooking())
    try:
        yield
    finally:
        partition._admission = kept


def records_of(data: Buffer | None) -> list[Record]:
    """The records in the answer to a fetch."""
    if not data:
        return []
    return [record for position, _ in iter_batches(data) for record in read_records(data, position)]


def verified_by(verifier: TransactionVerifier, *, is_verified: bool = True) -> OwnHandlers:
    """A handler of Produce that asks this verifier whether a transaction is under way."""
    return lambda broker: by_api(
        {
            ProduceRequest: ProduceHandler(
                partitions=broker.partitions,
                deadlines=broker.deadlines,
                clock=broker.ports.clock,
                verifier=verifier,
                is_verified=is_verified,
                endpoints=LeaderEndpoints(broker.controller),
            )
        }
    )


def raise_broken_invariant(broken: BaseException) -> None:
    """A `Dispatcher.on_broken_invariant` that fails the test."""
    raise broken
