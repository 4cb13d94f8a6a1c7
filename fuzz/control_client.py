"""An honest client beside the hostile clients: `python -m fuzz.control_client HOST PORT`.

It produces a record and fetches it back on a connection of its own, over and over, until stdin ends, and prints for
each round trip how many ms it took. It ends with an error if an answer is wrong or late.
"""

import os
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.registry import api_of

TOO_LATE_SECONDS = 30
_PAUSE_SECONDS = 0.003


class ControlClient:
    """A connection and a topic that no other client uses."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=TOO_LATE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._topic = f"control-{os.getpid()}-{time.monotonic_ns()}"
        self.create_topic(self._topic)
        self._count = 0

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> bytes:
        """The new topic's id."""
        settings = tuple(CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items())
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=settings
        )
        (created,) = self._ask(CreateTopicsRequest(topics=(topic,), timeout_ms=10_000), 7).topics
        assert created.error_code == 0, created
        topic_id: bytes = created.topic_id
        return topic_id

    def close(self) -> None:
        self._socket.close()

    def round_trip_ms(self) -> float:
        """Produce a record, fetch the record, and compare."""
        started = time.perf_counter()
        value = b"%s %d" % (self._topic.encode(), self._count)
        offset = self._produce(value)
        assert offset == self._count, f"record {self._count} is at offset {offset}"
        assert self._fetch(offset) == value, f"record {offset} is not what was produced"
        self._count += 1
        return (time.perf_counter() - started) * 1000

    def _produce(self, value: bytes) -> int:
        records = build_batch([Record(0, 1_700_000_000_000, None, value)])
        data = TopicProduceData(name=self._topic, partition_data=(PartitionProduceData(index=0, records=records),))
        answer = self._ask(ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=(data,)), 9)
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == 0, partition
        offset: int = partition.base_offset
        return offset

    def _fetch(self, offset: int) -> bytes | None:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10_000)
        topic = FetchTopic(topic=self._topic, partitions=(partition,))
        answer = self._ask(FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=(topic,)), 11)
        (found,) = answer.responses[0].partitions
        assert found.error_code == 0, found
        return read_records(found.records)[0].value

    def _ask(self, request: Any, version: int) -> Any:
        body = b"".join(encode_request(request, version, 7, "control"))
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", self._read(4))
        return decode_response(api_of(type(request)).response, version, self._read(size))[1]

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the node hung up on an honest client"
            data += piece
        return bytes(data)


def main() -> None:
    client = ControlClient(sys.argv[1], int(sys.argv[2]))
    while True:
        sys.stdout.write(f"{client.round_trip_ms():.3f}\n")
        sys.stdout.flush()
        if select.select([sys.stdin], [], [], _PAUSE_SECONDS)[0]:
            return


if __name__ == "__main__":
    main()
