"""A connection with fetches of a large session, or with other requests of many names, and a writer with acks=all.

By default one attack of each kind, which no busy machine outlasts: the verdict is that the writer's records are
acknowledged while the attack goes on. ATTACKS=all in the environment tries every attack with product settings, on an
idle machine, and asks that no broker is fenced and the writer's p99 is 200 ms at most:

    ATTACKS=all python -m pytest -s tests/crash/test_one_connection.py
"""

import os
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pytest

from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
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
from tailrace.testing import Cluster

T = TypeVar("T")
ALL = os.environ.get("ATTACKS") == "all"
PATIENT = {"broker.session.timeout.ms": "60000", "log.dir.stall.timeout.ms": "60000"}
VERSION = 12
WRITES = 200 if ALL else 12
LONGEST_P99_S = 0.2
DEADLINE_S = 240


class Attack(NamedTuple):
    """A session, and its fetches."""

    name: str
    existing: int
    """Partitions that exist, without records."""
    missing: int
    """Partitions that do not."""
    in_flight: int
    changes_isolation: bool
    """Whether each fetch has another isolation level than the one before: all partitions are looked at."""

    @property
    def idle_topics(self) -> list[tuple[str, int]]:
        """Topics with the partitions that exist."""
        return [(f"idle-{first}", min(600, self.existing - first)) for first in range(0, self.existing, 600)]


FEW = Attack("600 idle partitions, another isolation level each time", 600, 0, 64, changes_isolation=True)
ATTACKS = [
    Attack("100,000 missing partitions, a single fetch in flight", 0, 100_000, 1, changes_isolation=False),
    Attack("100,000 missing partitions", 0, 100_000, 16, changes_isolation=False),
    Attack("10,000 missing partitions", 0, 10_000, 64, changes_isolation=False),
    Attack("4,000 missing partitions", 0, 4_000, 64, changes_isolation=True),
    FEW._replace(name="3,000 idle partitions, another isolation level each time", existing=3_000),
]


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
        frame = b"".join(encode_request(flood.request(), flood.version, 1, "attacker"))
        host, _, port = address.rpartition(":")
        self._frame = struct.pack(">i", len(frame)) + frame
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
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


class Attacker:
    """A connection, and a thread that keeps its fetches in flight."""

    def __init__(self, address: str, attack: Attack) -> None:
        host, _, port = address.rpartition(":")
        self._attack = attack
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._thread = threading.Thread(target=self._run)
        self._stops = threading.Event()
        self.session_id = 0
        self.served = 0
        """The fetches that were answered."""

    def open(self) -> None:
        """Begin the session."""
        attack = self._attack
        topics = [_topic(name, partitions) for name, partitions in attack.idle_topics]
        topics += [_topic(f"missing-{number}", attack.missing // 10) for number in range(10) if attack.missing]
        self._send(FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=tuple(topics)))
        response: FetchResponse = decode_response(FetchResponse, VERSION, self._receive())[1]
        assert response.error_code == 0
        assert response.session_id, "no session"
        self.session_id = response.session_id

    def start(self) -> None:
        """Begin the attack."""
        self._thread.start()

    def stop(self) -> None:
        """End the attack, and the connection."""
        self._stops.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        epoch, waiting = 1, deque[int]()
        while not self._stops.is_set():
            while len(waiting) < self._attack.in_flight:
                isolation = epoch % 2 if self._attack.changes_isolation else 0
                self._send(
                    FetchRequest(
                        max_wait_ms=0,
                        min_bytes=0,
                        isolation_level=isolation,
                        session_id=self.session_id,
                        session_epoch=epoch,
                        topics=(),
                    )
                )
                waiting.append(epoch)
                epoch += 1
            self._receive()
            waiting.popleft()
            self.served += 1

    def _send(self, request: FetchRequest) -> None:
        frame = b"".join(encode_request(request, VERSION, 1, "attacker"))
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            assert piece, "the node has closed the connection"
            found += piece
        return bytes(found)


def _topic(name: str, partitions: int) -> FetchTopic:
    return FetchTopic(
        topic=name,
        partitions=tuple(
            FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1) for number in range(partitions)
        ),
    )


@contextmanager
def attacked(address: str, attack: Attack | Flood) -> Iterator[Attacker | Flooder]:
    attacker = Attacker(address, attack) if isinstance(attack, Attack) else Flooder(address, attack)
    attacker.open()
    attacker.start()
    try:
        yield attacker
    finally:
        attacker.stop()


def fenced(cluster: Cluster) -> list[str]:
    """The lines of brokers that were fenced, by the logs of all nodes."""
    logs = "\n".join(map(cluster.log_text, cluster.node_ids))
    return re.findall(r"event=broker-fenced.*", logs)


@pytest.mark.crash
@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("attack", [*ATTACKS, *FLOODS] if ALL else [FEW, FEW_LOOKUPS], ids=lambda attack: attack.name)
def test_a_writer_is_served_beside_a_connection_that_asks_without_end(attack: Attack | Flood) -> None:
    with Cluster(brokers=3, config={} if ALL else PATIENT) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="orders", partitions=1, replication_factor=3)])
        (orders,) = admin.describe_topics(["orders"])
        leader = orders.partitions[0].leader
        for name, partitions in attack.idle_topics if isinstance(attack, Attack) else ():
            idle = {number: [leader] for number in range(partitions)}
            admin.create_topics([NewTopic(name=name, assignments=idle)])
        took: list[float] = []
        with (
            Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer,
            attacked(cluster.address(leader), attack) as attacker,
        ):
            producer.send("orders", b"the first finds the leader").result(DEADLINE_S)
            served = attacker.served
            while len(took) < WRITES or (ALL and attacker.served == served):
                began = time.monotonic()
                producer.send("orders", b"value").result(DEADLINE_S)
                took.append(time.monotonic() - began)
            served = attacker.served - served
        took.sort()
        p50, p99, longest = (1000 * took[int(len(took) * share)] for share in (0.5, 0.99, 0.9999))
        print(  # noqa: T201
            f"{attack.name}: {served} answered beside {len(took)} writes,"
            f" p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {longest:.0f} ms"
        )
        assert fenced(cluster) == []
        assert served > 0 or not getattr(attack, "reads_answers", True), "the attack went on"
        if ALL:
            assert p99 <= 1000 * LONGEST_P99_S
