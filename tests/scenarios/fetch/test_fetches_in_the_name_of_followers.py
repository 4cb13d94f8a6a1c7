"""Three real nodes, followers that are stopped, and a client that pretends to be them: it acknowledges nothing."""

import os
import select
import socket
import struct
import time
from collections.abc import Iterable
from typing import Any

import pytest

from budgets import examples
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.errors import ErrorCode
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.records.record import Record, build_batch
from tailrace.protocol.registry import APIS, api_of
from tailrace.testing import Cluster

TOPIC = "orders"
DEADLINE_S = 60
AT_ONCE = 50
GUESSES = examples(1_000)
"""The broker epochs that are tried for each follower: theirs, offsets of their registrations, are among the first."""
PATIENT = {"broker.session.timeout.ms": "60000", "replica.lag.time.max.ms": "60000"}


class Pretender:
    """A client of the leader."""

    def __init__(self, address: str, topic_id: bytes) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._topic_id = topic_id

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Any, version: int) -> Any:
        self.send((request, version))
        return self.receive(type(request), version)

    def send(self, *requests: tuple[Any, int]) -> None:
        bodies = [b"".join(encode_request(request, version, 5, "pretender")) for request, version in requests]
        self._socket.sendall(b"".join(struct.pack(">i", len(body)) + body for body in bodies))

    def receive(self, kind: type[Any], version: int) -> Any:
        (size,) = struct.unpack(">i", self._read(4))
        return decode_response(APIS[api_of(kind).key].response, version, bytearray(self._read(size)))[1]

    @property
    def has_answer(self) -> bool:
        """Whether an answer has come that was not received yet."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the node hung up"
            data += piece
        return data

    def produce(self, *, acks: int) -> int:
        self.begin_produce(acks=acks)
        return self.produced()

    def begin_produce(self, *, acks: int) -> None:
        batch = bytes(build_batch([Record(0, 1_700_000_000_000, None, b"value")]))
        data = TopicProduceData(name=TOPIC, partition_data=(PartitionProduceData(index=0, records=batch),))
        self.send((ProduceRequest(acks=acks, timeout_ms=DEADLINE_S * 1000, topic_data=(data,)), 9))

    def produced(self) -> int:
        response = self.receive(ProduceRequest, 9)
        return int(response.responses[0].partition_responses[0].error_code)

    def fetch_many(self, offset: int, *, replica: int, leader_epoch: int, broker_epochs: Iterable[int]) -> set[int]:
        """Fetches of this replica with all these epochs, in one go; returns the error codes."""
        wanted = FetchPartition(
            partition=0, fetch_offset=offset, current_leader_epoch=leader_epoch, partition_max_bytes=1 << 20
        )
        topic = FetchTopic(topic_id=self._topic_id, partitions=(wanted,))
        requests = [
            FetchRequest(
                replica_state=ReplicaState(replica_id=replica, replica_epoch=epoch),
                max_wait_ms=0,
                min_bytes=1,
                topics=(topic,),
                secret=os.urandom(16),
            )
            for epoch in broker_epochs
        ]
        self.send(*((request, 17) for request in requests))
        answers = [self.receive(FetchRequest, 17) for _ in requests]
        return {answer.responses[0].partitions[0].error_code for answer in answers}

    def fetch(self, offset: int, *, version: int = 17, replica: int = -1, leader_epoch: int = -1) -> PartitionData:
        wanted = FetchPartition(
            partition=0, fetch_offset=offset, current_leader_epoch=leader_epoch, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            replica_id=replica,
            replica_state=ReplicaState(replica_id=replica),
            max_wait_ms=0,
            min_bytes=1,
            topics=(FetchTopic(topic=TOPIC, topic_id=self._topic_id, partitions=(wanted,)),),
        )
        answer: PartitionData = self.ask(request, version).responses[0].partitions[0]
        return answer

    def end_offset(self, replica: int) -> int:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=replica, topics=(ListOffsetsTopic(name=TOPIC, partitions=(wanted,)),), isolation_level=0
        )
        return int(self.ask(request, 7).topics[0].partitions[0].offset)


@pytest.mark.timeout(300)
def test_followers_that_are_stopped_are_not_spoken_for() -> None:
    with Cluster(brokers=3, config=PATIENT) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            wanted = NewTopic(name=TOPIC, partitions=1, replication_factor=3, configs={"min.insync.replicas": "3"})
            admin.create_topics([wanted])
            (described,) = admin.describe_topics([TOPIC])
        leader = described.partitions[0].leader
        followers = [broker_id for broker_id in cluster.broker_ids if broker_id != leader]
        client = Pretender(cluster.address(leader), bytes(described.topic_id))
        writer = Pretender(cluster.address(leader), bytes(described.topic_id))
        try:
            assert client.produce(acks=-1) == ErrorCode.NONE
            cluster.pause(*followers)
            assert client.produce(acks=1) == ErrorCode.NONE
            for replica in followers:
                for version in (11, 17):
                    for epoch in (-1, described.partitions[0].leader_epoch):
                        for offset in (1, 2):
                            answer = client.fetch(offset, version=version, replica=replica, leader_epoch=epoch)
                            assert (answer.error_code, bytes(answer.records or b"")) == (
                                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                                b"",
                            )
            assert client.fetch(1).high_watermark == 1, "nothing is acknowledged"
            assert [client.end_offset(replica) for replica in (-1, -2, *followers, 99)] == [1] * 5
            writer.begin_produce(acks=-1)
            for replica in followers:
                for first in range(0, GUESSES, AT_ONCE):
                    codes = client.fetch_many(
                        3,
                        replica=replica,
                        leader_epoch=described.partitions[0].leader_epoch,
                        broker_epochs=range(first, min(first + AT_ONCE, GUESSES)),
                    )
                    assert codes == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
            assert client.fetch(1).high_watermark == 1, "nothing is acknowledged"
            assert not writer.has_answer
            cluster.resume(*followers)
            assert writer.produced() == ErrorCode.NONE
            deadline = time.monotonic() + DEADLINE_S
            while client.fetch(1).high_watermark < 3:
                assert time.monotonic() < deadline, "the followers themselves do not move it"
                time.sleep(0.05)
        finally:
            cluster.resume(*followers)
            client.close()
            writer.close()
